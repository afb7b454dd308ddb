"""The command ``fib-agents``: each tool for people and scripts, the MCP server, schemas and guides.

Results go to stdout, as text or with ``--json`` as one JSON object. Exit codes: 0 if the tool ran and the solution is
fine, 1 if the solution fails, 2 for a wrong command or a tool that cannot run, 130 after an interrupt.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from fib_schema import FibError
from fib_schema.command import FAILED, INTERRUPTED, CommandParser, add_data_set, data_set_of, run_command

from .guides import GUIDES, read_guide
from .results import Result
from .toolbox import TOOLS, Toolbox, get_all_tool_schemas, tool_schema
from .workspace import Workspace

_DESCRIPTION = """\
Tools for programs that write GPU kernels. Code is a file, a folder, or the name of a solution of the data set."""
_EXAMPLES = """\
examples:
  fib-agents evaluate softmax_n64 kernel.py --dataset DIR
  fib-agents explain softmax_n64 kernel.cpp --dataset DIR
  fib-agents profile softmax_n64 kernel.cu --dataset DIR --device cuda:0
  fib-agents mcp DIR                   serves all tools to a client that starts it"""
_CODE = ("solution", "first", "second")
"""The parameters of tools that are code."""
_Command = Callable[[argparse.Namespace], int]
"""Runs one command; returns the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    run: _Command = arguments.run
    if run is _mcp:  # its standard output belongs to the protocol
        return run(arguments)
    return run_command("fib-agents", lambda: run(arguments))


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = CommandParser(prog="fib-agents", description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=formatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, text: str, run: _Command) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text, formatter_class=formatter)
        command.set_defaults(run=run)
        return command

    for tool in TOOLS:
        _add_tool(add, tool_schema(tool))
    _add_other_commands(add)
    return parser


def _add_tool(add: Callable[[str, str, _Command], argparse.ArgumentParser], schema: Mapping[str, Any]) -> None:
    """A command with the parameters of a tool: required ones by position, the others as options."""
    command = add(schema["name"].partition("_")[0], schema["description"].replace("%", "%%"), _tool)
    parameters = schema["parameters"]
    command.set_defaults(tool=schema["name"], names=list(parameters["properties"]))
    add_data_set(command)
    _add_workspace(command)
    command.add_argument("--json", action="store_true", help="print one JSON object")
    for name, about in parameters["properties"].items():
        text = about["description"].replace("%", "%%")
        if name in _CODE:
            command.add_argument(name, metavar="CODE", help="a file, a folder, or the name of a solution")
        elif name in parameters["required"]:
            command.add_argument(name, metavar=name.upper(), help=text)
        elif about["type"] == "boolean":  # `quick`
            command.add_argument("--full", dest=name, action="store_false", help="all workloads and checks, as ranked")
        else:
            is_list, kind = about["type"] == "array", int if about["type"] == "integer" else str
            option = f"--{name.replace('_', '-')}"
            command.add_argument(option, nargs="+" if is_list else None, type=kind, metavar="VALUE", help=text)


def _add_workspace(command: argparse.ArgumentParser) -> None:
    command.add_argument("--device", help="cpu or cuda:N (default: the first GPU, else cpu)")
    command.add_argument("--author", default="agent", help="author of new solutions (default: agent)")
    command.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="limit of a step (default 60)")
    command.add_argument(
        "--trust", action="store_true", help="run profilers and sanitizers outside of the sandbox, for code of your own"
    )


def _add_other_commands(add: Callable[[str, str, _Command], argparse.ArgumentParser]) -> None:
    server = add("mcp", "serve the tools to clients of the Model Context Protocol", _mcp)
    add_data_set(server, is_first=True)
    _add_workspace(server)
    add("schemas", "print the JSON Schemas of the tools", _schemas)
    guide = add("guide", "print a guide for a language model", _guide)
    guide.add_argument("name", metavar="NAME", nargs="?", choices=list(GUIDES), help=", ".join(GUIDES))


def _workspace(arguments: argparse.Namespace) -> Workspace:
    from fib_bench.cli.options import default_device

    return Workspace(
        root=data_set_of(arguments).absolute(),
        device=arguments.device or default_device(),
        author=arguments.author,
        timeout_seconds=arguments.timeout,
        trusts_solutions=arguments.trust,
    )


def _tool(arguments: argparse.Namespace) -> int:
    from fib_bench.authoring.sources import KernelFileError
    from fib_bench.cli.output import breaking_silence
    from fib_schema.display import escape_line

    def progress(done: int, total: int, message: str) -> None:
        note()
        print(f"{done}/{total} {escape_line(message)}", file=sys.stderr)

    given = ((name, getattr(arguments, name)) for name in arguments.names)
    values = {name: _code(value) if name in _CODE else value for name, value in given}
    try:
        with breaking_silence(partial(print, file=sys.stderr), lambda: str(arguments.tool)) as note:
            toolbox = Toolbox(attrs.evolve(_workspace(arguments), progress=progress))
            result = toolbox.call(arguments.tool, values)
        return _print(result, arguments)
    except KernelFileError as error:  # the source is not a kernel, such as one that does not parse
        if not arguments.json:
            raise
        print(json.dumps({"error": str(error)}, indent=1))
        return 1


def _code(text: str) -> Any:
    """The files at a path, or the text as a name."""
    from fib_bench.authoring.sources import read_sources

    path = Path(text)
    if not path.exists() and not path.suffix:
        return text
    return {source.path: source.content for source in read_sources(path)}


def _print(result: Result, arguments: argparse.Namespace) -> int:
    if arguments.json:
        json.dump(result.to_json(), sys.stdout, indent=1)
        print()
    else:
        print(result.to_text() if arguments.max_chars is None else result.to_text(arguments.max_chars))
    is_fine = [getattr(result, name, True) for name in ("is_passed", "is_callable", "is_clean")]
    return 0 if all(is_fine) else 1


def _schemas(_: argparse.Namespace) -> int:
    json.dump(get_all_tool_schemas(), sys.stdout, indent=1)
    print()
    return 0


def _guide(arguments: argparse.Namespace) -> int:
    if arguments.name is None:
        print("\n".join(f"{name}: {subject}" for name, subject in GUIDES.items()))
    else:
        print(read_guide(arguments.name), end="")
    return 0


def _mcp(arguments: argparse.Namespace) -> int:
    try:
        from .mcp_server import serve_stdio

        workspace = _workspace(arguments)
        workspace.open()  # a wrong path is reported here, and not to the client
        serve_stdio(workspace)
    except (FibError, OSError) as error:
        print(f"fib-agents: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
