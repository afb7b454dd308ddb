"""Command ``fib-apply warm``: fills the caches that engines read when they start."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
from fib_schema import Definition, FibError, Solution, UnknownName
from fib_schema.display import counted

from .build_service.service import BuildService
from .commands import open_table, print_json, print_table_problems, problems_of_failure
from .routing.native.module import prepare_native, request_native, wait_for_native
from .selection.table import ApplyTable

_NATIVE_SECONDS = 600.0


def warm(options: argparse.Namespace) -> int:
    """``fib-apply warm``."""
    table, hardware = open_table(options)
    with problems_of_failure(table):
        selected = [_Warmed(*winner) for winner in _winners(table, hardware, options.definitions)]
    with _stdout_to_stderr():
        request_native(lambda: None)  # takes a minute: first, so that a warm-up that is interrupted has made them
        _build(table, selected, options.jobs)
        wait_for_native(_NATIVE_SECONDS)
        native_problem = prepare_native()
    print_table_problems(table)
    if options.json:
        native = {"native_guards": {"ready": native_problem is None, "problem": native_problem}}
        print_json({**_summary(selected, hardware), **native, "problems": [*map(str, table.problems)]})
    else:
        print(*_summary_lines(selected, hardware), sep="\n")
        print(f"native guards: {'ready' if native_problem is None else f'not used: {native_problem}'}")
    return 1 if _left_out(selected) else 0


@attrs.define
class _Warmed:
    """A selected solution, and the problem if it is not usable."""

    definition: str
    solution: str
    keys: int
    problem: str | None = None


def _winners(
    table: ApplyTable, hardware: Sequence[str], definitions: Sequence[str] | None
) -> Iterator[tuple[str, str, int]]:
    """Definition, solution and number of keys that it wins, most keys first."""
    for name in definitions or ():
        if name not in table.definitions:
            raise UnknownName("definition", name, table.definitions)
    keys: dict[tuple[str, str], int] = {}
    for name in hardware:
        for definition, solution, count in table.for_hardware(name).winners():
            if definitions is None or definition in definitions:
                keys[definition, solution] = keys.get((definition, solution), 0) + count
    for (definition, solution), count in sorted(keys.items(), key=lambda item: (-item[1], item[0])):
        yield definition, solution, count


def _build(table: ApplyTable, selected: Sequence[_Warmed], jobs: int | None) -> None:
    """Build, probe and load solutions; set their problems."""
    pairs: list[tuple[Definition, Solution]] = []
    for one in selected:
        try:
            pairs.append((table.definition(one.definition), table.solution(one.solution)))
        except (FibError, OSError) as error:  # a file that was removed or changed affects only its own solution
            one.problem = str(error)
    service = BuildService()
    service.build_ahead(pairs, _Progress(service).show, jobs=jobs)
    for one in selected:
        one.problem = one.problem or service.problem(one.solution)
        if one.problem is None and service.find(one.solution) is None:
            one.problem = "it was not built"  # no thread could be started, or another solution has its name


class _Progress:
    """Prints a line for each finished solution."""

    def __init__(self, service: BuildService) -> None:
        self._service = service
        self._done = 0

    def show(self, done: int, total: int, name: str) -> None:
        if done == self._done:  # it is compiled or probed, but not loaded yet
            return
        self._done = done
        state = "ready" if self._service.problem(name) is None else "left out"
        print(f"[{done}/{total}] {state} {name}", file=sys.stderr, flush=True)


def _left_out(warmed: Iterable[_Warmed]) -> list[_Warmed]:
    return [one for one in warmed if one.problem is not None]


def _summary(selected: Sequence[_Warmed], hardware: Sequence[str]) -> dict[str, Any]:
    left_out = len(_left_out(selected))
    counts = {"ready": len(selected) - left_out, "left_out": left_out}
    return {"hardware": list(hardware), "solutions": [attrs.asdict(one) for one in selected], "counts": counts}


def _summary_lines(selected: Sequence[_Warmed], hardware: Sequence[str]) -> Iterator[str]:
    left_out = _left_out(selected)
    yield f"{len(selected) - len(left_out)} ready, {len(left_out)} left out, of those selected on {', '.join(hardware)}"
    for one in left_out:
        yield f"\n{one.solution} ({one.definition}, {counted(one.keys, 'key')}): {one.problem}"


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Redirect what solutions print on load, in Python or native code, from stdout to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
