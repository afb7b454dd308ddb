"""Checks of the adapters against the installed FlashInfer: bit-equal while nothing is enabled, correct when routed.

For each call: outputs with the patch installed and nothing enabled are bit-equal to unpatched ones; a traced
workload names the definition; a substituted solution agrees within the tolerance that its trace recorded; and
FlashInfer's own baseline, benchmarked here and chosen, has the device time of the unpatched call. Prints a table,
writes results.json, and exits 1 if anything is not so.

usage: flashinfer_adapters.py DATA_SET [--out DIR] [--only NAME ...]
       flashinfer_adapters.py --stand-ins 0.6.4     on the CPU, with the stand-ins of fib-integrations' tests
"""

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
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import attrs
import engine_bench
import torch
from fib_apply import ApplyConfig, ApplyRuntime, enable_apply
from fib_bench import Benchmark, BenchmarkConfig, EvalConfig
from fib_compile.device import hardware_from_device
from fib_integrations import install_flashinfer_integrations, uninstall_flashinfer_integrations
from fib_integrations.adapters import select_adapters
from fib_integrations.baselines import baseline_name, make_baselines
from fib_schema import BuildSpec, Definition, Solution, SourceFile, TraceSet, load_json_file
from fib_tracer import TracingConfig, enable_tracing
from flashinfer_calls import CASES, Case

HERE = Path(__file__).resolve()
SUPPORT = HERE.parents[2] / "packages" / "fib-integrations" / "tests" / "support"
DEVICE_LIMIT = 1.02
EQUAL_KERNELS = ApplyConfig(require_speedup=False)
"""Calls are routed to the kernels that they replace."""
_DEVICE_ROUNDS = 5
_COMPILE_SECONDS = 180.0
"""The limit for compiling the kernels of one call."""


@attrs.define
class Row:
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


@attrs.frozen
class Bench:
    """The library, device and data set of a run."""

    fi: Any
    device: str
    work: Path
    """The data set that is created during the run."""

    def wait(self):
        if self.device != "cpu":
            torch.cuda.synchronize()


@contextmanager
def _patched(also):
    """Install the default and further adapters; each installation searches all modules and objects for references."""
    install_flashinfer_integrations(also=also)
    try:
        yield
    finally:
        uninstall_flashinfer_integrations()


def _while_patched(cases):
    """Each case while its adapters are installed; consecutive cases with the same adapters share an installation."""
    for also, group in groupby(cases, lambda case: case.also):
        with _patched(also):
            yield from group


def _say(text):
    print(f"{time.monotonic() - _STARTED:6.1f} s  {text}", file=sys.stderr, flush=True)


_STARTED = time.monotonic()


@contextmanager
def _noting_errors(row, what):
    """Record an error as a failure of this case, and continue with the others."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever the library or a solution raises
        traceback.print_exc()
        row.failures.append(f"{what}: {type(error).__name__}: {error}"[:500])
    _say(f"{what}: {row.case}")


def _results(bench, case):
    torch.manual_seed(11)  # of samples
    found = tuple(tensor.clone() for tensor in case.prepare(bench.fi)())
    bench.wait()
    return found


# -- what is right -----------------------------------------------------------------------------------


def check_nothing_changes(bench, cases, rows):
    """Compare outputs with and without the patch, which must be bit-equal; returns those without."""
    expected = {case.name: _results(bench, case) for case in cases}
    for case in _while_patched(cases):
        row = rows[case.name]
        with _noting_errors(row, "nothing enabled"):
            row.is_bit_equal = all(map(torch.equal, _results(bench, case), expected[case.name]))
        if not row.is_bit_equal:
            row.failures.append("outputs differ with the patch installed")
    return expected


def trace_calls(bench, cases, rows):
    config = TracingConfig("dump_all", filter_policy="keep_first")
    for case in _while_patched(cases):
        with _noting_errors(rows[case.name], "traced"), enable_tracing(bench.work, config) as runtime:
            case.prepare(bench.fi)()
            bench.wait()
            runtime.flush()
    traced = TraceSet.from_path(bench.work).workloads
    for case in cases:
        rows[case.name].is_traced = bool(traced.get(case.definition))
        if not rows[case.name].is_traced:
            rows[case.name].failures.append(f"no workload of {case.definition} was traced")


def benchmark(bench, rows):
    """Benchmark FlashInfer's baselines, and the references as solutions, on the traced workloads."""
    trace_set = TraceSet.from_path(bench.work)
    own = make_baselines(trace_set, select_adapters(None)).solutions
    trace_set.add_solutions(own if bench.device != "cpu" else map(_for_cpu, own))
    trace_set.add_solutions(_substitute(definition) for definition in trace_set.definitions.values())
    if bench.device == "cpu":  # a worker does not see the stand-ins
        engine_bench.main(os.fspath(bench.work))
    else:
        defaults = EvalConfig(warmup_runs=2, iterations=5, num_trials=1)
        config = BenchmarkConfig(device=bench.device, profile_baseline=False, defaults=defaults)
        with Benchmark(trace_set, config) as run:
            run.run_all()
    measured = TraceSet.from_path(bench.work)
    for row in rows:
        _note_statuses(measured, row)
    return measured


def _note_statuses(measured, row):
    found = {t.solution: t.evaluation for t in measured.traces.get(row.definition, ()) if t.evaluation is not None}
    own = found.get(baseline_name(measured.get_definition(row.definition)))
    row.baseline_status = "none" if own is None else str(own.status)
    for name, evaluation in found.items():
        if str(evaluation.status) != "PASSED":
            row.failures.append(f"{name}: {evaluation.status}: {evaluation.log[-300:]}")


def _for_cpu(solution):
    """A baseline that runs with the stand-ins on the CPU."""
    return attrs.evolve(solution, spec=attrs.evolve(solution.spec, target_hardware=("cpu",)))


def _substitute(definition):
    spec = BuildSpec("python", ["cpu", "cuda"], "main.py::run", destination_passing_style=False)
    name = f"substitute_{definition.name}"
    return Solution(name, definition.name, "reference", spec, [SourceFile("main.py", definition.reference)])


def _only(measured, definition, solution):
    """A data set with one solution to choose."""
    kept = [s for s in measured.solutions[definition] if s.name == solution]
    traces = [t for t in measured.traces[definition] if t.solution == solution]
    return TraceSet(
        None, {definition: measured.get_definition(definition)}, {definition: kept}, {}, {definition: traces}
    )


def probe_together(trace_sets):
    """Probe the solutions of several data sets in one process instead of one each; the results are cached."""
    definitions = {}
    solutions = {}
    traces = {}
    for trace_set in trace_sets:
        definitions |= trace_set.definitions
        solutions |= trace_set.solutions
        traces |= trace_set.traces
    enable_apply(TraceSet(None, definitions, solutions, {}, traces), EQUAL_KERNELS).stop()


def check_substitutions(bench, cases, rows, measured, expected):
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


def _compare(row, found, expected, atol, rtol, required_ratio):
    errors = [(a.double() - b.double()).abs() for a, b in zip(found, expected, strict=True)]
    row.largest_error = max(float(error.max()) for error in errors)
    for a, b, error in zip(found, expected, errors, strict=True):
        share = float(((error <= atol) | (error <= rtol * b.double().abs()) | (a == b)).double().mean())
        if a.dtype != b.dtype or a.shape != b.shape or share < required_ratio:
            row.failures.append(f"substituted: {share:.4f} of {list(a.shape)} within {atol:g} and {rtol:g}")


def _tolerance(runtime, definition, device):
    """The tolerances in the chosen solution's trace."""
    choices = runtime.table.rankings(definition)[hardware_from_device("cuda:0" if device == "cuda" else device)]
    (ranking,) = choices.by_key.values()
    candidate = ranking.candidates[0]
    defaults = (candidate.atol, 1e-2), (candidate.rtol, 1e-2), (candidate.required_matched_ratio, 1.0)
    atol, rtol, ratio = (default if value is None else value for value, default in defaults)
    return atol, rtol, ratio


# -- what it costs -----------------------------------------------------------------------------------


def check_device_times(bench, cases, rows, measured):
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
            unpatched[case.name].append(_device_us(case.prepare(bench.fi)))
        for case in _while_patched(timed):
            with _noting_errors(rows[case.name], "device time"), runtimes[case.name]:
                routed[case.name].append(_device_us(case.prepare(bench.fi)))
    for case in timed:
        row = rows[case.name]
        row.device_us = statistics.median(unpatched[case.name])
        row.device_ratio = statistics.median(routed[case.name] or [0.0]) / row.device_us
        if row.device_ratio > DEVICE_LIMIT:
            row.failures.append(f"device time is {row.device_ratio:.3f} of the unpatched call's")


def _device_us(call, count=20):
    """The total time of a call's kernels."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(count):
            call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / count


# -- all of it ---------------------------------------------------------------------------------------


def run(bench, cases, unable):
    """Run all checks of all cases; the row of a case that cannot run here states the reason."""
    rows = {case.name: Row(case.name, case.definition, cannot_run=unable.get(case.name, "")) for case in cases}
    able = [case for case in cases if case.name not in unable]
    expected = check_nothing_changes(bench, able, rows)
    trace_calls(bench, able, rows)
    measured = benchmark(bench, [rows[case.name] for case in able])
    _say("benchmarked")
    check_substitutions(bench, able, rows, measured, expected)
    check_device_times(bench, able, rows, measured)
    return list(rows.values())


def table(rows):
    lines = [
        "| call | definition | bit-equal | traced | substituted, largest error | device us | with apply |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if row.cannot_run:
            lines.append(f"| {row.case} | {row.definition} | cannot run here: {row.cannot_run} | | | | |")
            continue
        cells = (
            row.case,
            row.definition,
            _yes(row.is_bit_equal),
            _yes(row.is_traced),
            "" if row.largest_error is None else f"{row.largest_error:.2g}",
            "" if row.device_us is None else f"{row.device_us:.2f}",
            "" if row.device_ratio is None else f"{row.device_ratio:.3f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _yes(value):
    return {True: "yes", False: "NO", None: ""}[value]


def compile_ahead(cases):
    """Make each call once in a separate process, in parallel, so that FlashInfer compiles; returns the failures."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [sys.executable, str(HERE), "--child"]
    children = {case.name: subprocess.Popen([*command, case.name], **pipes) for case in cases}
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


def child(name):
    next(case for case in CASES if case.name == name).prepare(_imported())()
    torch.cuda.synchronize()
    return 0


def _imported():
    for module in ("flashinfer", "flashinfer.mla", "flashinfer.fused_moe"):
        importlib.import_module(module)
    return sys.modules["flashinfer"]


def stand_in_cases(folder, version):
    """The examples of fib-integrations' tests."""
    sys.path.insert(0, str(SUPPORT))
    stand_ins = importlib.import_module("flashinfer_stand_ins")
    examples = importlib.import_module("flashinfer_stand_ins.examples").EXAMPLES
    sys.path.insert(0, str(stand_ins.write(folder, version)))
    by_definition = {example.definition.name: example for example in examples}
    cases = [Case(example.name, name, example.prepare) for name, example in by_definition.items()]
    return _imported(), cases, [example.definition for example in by_definition.values()]


def main():
    options = _options()
    if options.child is not None:
        return child(options.child)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "data_set"
        (work / "definitions").mkdir(parents=True)
        if options.stand_ins:
            fi, cases, definitions = stand_in_cases(Path(folder) / "library", options.stand_ins)
            unable = {}
        else:
            cases = [case for case in CASES if not options.only or case.name in options.only]
            definitions = _definitions(options.data_set, cases)
            unable = compile_ahead(cases)
            fi = _imported()
        TraceSet.from_path(work).add_definitions(definitions)
        device = "cpu" if options.stand_ins else "cuda:0"
        bench = Bench(fi, device, work)
        rows = run(bench, cases, unable)
    return _report(options, bench, rows)


def _definitions(data_set, cases):
    """The definitions of the calls. A missing one ends the run at once, because kernels take minutes to compile."""
    files = {path.stem: path for path in (data_set / "definitions").rglob("*.json")}
    if missing := [case.definition for case in cases if case.definition not in files]:
        sys.exit(f"{data_set} has no definition {', '.join(missing)}; name a copy of flashinfer-trace")
    return [load_json_file(Definition, files[case.definition]) for case in cases]


def _report(options, bench, rows):
    device = "cpu" if options.stand_ins else torch.cuda.get_device_name(0)
    title = f"FlashInfer {bench.fi.__version__}, torch {torch.__version__}, {device}, {time.strftime('%Y-%m-%d')}"
    print(f"{title}\n\n{table(rows)}\n")
    failures = [f"{row.case}: {failure}" for row in rows for failure in row.failures]
    print("\n".join(failures) or "no failures")
    options.out.mkdir(parents=True, exist_ok=True)
    result = {"title": title, "rows": [attrs.asdict(row) for row in rows]}
    (options.out / "results.json").write_text(json.dumps(result, indent=2) + "\n")
    return int(bool(failures))


def _options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_set", nargs="?", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", choices=[case.name for case in CASES])
    parser.add_argument("--stand-ins", metavar="VERSION")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.data_set is None and not options.stand_ins and options.child is None:
        parser.error("name the data set, or --stand-ins")
    return options


if __name__ == "__main__":
    sys.exit(main())
