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
from fib_schema import Definition, FibError, Solution, TraceSet, UnknownName
from fib_schema.display import counted

from .build_service.service import BuildService
from .commands import open_table, print_json, print_table_problems, problems_of_failure
from .compiled_measurement import CompiledJob, measure
from .compiled_times import CompiledTimes, CompiledTimesCache
from .hardware import local_hardware
from .key import ApplyKey
from .opaque_cost import OpaqueCost, load_opaque_cost
from .opaque_measurement import measure_opaque_cost
from .recorded_values import NoValues, recorded_values
from .routing.native.module import prepare_native, request_native, wait_for_native
from .selection.table import ApplyTable

_NATIVE_SECONDS = 600.0
_COMPILED_SECONDS = 300.0
"""For all measurements in compiled graphs, each of which takes 10 to 30 s."""
_TIME_IS_OVER = "the time for measurements was over"


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
        compiled = _measure_compiled(table, selected, options)
    print_table_problems(table)
    if options.json:
        native = {"native_guards": {"ready": native_problem is None, "problem": native_problem}}
        measured = compiled.to_plain()
        print_json({**_summary(selected, hardware), **native, **measured, "problems": list(table.problems)})
    else:
        print(*_summary_lines(selected, hardware), sep="\n")
        print(f"native guards: {'ready' if native_problem is None else f'not used: {native_problem}'}")
        for line in compiled.lines():
            print(line)
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
    hardware: str
    key: ApplyKey
    outcome: CompiledTimes | str
    is_captured: bool
    """The setting `captures_compiled`."""

    def is_worth_it(self, costs: Mapping[str, OpaqueCost | str]) -> bool | None:
        """Whether graphs hold the solution; None if it was not measured."""
        if isinstance(self.outcome, str):
            return None
        cost = _cost(self.hardware, costs.get(self.hardware, _TIME_IS_OVER))
        return self.outcome.is_worth_it(cost, is_captured=self.is_captured)


@attrs.frozen
class _CompiledReport:
    """Measurements in compiled graphs."""

    costs: Mapping[str, OpaqueCost | str] = attrs.field(factory=dict)
    """By hardware, the cost of an opaque operator, or the reason why it was not measured."""
    keys: Sequence[_MeasuredKey] = ()

    def to_plain(self) -> dict[str, Any]:
        """The measurements as plain objects, for JSON."""
        costs = [
            {"hardware": hardware, "calls_us": None, "replays_us": None, "problem": cost}
            if isinstance(cost, str)
            else {"hardware": hardware, "calls_us": cost.calls_us, "replays_us": cost.replays_us, "problem": None}
            for hardware, cost in self.costs.items()
        ]
        return {"opaque_operators": costs, "compiled": [self._plain_key(one) for one in self.keys]}

    def _plain_key(self, one: _MeasuredKey) -> dict[str, Any]:
        where = {"definition": one.definition, "solution": one.solution, "axes": dict(one.key.axes)}
        times = one.outcome if isinstance(one.outcome, CompiledTimes) else None
        pairs = None if times is None else {way: list(pair) for way, pair in times.pairs_us.items()}
        problem = one.outcome if times is None else None
        return {**where, "is_worth_it": one.is_worth_it(self.costs), "pairs_us": pairs, "problem": problem}

    def lines(self) -> Iterator[str]:
        """The costs and counts."""
        for hardware, cost in self.costs.items():
            yield f"on {hardware}: {f'not measured: {cost}; ' if isinstance(cost, str) else ''}{_cost(hardware, cost)}"
        if self.keys:
            decisions = [one.is_worth_it(self.costs) for one in self.keys]
            counts = f"{counted(len(decisions) - decisions.count(None), 'key')} measured"
            left = f"{decisions.count(False)} left to the compiler"
            yield f"in compiled graphs: {counts}, {left}, {decisions.count(None)} not measured"


def _cost(hardware: str, cost: OpaqueCost | str) -> OpaqueCost:
    """The cost that counts: the measured or the assumed one."""
    return OpaqueCost.assumed(hardware) if isinstance(cost, str) else cost


def _measure_compiled(table: ApplyTable, selected: Sequence[_Warmed], options: argparse.Namespace) -> _CompiledReport:
    """Measure what is not known yet of the usable solutions, until the time is up; see `CompiledTimes`."""
    devices = {hardware_from_device(device): device for device in reversed((*list_cuda_devices(), "cpu"))}
    seconds: float | None = options.compiled_seconds
    if seconds is None:
        seconds = _COMPILED_SECONDS if len(devices) > 1 else 0.0
    if not seconds:
        return _CompiledReport()
    deadline = time.monotonic() + seconds
    usable = {
        (one.definition, one.solution)
        for one in selected
        if one.problem is None and table.settings(one.definition).inline_compiled
    }
    jobs = [
        attrs.evolve(job, baseline=table.baseline(job.definition.name))
        for job in _compiled_jobs(table, usable, devices)
    ]
    measured_on = dict.fromkeys(job.hardware for job in jobs)
    costs = {hardware: _measured_cost(hardware, devices[hardware], deadline) for hardware in measured_on}
    # Unsigned values must not reach signed kernels.
    trace_set = None if options.settings.required_signers() is not None else TraceSet.from_path(options.dataset)
    keys: list[_MeasuredKey] = []
    for job in jobs:
        is_captured = table.settings(job.definition.name).captures_compiled
        keys.extend(_measured_keys(job, trace_set, deadline, is_captured=is_captured))
    return _CompiledReport(costs, keys)


def _measured_cost(hardware: str, device: str, deadline: float) -> OpaqueCost | str:
    """The cost of an opaque operator, measured unless it is known."""
    cost: OpaqueCost | str = load_opaque_cost(hardware)
    if isinstance(cost, OpaqueCost) and not cost.is_measured:
        remaining = deadline - time.monotonic()
        cost = measure_opaque_cost(hardware, device, remaining) if remaining > 0 else _TIME_IS_OVER
    print(f"compiled: {hardware}: {cost}", file=sys.stderr, flush=True)
    return cost


def _measured_keys(
    job: CompiledJob, trace_set: TraceSet | None, deadline: float, *, is_captured: bool
) -> Iterator[_MeasuredKey]:
    """The times of all keys of a job; those that are not known are measured and kept."""
    cache = CompiledTimesCache.in_folder()
    outcomes: dict[ApplyKey, CompiledTimes | str] = {}
    values: dict[str, Mapping[str, Any]] = {}
    unknown = []
    for key in job.keys:
        times = cache.load(job.definition, job.solution, key, job.hardware, job.baseline)
        if times is not None:
            outcomes[key] = times
            continue
        try:
            values[key.encode] = recorded_values(trace_set, job.definition, key)
            unknown.append(key)
        except NoValues as error:
            outcomes[key] = str(error)
    remaining = deadline - time.monotonic()
    if unknown and remaining > 0:
        made = measure(attrs.evolve(job, keys=unknown, values=values), remaining)
        for key, outcome in made.items():
            if isinstance(outcome, CompiledTimes):
                cache.save(job.definition, job.solution, key, job.hardware, outcome, job.baseline)
        outcomes |= made
    for key in job.keys:
        outcome = outcomes.get(key, _TIME_IS_OVER)
        print(f"compiled: {job.definition.name}, {key}: {outcome}", file=sys.stderr, flush=True)
        yield _MeasuredKey(job.definition.name, job.solution.name, job.hardware, key, outcome, is_captured)


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
