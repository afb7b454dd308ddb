"""Command ``fib-apply warm``: fills the caches that engines read when they start."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
from fib_compile.device import hardware_from_device, list_cuda_devices
from fib_schema import Definition, FibError, Solution, UnknownName
from fib_schema.display import counted

from .build_service.service import BuildService
from .commands import open_table, print_json, print_table_problems, problems_of_failure
from .compiled_measurement import CompiledJob, measure
from .compiled_times import CompiledTimes, CompiledTimesCache, unmeasurable_reason
from .config import ApplyConfig
from .hardware import local_hardware
from .key import ApplyKey
from .routing.native.module import prepare_native, request_native, wait_for_native
from .selection.table import ApplyTable

_NATIVE_SECONDS = 600.0
_COMPILED_SECONDS = 300.0
"""For all measurements in compiled graphs, each of which takes 10 to 30 s."""


def warm(options: argparse.Namespace) -> int:
    """``fib-apply warm``."""
    table, config, hardware = open_table(options)
    with problems_of_failure(table):
        selected = [_Warmed(*winner) for winner in _winners(table, hardware, options.definitions)]
    with _stdout_to_stderr():
        request_native(lambda: None)  # takes a minute: first, so that a warm-up that is interrupted has made them
        _build(table, selected, options.jobs)
        wait_for_native(_NATIVE_SECONDS)
        native_problem = prepare_native()
        compiled = _measure_compiled(table, selected, config, options.compiled_seconds)
    print_table_problems(table)
    if options.json:
        native = {"native_guards": {"ready": native_problem is None, "problem": native_problem}}
        measured = {"compiled": [one.to_plain() for one in compiled]}
        print_json({**_summary(selected, hardware), **native, **measured, "problems": list(table.problems)})
    else:
        print(*_summary_lines(selected, hardware), sep="\n")
        print(f"native guards: {'ready' if native_problem is None else f'not used: {native_problem}'}")
        print(*_compiled_lines(compiled), sep="\n", end="\n" if compiled else "")
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


# -- measurements in compiled graphs -----------------------------------------------------------------


@attrs.frozen
class _MeasuredKey:
    """A key of a solution in a compiled graph: the times, or the reason why there are none."""

    definition: str
    solution: str
    key: ApplyKey
    outcome: CompiledTimes | str

    def to_plain(self) -> dict[str, Any]:
        times = self.outcome if isinstance(self.outcome, CompiledTimes) else None
        where = {"definition": self.definition, "solution": self.solution, "axes": dict(self.key.axes)}
        pairs = None if times is None else {way: list(pair) for way, pair in times.pairs_us.items()}
        is_worth_it, problem = (None, self.outcome) if times is None else (times.is_worth_it, None)
        return {**where, "is_worth_it": is_worth_it, "pairs_us": pairs, "problem": problem}


def _measure_compiled(
    table: ApplyTable, selected: Sequence[_Warmed], config: ApplyConfig, seconds: float | None
) -> list[_MeasuredKey]:
    """Measure what is not known yet of the usable solutions, until the time is up; see `CompiledTimes`."""
    devices = {hardware_from_device(device): device for device in reversed((*list_cuda_devices(), "cpu"))}
    if seconds is None:
        seconds = _COMPILED_SECONDS if len(devices) > 1 else 0.0
    if not seconds or not config.inline_compiled:
        return []
    deadline, cache = time.monotonic() + seconds, CompiledTimesCache.in_folder()
    usable = {(one.definition, one.solution) for one in selected if one.problem is None}
    found = []
    for job in _compiled_jobs(table, usable, devices):
        known = {k: cache.load(job.definition, job.solution, k, job.hardware) for k in job.keys}
        outcomes: dict[ApplyKey, CompiledTimes | str | None] = {**known}
        for key in [key for key, times in known.items() if times is None]:
            outcomes[key] = unmeasurable_reason(job.definition, key)
        unknown = [key for key, outcome in outcomes.items() if outcome is None]
        if unknown:
            remaining = deadline - time.monotonic()
            made = measure(attrs.evolve(job, keys=unknown), remaining) if remaining > 0 else {}
            outcomes |= {key: made.get(key, "the time for measurements was over") for key in unknown}
        for key, outcome in outcomes.items():
            assert outcome is not None  # all unknown keys have one by now
            if key in unknown and isinstance(outcome, CompiledTimes):
                cache.save(job.definition, job.solution, key, job.hardware, outcome)
            print(f"compiled: {job.definition.name}, {key}: {outcome}", file=sys.stderr, flush=True)
            found.append(_MeasuredKey(job.definition.name, job.solution.name, key, outcome))
    return found


def _compiled_jobs(
    table: ApplyTable, usable: set[tuple[str, str]], devices: Mapping[str, str]
) -> Iterator[CompiledJob]:
    """The usable solutions that are selected on this machine, each with its keys; those of GPUs first."""
    for hardware in local_hardware():
        for name in sorted({definition for definition, _ in usable}):
            rankings = table.for_hardware(hardware).rankings(name)
            keys: dict[str, list[ApplyKey]] = {}
            for key, ranking in () if rankings is None else rankings.by_key.items():
                plain = ranking.plain
                if plain is not None and (plain.may_capture or hardware == hardware_from_device("cpu")):
                    keys.setdefault(plain.solution, []).append(key)
            for solution, its_keys in keys.items():
                if (name, solution) in usable:
                    pair = table.definition(name), table.solution(solution)
                    yield CompiledJob(*pair, its_keys, hardware, devices[hardware])


def _compiled_lines(compiled: Sequence[_MeasuredKey]) -> Iterator[str]:
    if compiled:
        times = [one.outcome for one in compiled if isinstance(one.outcome, CompiledTimes)]
        left = sum(not one.is_worth_it for one in times)
        counts = f"{counted(len(times), 'key')} measured, {left} left to the compiler"
        yield f"in compiled graphs: {counts}, {len(compiled) - len(times)} not measured"


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
