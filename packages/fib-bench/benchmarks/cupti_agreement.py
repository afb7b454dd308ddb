"""Agreement of latencies with CUPTI and with a plain loop, for functions of one kernel and for solutions of others.

A function is evaluated first, without CUPTI. Then this file runs as a process of its own, which calls the function
after other memory was read into the cache, with CUPTI's kernel activity, and in a loop that waits for each call, less
what that takes without one. A small kernel ends both turns, as the digest ends a call: a wait for an idle device takes
the host 11 us on an H200, most of which a call's work would hide. Copies between host and device are left out of
CUPTI's sum: replays have what was read from before, and what was sent on the device. Like a judge's, calls take turns
with several copies of the arguments: where all use the same, their addresses stay in the device's translation buffers.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
from fib_bench import make_inputs
from fib_bench.plan import DefinitionPlan
from fib_compile import BuilderRegistry
from fib_schema import Definition, RandomInput, Solution, Trace, Workload, format_json, parse_json
from gpu_report import Budget, evidence_of, latency_us, plain, status_of, timing_of
from gpu_sections import uncertainty_text
from gpu_session import Bench, plan_of, spread, volume
from torch.profiler import ProfilerActivity, profile

_WARM_UP, _PLAIN_CALLS, _PROFILES = 10, 100, 30
_GRACE_SECONDS = 30.0
_ABSOLUTE_US, _RELATIVE = 0.4, 0.015
_CALL_US, _CALL_SHARE = 5.0, 0.05
_MOST_COPIES, _COPIED_BYTES = 31, 1 << 32
_REAL_WORKLOADS = 3
_BFLOAT16 = "bfloat16"


@attrs.frozen
class _Function:
    """A function with its inputs."""

    name: str
    definition: Definition
    solution: Solution
    workload: Workload

    def to_plain(self) -> dict[str, Any]:
        """For the other process."""
        fields = ("definition", "solution", "workload")
        return {"name": self.name, **{key: json.loads(format_json(getattr(self, key))) for key in fields}}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> _Function:
        """From `to_plain`."""
        kinds = {"definition": Definition, "solution": Solution, "workload": Workload}
        return cls(plain["name"], *(parse_json(json.dumps(plain[key]), kind) for key, kind in kinds.items()))


# -- the sections --------------------------------------------------------------------------------


def real(bench: Bench) -> None:
    """Evaluate solutions of others with nothing and with everything compiled, and compare their latencies.

    They are read from the files of a folder, and each gets up to three workloads of different sizes.
    """
    solutions: dict[str, list[Solution]] = {}
    for path in sorted(bench.solutions.rglob("*.json")):
        if bench.words and not any(word in path.stem for word in bench.words):
            continue
        solution = parse_json(path.read_bytes(), Solution)
        solutions.setdefault(solution.definition, []).append(solution)
    functions: list[_Function] = []
    plans: list[DefinitionPlan] = []

    def name_of(definition: str, solution: str | None, workload: Workload) -> str:
        return f"{definition}, {solution}, {workload.uuid}"

    for definition_name, some in solutions.items():
        if (definition := bench.data_set.definitions.get(definition_name)) is None:
            bench.report.say(f"- {len(some)} solutions: the data set has no definition {definition_name!r}")
            continue
        workloads = [trace.workload for trace in bench.data_set.workloads.get(definition_name, [])]
        chosen = spread(workloads, volume)[:_REAL_WORKLOADS]
        plans.append(plan_of(definition, some, chosen))  # one, so that the reference answers once
        for solution, workload in itertools.product(some, chosen):
            name = name_of(definition_name, solution.name, workload)
            functions.append(_Function(name, definition, solution, workload))
    budget, traces = Budget(bench.budget_seconds), dict[str, Trace]()
    for state in ("nothing", "everything"):
        session, begin = bench.session(budget.share(0.8), timeout_seconds=300.0), time.monotonic()
        found = session.run(plans)
        traces.update({name_of(trace.definition, trace.solution, trace.workload): trace for trace in found})
        taken = time.monotonic() - begin
        bench.report.say(f"{len(found)} of {len(functions)} evaluations in {taken:.0f} s with {state} compiled.")
        bench.report.numbers[f"seconds with {state} compiled"] = taken
        bench.note(session)
    bench.report.numbers["traces"] = [plain(trace) for trace in traces.values()]
    _compare(bench, functions, traces, budget)


def cupti(bench: Bench) -> None:
    """Compare the latencies of one-kernel functions with what CUPTI records in the same passes."""
    functions = list(_functions(bench))
    budget = Budget(bench.budget_seconds)
    session = bench.session(budget.share(0.6), profile_baseline=False)
    found = {
        str(trace.solution): trace
        for trace in session.run([plan_of(f.definition, [f.solution], [f.workload]) for f in functions])
    }
    traces = {f.name: found[f.solution.name] for f in functions if f.solution.name in found}
    bench.note(session)
    bench.report.numbers["handshake"] = [plain(trace) for trace in traces.values()]
    _compare(bench, functions, traces, budget)


def _compare(bench: Bench, functions: Sequence[_Function], traces: Mapping[str, Trace], budget: Budget) -> None:
    """Compare what passed with CUPTI and a loop."""
    timed = [f for f in functions if f.name in traces and traces[f.name].is_successful()]
    on_device = sum(timing_of(traces[f.name])["method"] == "handshake" for f in timed)
    for name, trace in traces.items():
        if not trace.is_successful():
            bench.report.say(f"- {name}: {status_of(trace)}: {evidence_of(trace)}")
    bench.report.say(f"{len(timed)} of {len(functions)} were timed, {on_device} of them with a device latency.")
    bench.report.say()
    if not bench.is_cuda:
        bench.report.say("CUPTI needs a CUDA device: nothing to compare with.")
        return
    recorded = _recorded(bench, timed, budget)
    bench.report.numbers["cupti"] = recorded
    _print(bench, timed, traces, recorded)


def _functions(bench: Bench) -> list[_Function]:
    if not bench.is_cuda:
        return [_copy(bench, 4096)]
    found = []
    for name, (definition, _) in bench.collect("rmsnorm_h4096").items():
        solution = bench.from_file("rmsnorm_triton.py", definition)
        (axis,) = definition.var_axes
        for rows in (1, 4, 16, 64, 256, 1024, 4096, 8192):
            found.append(_random(f"{name}, Triton, {rows} rows", definition, solution, {axis: rows}))
    found += [_copy(bench, elements) for elements in (1 << 15, 1 << 17, 1 << 19, 1 << 21, 1 << 23, 1 << 25, 1 << 28)]
    for name, (definition, _) in bench.collect("gemm_n4096_k4096").items():
        source = "import torch\n\n\ndef run(A, B, C):\n    torch.mm(A, B.t(), out=C)\n"
        solution = bench.solution("cublas", definition, "cublas.py", source, returns=False)
        (axis,) = definition.var_axes
        for rows in (16, 64, 512, 2048, 8192):
            found.append(_random(f"{name}, torch.mm, {rows} rows", definition, solution, {axis: rows}))
    return [attrs.evolve(f, solution=attrs.evolve(f.solution, name=f"cupti_{i}")) for i, f in enumerate(found)]


def _copy(bench: Bench, elements: int) -> _Function:
    fields = {"dtype": _BFLOAT16, "shape": ["n"]}
    plain_definition = {
        "name": "multiply",
        "op_type": "elementwise",
        "axes": {"n": {"type": "var"}},
        "inputs": {"x": fields},
        "outputs": {"y": fields},
        "reference": "def run(x):\n    return x * 2\n",
    }
    definition = parse_json(json.dumps(plain_definition), Definition)
    source = "import torch\n\n\ndef run(x, y):\n    torch.mul(x, 2.0, out=y)\n"
    solution = bench.solution("multiply_torch", definition, "multiply.py", source, returns=False)
    return _random(f"torch.mul, {elements * 2 >> 10} KiB", definition, solution, {"n": elements})


def _random(name: str, definition: Definition, solution: Solution, axes: dict[str, int]) -> _Function:
    workload = Workload(axes, {each: RandomInput() for each in definition.inputs}, f"cupti-{name}")
    return _Function(name, definition, solution, workload)


def _recorded(bench: Bench, functions: Sequence[_Function], budget: Budget) -> dict[str, Any]:
    """Fields of the report of the other process, by name."""
    with tempfile.TemporaryDirectory() as folder:
        job, result = Path(folder, "job.json"), Path(folder, "result.json")
        seconds = max(budget.left, 20.0)
        functions_plain = [f.to_plain() for f in functions]
        root = str(bench.data_set.root)
        about = {"device": bench.device, "root": root, "seconds": seconds, "functions": functions_plain}
        job.write_text(json.dumps(about), "utf-8")
        command = [sys.executable, str(Path(__file__)), str(job), str(result)]
        try:
            run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + _GRACE_SECONDS)
            problem = run.stderr[-2000:] if run.returncode else ""
        except subprocess.TimeoutExpired:
            problem = f"it took more than {seconds + _GRACE_SECONDS:.0f} s"
        if problem:
            bench.report.say(f"- the process with CUPTI failed: {problem}")
        return dict(json.loads(result.read_text("utf-8"))) if result.exists() else {}


def _print(bench: Bench, functions: Sequence[_Function], traces: Mapping[str, Trace], recorded: dict[str, Any]) -> None:
    rows, good, good_calls, compared = [], 0, 0, 0
    for function in functions:
        trace, found = traces[function.name], recorded.get(function.name, {"problem": "the budget was spent"})
        timing, ours = timing_of(trace), latency_us(trace)
        orders = ", ".join(f"{value * 1e3:.2f}" for value in timing["orders_ms"].values())
        shown = (function.name, timing["method"], f"{ours:.3f} ({orders})", uncertainty_text(trace))
        if "problem" in found:
            rows.append((*shown, "-", "-", "-", "-", "-", found["problem"][:200]))
            continue
        theirs, call, loop = found["kernel_us"], timing["call_ms"] * 1e3, found["plain_us"]
        is_near = abs(ours - theirs) <= max(_ABSOLUTE_US, _RELATIVE * theirs)
        is_near_loop = abs(call - loop) <= max(_CALL_US, _CALL_SHARE * loop)
        compared, good, good_calls = compared + 1, good + is_near, good_calls + is_near_loop
        rows.append((
            *shown, f"{theirs:.3f}", f"{ours - theirs:+.3f}", "yes" if is_near else "**no**", f"{call:.1f}",
            f"{loop:.1f} ({found['empty_us']:.1f})", "yes" if is_near_loop else "**no**",
        ))  # fmt: skip
    header = (
        "function", "method", "latency us (cold, fresh)", "stated uncertainty us", "CUPTI us", "difference us",
        "within 0.4 us or 1.5 %", "call us", "plain loop us (without a call)", "within 5 us or 5 %",
    )  # fmt: skip
    bench.report.table("Latencies, CUPTI's kernel times of cold calls, and a plain loop", header, rows)
    bench.report.say(f"CUPTI: {good} of {compared} within 0.4 us or 1.5 %.")
    bench.report.say(f"Plain loop: {good_calls} of {compared} within 5 us or 5 %.")


# -- the process with CUPTI ----------------------------------------------------------------------


def _record(function: _Function, root: Path, device: torch.device) -> dict[str, Any]:
    """The time of the kernels of a cold call, and of an eager call in a plain loop: medians."""
    definition, workload = function.definition, function.workload
    runnable = BuilderRegistry.get_instance().build(definition, function.solution)
    given = make_inputs(definition, workload, seed=0, root=root, synthesize_missing=True, device=device).values()
    values: list[Any] = list(given)
    if runnable.metadata.destination_passing_style:
        for spec, shape in zip(definition.outputs.values(), definition.get_output_shapes(workload.axes), strict=True):
            values.append(torch.empty(shape or (), dtype=getattr(torch, spec.dtype), device=device))
    size = sum(value.nbytes for value in values if isinstance(value, torch.Tensor))
    copies = [values]
    for _ in range(min(_MOST_COPIES, _COPIED_BYTES // size)):
        copies.append([value.clone() if isinstance(value, torch.Tensor) else value for value in values])
    calls = itertools.cycle([partial(runnable, *each) for each in copies])
    seconds, empty_seconds = _loop(calls, device)
    flushes = _flushes(device)
    known = {name for name, _ in _kernels(flushes.sum)}
    found = _kernels(lambda: (flushes.sum(), next(calls)()))
    taken = [value for name, value in found if name not in known]
    each = len(taken) // _PROFILES  # a kernel, and what a library sets to zero for it
    if not taken or len(taken) % _PROFILES:
        return {"problem": f"{len(taken)} kernels in {_PROFILES} calls: {sorted({name for name, _ in found})}"}
    sums = [sum(taken[index : index + each]) for index in range(0, len(taken), each)]
    plain_us = {"plain_us": (seconds - empty_seconds) * 1e6, "empty_us": empty_seconds * 1e6}
    return {"kernel_us": statistics.median(sums), **plain_us}


def _flushes(device: torch.device) -> torch.Tensor:
    return torch.zeros(3 * torch.cuda.get_device_properties(device).L2_cache_size // 4, device=device)


def _loop(calls: Iterator[Callable[[], object]], device: torch.device) -> tuple[float, float]:
    """Seconds of a turn that calls after a flush, and of one without a call; a small kernel and a wait end both."""
    flushes, end = _flushes(device), torch.empty(1, device=device)
    plain, empty = [], []
    for index in range(2 * (_WARM_UP + _PLAIN_CALLS)):
        call = next(calls) if index % 2 else list  # nothing
        flushes.sum()  # a read: written lines would go to memory while the call runs
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        end.zero_()
        torch.cuda.synchronize()
        if index >= 2 * _WARM_UP:
            (plain if index % 2 else empty).append(time.perf_counter() - begin)
    return statistics.median(plain), statistics.median(empty)


def _kernels(function: Callable[[], object]) -> list[tuple[str, float]]:
    """Names and microseconds of the kernels of several calls, by CUPTI."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(_PROFILES):
            function()
            torch.cuda.synchronize()
    events = sorted(recorded.events(), key=lambda event: event.time_range.start)
    copies = ("Memcpy DtoH", "Memcpy HtoD")
    timed = (event for event in events if event.device_time_total > 0 and not event.name.startswith(copies))
    return [(event.name, event.device_time_total) for event in timed]


def main() -> None:
    """Read a job, record its functions, and write the result."""
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    budget, device = Budget(job["seconds"]), torch.device(job["device"])
    torch.cuda.set_device(device)
    torch.zeros(1, device=device)
    found: dict[str, Any] = {}
    for item in job["functions"]:
        if budget.is_spent:
            break
        try:
            found[item["name"]] = _record(_Function.from_plain(item), Path(job["root"]), device)
        except Exception as error:  # noqa: BLE001 the other functions are compared all the same
            found[item["name"]] = {"problem": f"{type(error).__name__}: {error}"}
        torch.cuda.empty_cache()
        Path(sys.argv[2]).write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main()
