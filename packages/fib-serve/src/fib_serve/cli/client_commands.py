"""Commands of the client: submit, watch and read submissions of a running service. They import no service."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs
from fib_schema import BuildSpec, Solution, SourceFile, SupportedLanguages, load_json_file, to_plain
from fib_schema.command import CommandParser
from fib_schema.display import aligned

from ..client import Client, SubmissionInfo
from ..errors import InvalidSetting
from ..starter import starter_of

Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"  # noqa: SLF001 - it has no public name
_URL, _TOKEN = "FIB_SERVE_URL", "FIB_SERVE_TOKEN"
_DEFAULT_URL = "http://127.0.0.1:8000"
_TEXT_OF_TOKEN = re.compile(r"[\x21-\x7e]+")
_ID = re.compile("[0-9a-f]{32}")


def add_client(commands: Commands) -> None:
    """Add the commands."""
    submit = _add(commands, "submit", _submit, "submit a kernel, or a solution as JSON")
    submit.add_argument(
        "file", type=Path, metavar="FILE", help="a .py, .cu or .cpp file, a folder, or a solution (.json)"
    )
    submit.add_argument("--definition", metavar="NAME", help="what the kernel computes")
    submit.add_argument("--name", help="name of the solution (default: that of the file)")
    submit.add_argument("--language", choices=[str(language) for language in SupportedLanguages])
    submit.add_argument("--entry", metavar="FUNCTION", help="the function to call, or FILE::FUNCTION")
    submit.add_argument("--style", choices=("destination", "return"))
    submit.add_argument("--hardware", nargs="+", metavar="NAME", help="such as cpu, cuda or H100")
    submit.add_argument("--workloads", nargs="+", metavar="UUID", help="only these, unranked")
    submit.add_argument("--force", action="store_true", help="evaluate it again")
    submit.add_argument("--wait", action="store_true", help="wait for the result; the exit code is 1 unless it passed")
    _add(commands, "definitions", _definitions, "the definitions of the contest")
    for name, run, argument, metavar, text in (
        ("status", _status, "submission", "ID", "the state of a submission"),
        ("watch", _watch, "submission", "ID", "the progress of a submission until its end"),
        ("results", _results, "submission", "ID", "the traces of a submission, each a line of JSON"),
        ("leaderboard", _leaderboard, "definition", "NAME", "the best submission of each user"),
        ("starter", _starter, "definition", "NAME", "a kernel to begin with: fib-serve starter NAME > kernel.py"),
    ):
        _add(commands, name, run, text).add_argument(argument, metavar=metavar)


def _add(
    commands: Commands, name: str, run: Callable[[Client, argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    def command(arguments: argparse.Namespace) -> int:
        with _client(arguments) as client:
            return run(client, arguments)

    parser = commands.add_parser(name, help=text)
    parser.add_argument("--url", help=f"the address of the service (default: {_URL}, else {_DEFAULT_URL})")
    parser.set_defaults(command=command)
    return parser


def _client(arguments: argparse.Namespace) -> Client:
    """A client; the token comes from the environment, where other users cannot see it."""
    if (identifier := getattr(arguments, "submission", None)) is not None and _ID.fullmatch(identifier) is None:
        raise InvalidSetting("ID", f"{identifier!r} is not an id of a submission, which has 32 hexadecimal digits")
    address = arguments.url or os.environ.get(_URL) or _DEFAULT_URL
    if not address.startswith(("http://", "https://")) or not address.isprintable():
        raise InvalidSetting("--url", f"{address!r} is not an address of a service; write one such as {_DEFAULT_URL}")
    token = os.environ.get(_TOKEN) or None
    if token is not None and _TEXT_OF_TOKEN.fullmatch(token) is None:
        raise InvalidSetting(_TOKEN, "it is not a token: it has characters that no token has; copy it again")
    return Client(address, token)


def _submit(client: Client, arguments: argparse.Namespace) -> int:
    made = client.submit(_solution(client, arguments), arguments.workloads, force=arguments.force)
    if not arguments.wait:
        return _show(made)
    say(f"submitted {made.solution} as {made.id}")
    done = _follow(client, made.id)
    _show(done)
    return 0 if done.verdict == "PASSED" else 1


def _solution(client: Client, arguments: argparse.Namespace) -> Solution:
    if arguments.file.suffix == ".json":
        return load_json_file(Solution, arguments.file)
    if arguments.definition is None:
        raise InvalidSetting("--definition", "name the definition that the kernel implements")
    try:
        from fib_bench.authoring.inference import infer_kernel  # the other commands do without fib-bench
        from fib_bench.authoring.solutions import base_name
        from fib_bench.cli.kernels import choices_of
    except ModuleNotFoundError:
        return _stated_solution(arguments)
    definition = client.definition(arguments.definition)
    kernel = infer_kernel(arguments.file, definition, choices_of(arguments))
    name = arguments.name or base_name(arguments.file)
    return Solution(name, definition.name, "me", kernel.spec, kernel.sources)


def _stated_solution(arguments: argparse.Namespace) -> Solution:
    """The solution of one file that options describe, where fib-bench is not installed, which infers what they say."""
    path, entry, stated = arguments.file, arguments.entry, ("language", "entry", "style", "hardware")
    if missing := [f"--{name}" for name in stated if getattr(arguments, name) is None]:
        problem = "fib-bench is not installed, which infers what a kernel is (pip install fib-bench)"
        raise InvalidSetting(str(path), f"{problem}; without it state {', '.join(missing)}")
    try:
        sources = (SourceFile(path.name, path.read_text("utf-8")),)
    except UnicodeDecodeError as error:
        raise InvalidSetting(str(path), f"is not text: {error}") from None
    entry = entry if "::" in entry else f"{path.name}::{entry}"
    spec = BuildSpec(arguments.language, arguments.hardware, entry, (), arguments.style == "destination")
    return Solution(arguments.name or path.stem, arguments.definition, "me", spec, sources)


def _status(client: Client, arguments: argparse.Namespace) -> int:
    return _show(client.get(arguments.submission))


def _watch(client: Client, arguments: argparse.Namespace) -> int:
    return _show(_follow(client, arguments.submission))


def _follow(client: Client, submission: str) -> SubmissionInfo:
    """Report the progress of a submission; returns it at its end."""
    for found in client.follow(submission):
        say(f"{found.state}: {found.evaluated} of {found.planned} public workloads evaluated")
    return found


def _show(submission: SubmissionInfo) -> int:
    names = ("id", "definition", "solution", "state", "verdict", "passed", "planned", "is_ranked", "speedup")
    print_table(names, [{**attrs.asdict(submission), "speedup": _speedup(submission)}])
    public, hidden = ((submission.summary or {}).get(part) or {} for part in ("public", "hidden"))
    texts = {"error": submission.error, "rejected": submission.rejection, "problem": public.get("problem")}
    texts |= {"hidden workloads": hidden.get("verdict"), "flags": ", ".join(public.get("flags") or ())}
    for label, text in texts.items():
        if text:
            print(f"{label}: {text}")
    return 0


def _speedup(submission: SubmissionInfo) -> object:
    """The speedup that the pages print."""
    summary = submission.summary or {}
    return (summary.get("hidden") or summary.get("public") or {}).get("speedup_text")


def _results(client: Client, arguments: argparse.Namespace) -> int:
    for trace in client.traces(arguments.submission):
        print(json.dumps(to_plain(trace)))
    return 0


def _definitions(client: Client, _: argparse.Namespace) -> int:
    print_table(("name", "description"), client.definitions())
    return 0


def _leaderboard(client: Client, arguments: argparse.Namespace) -> int:
    found = enumerate(client.leaderboard(arguments.definition), 1)
    rows = [{**attrs.asdict(each), "rank": rank, "speedup": _speedup(each)} for rank, each in found]
    print_table(("rank", "user", "solution", "speedup", "id"), rows)
    return 0


def _starter(client: Client, arguments: argparse.Namespace) -> int:
    print(starter_of(client.definition(arguments.definition)), end="")
    return 0


def say(message: str) -> None:
    """Print a message for people on stderr."""
    print(message, file=sys.stderr, flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows under headings."""
    print(*aligned([columns, *([_text(row.get(column)) for column in columns] for row in rows)]), sep="\n")


def _text(value: object) -> str:
    if value is None:
        return "-"
    return "yes" if value is True else "no" if value is False else str(value)
