"""Checks of the adapters against the installed FlashInfer: bit-equal while nothing is enabled, correct when routed.

For each call: outputs with the patch installed and nothing enabled are bit-equal to unpatched ones; a traced
workload names the definition; a substituted solution agrees within the tolerance that its trace recorded;
FlashInfer's own baseline, benchmarked here and chosen, has the device time of the unpatched call; and what the
host takes more. Prints a table, writes results.json, and exits 1 if anything is not so.

usage: flashinfer_adapters.py DATA_SET [--out DIR] [--only NAME ...] [--dump DIR]
       flashinfer_adapters.py --stand-ins 0.6.4 [--timed]     on the CPU, with the stand-ins of fib-integrations' tests
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import torch
from fib_apply import ApplyConfig, ApplyRuntime, enable_apply
from fib_bench import Benchmark, BenchmarkConfig, EvalConfig
from fib_compile import BuilderRegistry
from fib_compile.device import hardware_from_device
from fib_integrations import install_flashinfer_integrations, uninstall_flashinfer_integrations
from fib_integrations.adapters import select_adapters
from fib_integrations.baselines import baseline_name, make_baselines
from fib_schema import (
    BuildSpec,
    Correctness,
    Definition,
    Environment,
    Evaluation,
    Performance,
    RandomInput,
    Solution,
    SourceFile,
    Trace,
    TraceSet,
    Workload,
    load_json_file,
)
from fib_tracer import TracingConfig, enable_tracing
from flashinfer_calls import CASES, Call, Case, Sizes

HERE = Path(__file__).resolve()
SUPPORT = HERE.parents[1] / "packages" / "fib-integrations" / "tests" / "support"
DEVICE_LIMIT = 1.02
EQUAL_KERNELS = ApplyConfig(require_speedup=False)
"""Calls are routed to the kernels that they replace."""
HOST_LIMITS_NS = {"nothing enabled": 200.0, "rmsnorm": 1500.0, "paged decode": 3000.0}
"""Limits of the host time added to a call: by all patches, and by a hit."""
_ROUNDS, _CHUNK = 101, 40
"""Host times: the number of alternating samples, and of calls per sample; the result is the median difference."""
_DEVICE_ROUNDS = 5
_COMPILE_SECONDS = 180.0
"""The limit for compiling the kernels of one call."""
_HARDLY_SECONDS = 0.01
"""The time for measuring a latency on the CPU, where only statuses and tolerances are used."""


@attrs.define
class Row:
    """The results of one call."""

    case: str
    definition: str
    failures: list[str] = attrs.field(factory=list)
    cannot_run: str = ""
    is_bit_equal: bool | None = None
    is_traced: bool | None = None
    baseline_status: str = ""
    largest_error: float | None = None
    """The absolute error of the substituted solution."""
    device_us: float | None = None
    device_ratio: float | None = None
    idle_ns: float | None = None
    hit_ns: float | None = None


@attrs.frozen
class Bench:
    """The library, device, data set and sizes of a run."""

    fi: Any
    device: str
    work: Path
    """The data set that is created during the run."""
    sizes: Sizes

    is_timed: bool
    """Whether times are meaningful: stand-ins compute on the host."""

    @property
    def rounds(self) -> int:
        """The number of samples of host times."""
        return _ROUNDS if self.is_timed else 1

    @property
    def chunk(self) -> int:
        """The number of calls per sample."""
        return _CHUNK if self.is_timed else 1

    def call(self, case: Case) -> Call:
        """A call of a case, with new arguments."""
        return case.prepare(self.fi, self.sizes)

    def wait(self) -> None:
        """Synchronise with the device."""
        if self.device != "cpu":
            torch.cuda.synchronize()


Rows: TypeAlias = dict[str, Row]
"""By the case's name."""


@contextmanager
def _patched(also: Sequence[str]) -> Iterator[None]:
    """Install the default and further adapters; each installation searches all modules and objects for references."""
    install_flashinfer_integrations(also=also)
    try:
        yield
    finally:
        uninstall_flashinfer_integrations()


def _while_patched(cases: Sequence[Case]) -> Iterator[Case]:
    """Each case while its adapters are installed; consecutive cases with the same adapters share an installation."""
    for also, group in groupby(cases, lambda case: case.also):
        with _patched(also):
            yield from group


def _say(text: str) -> None:
    print(f"{time.monotonic() - _STARTED:6.1f} s  {text}", file=sys.stderr, flush=True)


_STARTED = time.monotonic()


@contextmanager
def _noting_errors(row: Row, what: str) -> Iterator[None]:
    """Record an error as a failure of this case, and continue with the others."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever the library or a solution raises
        traceback.print_exc()
        row.failures.append(f"{what}: {type(error).__name__}: {error}"[:500])
    _say(f"{what}: {row.case}")


def _results(bench: Bench, case: Case) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(11)  # of samples
    found = tuple(tensor.clone() for tensor in bench.call(case)())
    bench.wait()
    return found


# -- what is right -----------------------------------------------------------------------------------


def check_nothing_changes(bench: Bench, cases: Sequence[Case], rows: Rows) -> dict[str, tuple[torch.Tensor, ...]]:
    """Compare outputs with and without the patch, which must be bit-equal; returns those without."""
    expected = {case.name: _results(bench, case) for case in cases}
    for case in _while_patched(cases):
        row = rows[case.name]
        with _noting_errors(row, "nothing enabled"):
            row.is_bit_equal = all(map(torch.equal, _results(bench, case), expected[case.name]))
        if not row.is_bit_equal:
            row.failures.append("outputs differ with the patch installed")
    return expected


def trace_calls(bench: Bench, cases: Sequence[Case], rows: Rows) -> None:
    """Trace one call of each case into the data set."""
    config = TracingConfig("dump_all", filter_policy="keep_first")
    for case in _while_patched(cases):
        with _noting_errors(rows[case.name], "traced"), enable_tracing(bench.work, config) as runtime:
            bench.call(case)()
            bench.wait()
            runtime.flush()
    traced = TraceSet.from_path(bench.work).workloads
    for case in cases:
        rows[case.name].is_traced = bool(traced.get(case.definition))
        if not rows[case.name].is_traced:
            rows[case.name].failures.append(f"no workload of {case.definition} was traced")


def benchmark(bench: Bench, rows: Iterable[Row]) -> TraceSet:
    """Benchmark FlashInfer's baselines, and the references as solutions, on the traced workloads."""
    trace_set = TraceSet.from_path(bench.work)
    own = make_baselines(trace_set, select_adapters(None)).solutions
    trace_set.add_solutions(own if bench.device != "cpu" else map(_for_cpu, own))
    trace_set.add_solutions(_substitute(definition) for definition in trace_set.definitions.values())
    config = BenchmarkConfig(
        device=bench.device,
        profile_baseline=False,
        defaults=EvalConfig(
            warmup_runs=2, iterations=5, num_trials=1, measure_seconds=None if bench.is_timed else _HARDLY_SECONDS
        ),
    )
    with Benchmark(trace_set, config) as run:
        run.run_all()
    measured = TraceSet.from_path(bench.work)
    for row in rows:
        _note_statuses(measured, row)
    return measured


def _note_statuses(measured: TraceSet, row: Row) -> None:
    found = {t.solution: t.evaluation for t in measured.traces.get(row.definition, ()) if t.evaluation is not None}
    own = found.get(baseline_name(measured.get_definition(row.definition)))
    row.baseline_status = "none" if own is None else str(own.status)
    for name, evaluation in found.items():
        if str(evaluation.status) != "PASSED":
            row.failures.append(f"{name}: {evaluation.status}: {evaluation.log[-300:]}")


def _for_cpu(solution: Solution) -> Solution:
    """A baseline that runs with the stand-ins on the CPU."""
    return attrs.evolve(solution, spec=attrs.evolve(solution.spec, target_hardware=("cpu",)))


def _substitute(definition: Definition) -> Solution:
    """The reference as a solution."""
    spec = BuildSpec("python", ["cpu", "cuda"], "main.py::run", destination_passing_style=False)
    name = f"substitute_{definition.name}"
    return Solution(name, definition.name, "reference", spec, [SourceFile("main.py", definition.reference)])


def _only(measured: TraceSet, definition: str, solution: str) -> TraceSet:
    """A data set with one solution to choose."""
    kept = [s for s in measured.solutions[definition] if s.name == solution]
    traces = [t for t in measured.traces[definition] if t.solution == solution]
    return TraceSet(
        None, {definition: measured.get_definition(definition)}, {definition: kept}, {}, {definition: traces}
    )


def probe_together(trace_sets: Iterable[TraceSet]) -> None:
    """Probe the solutions of several data sets in one process instead of one each; the results are cached."""
    definitions: dict[str, Definition] = {}
    solutions: dict[str, Any] = {}
    traces: dict[str, Any] = {}
    for trace_set in trace_sets:
        definitions |= trace_set.definitions
        solutions |= trace_set.solutions
        traces |= trace_set.traces
    enable_apply(TraceSet(None, definitions, solutions, {}, traces), EQUAL_KERNELS).stop()


def check_substitutions(
    bench: Bench, cases: Sequence[Case], rows: Rows, measured: TraceSet, expected: dict[str, tuple[torch.Tensor, ...]]
) -> None:
    """Check that the reference serves in place of the library, with the same results."""
    substitutes = {case.name: _only(measured, case.definition, f"substitute_{case.definition}") for case in cases}
    probe_together(substitutes.values())
    for case in _while_patched(cases):
        row = rows[case.name]
        with (
            _noting_errors(row, "substituted"),
            enable_apply(substitutes[case.name], EQUAL_KERNELS, stats=True) as runtime,
        ):
            found = _results(bench, case)
            stats = runtime.stats().get(case.definition)
            if stats is None or not stats.hits:
                row.failures.append(f"the solution did not serve: {dict(stats.misses) if stats else 'never asked'}")
            else:
                _compare(row, found, expected[case.name], *_tolerance(runtime, case.definition, bench.device))


def _compare(
    row: Row,
    found: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    atol: float,
    rtol: float,
    required_ratio: float,
) -> None:
    errors = [(a.double() - b.double()).abs() for a, b in zip(found, expected, strict=True)]
    row.largest_error = max(float(error.max()) for error in errors)
    for a, b, error in zip(found, expected, errors, strict=True):
        share = float(((error <= atol) | (error <= rtol * b.double().abs()) | (a == b)).double().mean())
        if a.dtype != b.dtype or a.shape != b.shape or share < required_ratio:
            row.failures.append(f"substituted: {share:.4f} of {list(a.shape)} within {atol:g} and {rtol:g}")


def _tolerance(runtime: ApplyRuntime, definition: str, device: str) -> tuple[float, float, float]:
    """The tolerances in the chosen solution's trace."""
    choices = runtime.table.rankings(definition)[hardware_from_device("cuda:0" if device == "cuda" else device)]
    (ranking,) = choices.by_key.values()
    candidate = ranking.candidates[0]
    defaults = (candidate.atol, 1e-2), (candidate.rtol, 1e-2), (candidate.required_matched_ratio, 1.0)
    atol, rtol, ratio = (default if value is None else value for value, default in defaults)
    return atol, rtol, ratio


# -- what it costs -----------------------------------------------------------------------------------


def check_device_times(bench: Bench, cases: Sequence[Case], rows: Rows, measured: TraceSet) -> None:
    """Compare device times of unpatched calls and of calls routed to FlashInfer's baselines, alternating."""
    timed = [case for case in cases if rows[case.name].baseline_status == "PASSED"]
    if bench.device == "cpu":
        return
    names = {case.definition: baseline_name(measured.get_definition(case.definition)) for case in timed}
    runtimes = {
        case.name: ApplyRuntime(_only(measured, case.definition, names[case.definition]), EQUAL_KERNELS)
        for case in timed
    }
    unpatched, routed = (defaultdict[str, list[float]](list) for _ in range(2))
    for _ in range(_DEVICE_ROUNDS):
        for case in timed:
            unpatched[case.name].append(_device_us(bench.call(case)))
        for case in _while_patched(timed):
            with _noting_errors(rows[case.name], "device time"), runtimes[case.name]:
                routed[case.name].append(_device_us(bench.call(case)))
    for case in timed:
        row = rows[case.name]
        row.device_us = statistics.median(unpatched[case.name])
        row.device_ratio = statistics.median(routed[case.name] or [0.0]) / row.device_us
        if row.device_ratio > DEVICE_LIMIT:
            row.failures.append(f"device time is {row.device_ratio:.3f} of the unpatched call's")


def _device_us(call: Call, count: int = 20) -> float:
    """The total time of a call's kernels."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(count):
            call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / count


def check_idle_times(bench: Bench, cases: Sequence[Case], rows: Rows) -> None:
    """Measure the host time that patches add to a call while nothing is enabled."""
    for also, group in groupby(cases, lambda case: case.also):
        with _switch(also) as switch:
            for case in group:
                with _noting_errors(rows[case.name], "host time, nothing enabled"):
                    call = bench.call(case)
                    rows[case.name].idle_ns = _added_ns(bench, call, call, switch)


@contextmanager
def _switch(also: Sequence[str]) -> Iterator[Callable[[bool], None]]:
    """A function that swaps the patches of all targets and the originals, without rebinding other names."""
    paths = [target.path for adapter in select_adapters(None, also) for target in adapter.targets]
    places = [place for path in paths if (place := _place(path)) is not None]
    originals = [vars(owner)[name] for owner, name in places]
    with _patched(also):
        patches = [vars(owner)[name] for owner, name in places]

        def switch(is_patched: bool) -> None:
            for (owner, name), value in zip(places, patches if is_patched else originals, strict=True):
                setattr(owner, name, value)

        try:
            yield switch
        finally:
            switch(True)


def _place(path: str) -> tuple[Any, str] | None:
    """The owner of a function, a module or a class, and its name; None if it does not exist."""
    owner_path, _, name = path.rpartition(".")
    owner = sys.modules.get(owner_path)
    if owner is None:
        module, _, class_name = owner_path.rpartition(".")
        owner = getattr(sys.modules.get(module), class_name, None)
    return None if owner is None or name not in vars(owner) else (owner, name)


def check_hit_times(bench: Bench, cases: Sequence[Case], rows: Rows, measured: TraceSet) -> None:
    """Measure the host time that a hit adds to a direct call of the solution."""
    claims = claims_of(bench, cases, rows, measured)
    probe_together(claimed for claimed, _ in claims.values())
    for case in _while_patched([case for case in cases if case.name in claims]):
        with _noting_errors(rows[case.name], "host time of a hit"):
            rows[case.name].hit_ns = _hit_ns(bench, case, *claims[case.name])


Claim: TypeAlias = tuple[TraceSet, tuple[Any, ...]]
"""A data set of one definition with a solution that computes nothing, and the inputs of a case's call."""


def claims_of(bench: Bench, cases: Sequence[Case], rows: Rows, measured: TraceSet) -> dict[str, Claim]:
    """The claim that each case's call is to hit, by the case's name."""
    found = {}
    for case in _while_patched(cases):
        with _noting_errors(rows[case.name], "inputs"):
            seen: list[tuple[Any, ...]] = []
            with _noting(case.definition, seen):
                bench.call(case)()
            (inputs,) = seen
            definition = measured.get_definition(case.definition)
            claimed = _claimed(definition, _empty(definition, inputs), inputs, bench.device)
            found[case.name] = claimed, inputs
    return found


def _hit_ns(bench: Bench, case: Case, claimed: TraceSet, inputs: Sequence[Any]) -> float:
    (solution,) = claimed.solutions[case.definition]
    direct = BuilderRegistry.get_instance().build(claimed.get_definition(case.definition), solution).function
    with enable_apply(claimed, EQUAL_KERNELS, stats=True) as runtime:
        bench.call(case)()
        stats = runtime.stats().get(case.definition)
        if stats is None or not stats.hits:
            raise LookupError(f"no hit: {dict(stats.misses) if stats else 'never asked'}")
    with enable_apply(claimed, EQUAL_KERNELS):
        call = bench.call(case)
        for _ in range(3):
            call()
        return _added_ns(bench, lambda: direct(*inputs), call)


@contextmanager
def _noting(definition: str, seen: list[tuple[Any, ...]]) -> Iterator[None]:
    from fib_apply import set_apply_hook

    set_apply_hook(lambda name, inputs: seen.append(tuple(inputs.values())) if name == definition else None)
    try:
        yield
    finally:
        set_apply_hook(None)


def _empty(definition: Definition, inputs: Sequence[Any]) -> Solution:
    shapes = definition.get_output_shapes(definition.get_axes_values_from_inputs(inputs))
    device = next(str(value.device) for value in inputs if isinstance(value, torch.Tensor))
    made = [
        f"torch.zeros({list(shape)}, dtype=torch.{spec.dtype}, device={device!r})"
        for shape, spec in zip(shapes, definition.outputs.values(), strict=True)
    ]
    results = made[0] if len(made) == 1 else f"({', '.join(made)})"
    source = (
        f"import torch\n\n_results = {results}\n\n\ndef run({', '.join(definition.inputs)}):\n    return _results\n"
    )
    spec = BuildSpec("python", ["cpu", "cuda"], "main.py::run", destination_passing_style=False)
    return Solution(f"empty_{definition.name}", definition.name, "bench", spec, [SourceFile("main.py", source)])


def _claimed(definition: Definition, solution: Solution, inputs: Sequence[Any], device: str) -> TraceSet:
    """A data set that claims that a solution passed."""
    axes = definition.get_axes_values_from_inputs(inputs)
    workload = Workload(axes, {name: RandomInput() for name in definition.inputs}, "claimed")
    evaluation = Evaluation(
        "PASSED",
        Environment(hardware_from_device(device)),
        "2026-01-01T00:00:00Z",
        correctness=Correctness(0.0, 0.0),
        performance=Performance(0.1, 1.0, 10.0),
    )
    trace = Trace(definition.name, workload, solution.name, evaluation)
    name = definition.name
    return TraceSet(None, {name: definition}, {name: [solution]}, {}, {name: [trace]})


def _added_ns(
    bench: Bench,
    plain: Callable[[], Any],
    other: Callable[[], Any],
    switch: Callable[[bool], None] = lambda is_other: None,
) -> float:
    """The host time of one call minus another's, in ns: the median of adjacent samples in alternating order.

    Args:
        bench: Where.
        plain: The one.
        other: The other.
        switch: Is told before which of them is to come.
    """
    differences = []
    for index in range(bench.rounds):
        taken = {}
        for is_other in (False, True) if index % 2 else (True, False):
            switch(is_other)
            taken[is_other] = _host_ns(bench, other if is_other else plain)
        differences.append(taken[True] - taken[False])
    return statistics.median(differences)


def _host_ns(bench: Bench, call: Callable[[], Any]) -> float:
    """The host time of a call in ns, after a warm-up call; the device is idle before."""
    call()
    bench.wait()
    start = time.perf_counter_ns()
    for _ in range(bench.chunk):
        call()
    return (time.perf_counter_ns() - start) / bench.chunk


# -- all of it ---------------------------------------------------------------------------------------


def run(bench: Bench, cases: Sequence[Case], unable: dict[str, str]) -> list[Row]:
    """Run all checks of all cases; the row of a case that cannot run here states the reason."""
    rows = {case.name: Row(case.name, case.definition, cannot_run=unable.get(case.name, "")) for case in cases}
    able = [case for case in cases if case.name not in unable]
    expected = check_nothing_changes(bench, able, rows)
    trace_calls(bench, able, rows)
    measured = benchmark(bench, [rows[case.name] for case in able])
    _say("benchmarked")
    check_substitutions(bench, able, rows, measured, expected)
    check_device_times(bench, able, rows, measured)
    check_idle_times(bench, able, rows)
    check_hit_times(bench, able, rows, measured)
    for row in rows.values():
        _check_limits(bench, row)
    return list(rows.values())


def _check_limits(bench: Bench, row: Row) -> None:
    """Check the limits of added host time."""
    limit = HOST_LIMITS_NS.get(row.case)
    if not bench.is_timed:
        return
    if row.idle_ns is not None and row.idle_ns > HOST_LIMITS_NS["nothing enabled"]:
        row.failures.append(f"{row.idle_ns:.0f} ns are added while nothing is enabled")
    if limit is not None and row.hit_ns is not None and row.hit_ns > limit:
        row.failures.append(f"a hit adds {row.hit_ns:.0f} ns")


def table(rows: Sequence[Row], *, is_timed: bool) -> str:
    """The results as a Markdown table; host times only if they are meaningful."""
    lines = [
        "| call | definition | bit-equal | traced | substituted, largest error | device us | with apply "
        "| host, nothing enabled | host, hit |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if row.cannot_run:
            lines.append(f"| {row.case} | {row.definition} | cannot run here: {row.cannot_run} | | | | | | |")
            continue
        cells = (
            row.case,
            row.definition,
            _yes(row.is_bit_equal),
            _yes(row.is_traced),
            "" if row.largest_error is None else f"{row.largest_error:.2g}",
            "" if row.device_us is None else f"{row.device_us:.2f}",
            "" if row.device_ratio is None else f"{row.device_ratio:.3f}",
            f"{row.idle_ns:+.0f} ns" if is_timed and row.idle_ns is not None else "",
            f"{row.hit_ns:+.0f} ns" if is_timed and row.hit_ns is not None else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _yes(value: bool | None) -> str:
    return {True: "yes", False: "NO", None: ""}[value]


def compile_ahead(cases: Sequence[Case], small: bool = False, **variables: str) -> dict[str, str]:
    """Make each call once in a separate process, in parallel, so that FlashInfer compiles; returns the failures."""
    command = [sys.executable, str(HERE), "--child"]
    environment = {**os.environ, **variables}
    options = ["--small"] if small else []
    children = {
        case.name: subprocess.Popen(
            [*command, case.name, *options],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for case in cases
    }
    unable = {}
    end = time.monotonic() + _COMPILE_SECONDS
    for name, child in children.items():
        try:
            output, _ = child.communicate(timeout=max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            output, _ = child.communicate()
            output += f"\nnot compiled within {_COMPILE_SECONDS:g} s"
        _say(f"compiled: {name}" + (f": exit {child.returncode}" if child.returncode else ""))
        if child.returncode != 0:
            lines = [line for line in output.splitlines() if line.strip()]
            unable[name] = (lines[-1] if lines else "no output")[:200].replace("|", "/")
    return unable


def child(name: str, small: bool) -> int:
    """Make one call."""
    case = next(case for case in CASES if case.name == name)
    fi = _imported()
    case.prepare(fi, Sizes.small() if small else Sizes.usual())()
    torch.cuda.synchronize()
    return 0


def _imported() -> Any:
    for module in ("flashinfer", "flashinfer.mla", "flashinfer.fused_moe"):
        importlib.import_module(module)
    return sys.modules["flashinfer"]


def dump(folder: Path, cases: Sequence[Case]) -> None:
    """Let FlashInfer dump small calls, in both of its formats."""
    for name, flag in (("pt", "0"), ("safetensors", "1")):
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        variables = {
            "FLASHINFER_LOGLEVEL": "10",
            "FLASHINFER_DUMP_DIR": str(place),
            "FLASHINFER_DUMP_SAFETENSORS": flag,
            "FLASHINFER_LOGDEST": str(place / "log.txt"),
        }
        failed = compile_ahead(cases, small=True, **variables)
        print(f"dumped to {place}: {len(cases) - len(failed)} calls; not: {failed or 'none'}")


def stand_in_cases(folder: Path, version: str) -> tuple[Any, list[Case], list[Definition]]:
    """The examples of fib-integrations' tests."""
    sys.path.insert(0, str(SUPPORT))
    stand_ins = importlib.import_module("flashinfer_stand_ins")
    examples = importlib.import_module("flashinfer_stand_ins.examples").EXAMPLES
    sys.path.insert(0, str(stand_ins.write(folder, version)))
    cases = {
        example.definition.name: Case(
            example.name, example.definition.name, lambda fi, sizes, example=example: example.prepare(fi)
        )
        for example in examples
    }
    definitions = {example.definition.name: example.definition for example in examples}
    return _imported(), list(cases.values()), list(definitions.values())


def main() -> int:
    """Run everything, print the table."""
    options = _options()
    if options.child is not None:
        return child(options.child, options.small)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "data_set"
        (work / "definitions").mkdir(parents=True)
        if options.stand_ins:
            fi, cases, definitions = stand_in_cases(Path(folder) / "library", options.stand_ins)
            unable: dict[str, str] = {}
        else:
            cases = [case for case in CASES if not options.only or case.name in options.only]
            definitions = _definitions(options.data_set, cases)
            unable = compile_ahead(cases)
            fi = _imported()
        TraceSet.from_path(work).add_definitions(definitions)
        device = "cpu" if options.stand_ins else "cuda:0"
        bench = Bench(fi, device, work, Sizes.usual(), is_timed=options.timed or not options.stand_ins)
        rows = run(bench, cases, unable)
    return _report(options, bench, rows)


def _definitions(data_set: Path, cases: Sequence[Case]) -> list[Definition]:
    """The definitions of the calls. A missing one ends the run at once, because kernels take minutes to compile."""
    files = {path.stem: path for path in (data_set / "definitions").rglob("*.json")}
    if missing := [case.definition for case in cases if case.definition not in files]:
        sys.exit(f"{data_set} has no definition {', '.join(missing)}; name a copy of flashinfer-trace")
    return [load_json_file(Definition, files[case.definition]) for case in cases]


def _report(options: argparse.Namespace, bench: Bench, rows: Sequence[Row]) -> int:
    device = "cpu" if options.stand_ins else torch.cuda.get_device_name(0)
    title = f"FlashInfer {bench.fi.__version__}, torch {torch.__version__}, {device}, {time.strftime('%Y-%m-%d')}"
    print(f"{title}\n\n{table(rows, is_timed=bench.is_timed)}\n")
    failures = [f"{row.case}: {failure}" for row in rows for failure in row.failures]
    print("\n".join(failures) or "no failures")
    options.out.mkdir(parents=True, exist_ok=True)
    result = {"title": title, "rows": [attrs.asdict(row) for row in rows]}
    (options.out / "results.json").write_text(json.dumps(result, indent=2) + "\n")
    if options.dump is not None and not options.stand_ins:
        dump(options.dump, [case for case in CASES if not case.also])
    return int(bool(failures))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_set", nargs="?", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", choices=[case.name for case in CASES])
    parser.add_argument("--dump", type=Path)
    parser.add_argument("--stand-ins", metavar="VERSION")
    parser.add_argument("--timed", action="store_true", help="take host times of stand-ins as well")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.data_set is None and not options.stand_ins and options.child is None:
        parser.error("name the data set, or --stand-ins")
    return options


if __name__ == "__main__":
    sys.exit(main())
