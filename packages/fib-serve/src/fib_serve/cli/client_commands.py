"""Commands of the client: submit, watch and read submissions of a running service."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any

import attrs
from fib_bench.authoring.inference import infer_kernel
from fib_bench.authoring.solutions import base_name
from fib_bench.cli.kernels import choices_of
from fib_schema import Solution, SupportedLanguages, Trace, load_json_file, to_plain

from ..client import Client, SubmissionInfo
from ..errors import InvalidSetting
from .commands import Commands, print_json, print_table, say

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
    for name, run, text in (
        ("status", _status, "the state of a submission"),
        ("watch", _watch, "the progress of a submission until its end"),
        ("results", _results, "the traces of a submission"),
        ("cancel", _cancel, "cancel a submission"),
    ):
        _add(commands, name, run, text).add_argument("submission", metavar="ID")


def _add(commands: Commands, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text)
    parser.add_argument("--url", help=f"the address of the service (default: {_URL}, else {_DEFAULT_URL})")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=run)
    return parser


def _client(arguments: argparse.Namespace) -> Client:
    """A client; the token comes from the environment, where other users cannot see it."""
    address = arguments.url or os.environ.get(_URL) or _DEFAULT_URL
    if not address.startswith(("http://", "https://")) or not address.isprintable():
        raise InvalidSetting("--url", f"{address!r} is not an address of a service; write one such as {_DEFAULT_URL}")
    token = os.environ.get(_TOKEN) or None
    if token is not None and _TEXT_OF_TOKEN.fullmatch(token) is None:
        raise InvalidSetting(_TOKEN, "it is not a token: it has characters that no token has; copy it again")
    if (identifier := getattr(arguments, "submission", None)) is not None and _ID.fullmatch(identifier) is None:
        raise InvalidSetting("ID", f"{identifier!r} is not an id of a submission, which has 32 hexadecimal digits")
    return Client(address, token)


def _submit(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        solution = _solution(arguments, client)
        made = client.submit(solution, arguments.workloads, force=arguments.force)
        if not arguments.wait:
            return _show(arguments, made)
        say(f"submitted {made.solution} as {made.id}")
        done = _follow(client, made.id)
        _show(arguments, done)
        return 0 if done.verdict == "PASSED" else 1


def _solution(arguments: argparse.Namespace, client: Client) -> Solution:
    if arguments.file.suffix == ".json":
        return load_json_file(Solution, arguments.file)
    if arguments.definition is None:
        raise InvalidSetting("--definition", "name the definition that the kernel implements")
    definition = client.definition(arguments.definition)
    kernel = infer_kernel(arguments.file, definition, choices_of(arguments))
    name = arguments.name or base_name(arguments.file)
    return Solution(name, definition.name, "me", kernel.spec, kernel.sources)


def _status(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        return _show(arguments, client.get(arguments.submission))


def _watch(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        return _show(arguments, _follow(client, arguments.submission))


def _cancel(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        return _show(arguments, client.cancel(arguments.submission))


def _results(arguments: argparse.Namespace) -> int:
    with _client(arguments) as client:
        traces = list(client.traces(arguments.submission))
    if arguments.json:
        print_json([to_plain(trace) for trace in traces])
    else:
        print_table(("workload", "status", "latency_ms", "speedup"), map(_row, traces))
    return 0


def _row(trace: Trace) -> dict[str, object]:
    evaluation = trace.evaluation
    assert evaluation is not None
    row: dict[str, object] = {"workload": trace.workload.uuid, "status": str(evaluation.status)}
    if evaluation.performance is not None:
        row["latency_ms"] = f"{evaluation.performance.latency_ms:.4g}"
        row["speedup"] = f"{evaluation.performance.speedup_factor:.2f}"
    return row


def _follow(client: Client, submission: str) -> SubmissionInfo:
    """Report the progress of a submission; returns it at its end."""
    for found in client.follow(submission):
        say(f"{found.state}: {found.evaluated} of {found.planned} public workloads evaluated")
    return found


def _show(arguments: argparse.Namespace, submission: SubmissionInfo) -> int:
    if arguments.json:
        print_json(dict(submission.fields))
        return 0
    names = ("id", "definition", "solution", "state", "verdict", "passed", "planned", "is_ranked", "score")
    row = {**attrs.asdict(submission), "score": None if submission.score is None else f"{submission.score:.3f}"}
    print_table(names, [row])
    for label, text in (("error", submission.error), ("rejected", submission.rejection)):
        if text:
            print(f"{label}: {text}")
    public = (submission.summary or {}).get("public") or {}
    if public.get("problem"):
        print(public["problem"])
    return 0
