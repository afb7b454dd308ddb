"""Overhead of apply: a routed call against a direct call of the same built solution.

Part of `transformer_block`, which benchmarks the solutions first. Routed and direct calls take turns, pass the same
tensors in the same style, and are made by the same loop.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias
from uuid import uuid4

import attrs
import torch
from fib_apply import ApplyConfig, ApplyKey, ApplyRuntime, apply
from fib_bench import make_inputs
from fib_compile import BuilderRegistry
from fib_compile.device import hardware_from_device
from fib_schema import Definition, RandomInput, Solution, SourceFile, TraceSet, Workload

Function: TypeAlias = Callable[..., Any]
Samples: TypeAlias = dict[str, list[float]]
Kind: TypeAlias = tuple[Definition, Mapping[str, int]]
"""A definition, and the sizes of its variable axes."""

CHUNK = 200
"""Consecutive calls per sample: a device queues about a thousand launches, then the host blocks."""
IN_GRAPH = 20
REPLAYS = 50
CAPTURES = 4
"""Graphs of each function: memory and the order of captures make graphs of the same kernels differ by 1 % and more."""
LEAST_US, MOST_US = 30.0, 10.0
"""The kernel times above which a kernel counts as long, and below which as short."""
EAGER_LIMIT, GRAPH_LIMIT, HOST_LIMIT_NS = 1.02, 1.005, 500.0
"""The limits."""
LEAST_CAPTURED, MOST_CAPTURE_SECONDS = 20, 20.0


class NotServed(Exception):
    """The fallback was called."""


@attrs.frozen(kw_only=True)
class Sizes:
    """The calls to measure."""

    short: Kind
    large: Sequence[Kind]
    rounds: int


@attrs.frozen(kw_only=True)
class Pair:
    """A solution, called directly and through apply."""

    title: str
    direct: Function
    routed: Function
    arguments: tuple[Any, ...]

    def both(self) -> dict[str, Function]:
        """Both functions, in alternating order."""
        return {"direct": self.direct, "routed": self.routed}


def measure_overhead(root: Path, device: str, report: Any, sizes: Sizes) -> list[str]:
    """Measure on a data set with traces, and write tables.

    Args:
        root: Of the data set.
        device: ``cpu``, where nothing can be captured, or ``cuda:0``.
        report: A `gpu_report.Report`.
        sizes: What to measure.

    Returns:
        What went wrong. To be slower than asked for is not among it.
    """
    runtime = ApplyRuntime(root, ApplyConfig(require_speedup=False))
    problems: list[str] = []
    with runtime:
        short = pair_of(runtime, device, *sizes.short)
        large = [pair_of(runtime, device, *kind) for kind in sizes.large]
        guards = runtime.warm_up(240).guards
        rows = [eager_row(pair, device, sizes.rounds) for pair in large]
        rows.append(host_row(short, device, sizes.rounds))
        if device != "cpu":
            rows.append(graph_row(short, sizes.rounds))
            problems += rows[-1]["problems"]
    report.numbers["overhead"] = rows
    header = ("what", "kernel us", "direct", "routed", "difference", "asked for", "spread of the difference", "rounds")
    report.table("What apply adds", header, [_shown(row) for row in rows])
    report.say(
        f"Medians; the difference is that of neighbours, its spread the middle half. Eager: {CHUNK} calls and then the "
        f"wait for them, us per call. Host: the same without the wait, ns per call. Graph: {IN_GRAPH} calls, us each. "
        f"Calls pass {guards}."
    )
    for row in rows:
        if "same" in row:
            low, high = row["same_spread"]
            report.say(
                f"{row['what']}: other captures of the direct call differ by {row['same']:+.2%} (middle half "
                f"{low:+.2%} to {high:+.2%}), the uncertainty of the difference. Launches: {row['launches']}."
            )
    report.say()
    return problems if device == "cpu" else problems + capture_while_building(root, device, report, sizes.short)


def _shown(row: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = row["spread"]
    if row["unit"] == "ns":
        shown = [f"{row[name]:.0f} ns" for name in ("direct", "routed", "difference")]
        limit, spread = f"at most {row['limit']:.0f} ns", f"{low:.0f} to {high:.0f} ns"
    else:
        shown = [f"{row[name]:.3f} us" for name in ("direct", "routed")] + [f"{row['difference']:+.2%}"]
        limit, spread = f"at most {row['limit']:.1%}", f"{low:+.2%} to {high:+.2%}"
    limit += "" if row["is_asked"] else " (not for a kernel of this length)"
    return row["what"], f"{row['kernel_us']:.1f}", *shown, limit, spread, str(row["rounds"])


# -- a solution, both ways -----------------------------------------------------------------------


def pair_of(runtime: ApplyRuntime, device: str, definition: Definition, axes: Mapping[str, int]) -> Pair:
    """The chosen solution of a key, built, compiled and run once."""
    solution = chosen_solution(runtime, device, definition, axes)
    runnable = BuilderRegistry.get_instance().build(definition, solution)
    is_passing = runnable.metadata.destination_passing_style
    arguments = arguments_for(definition, axes, device, with_outputs=is_passing)
    routed = routed_function(definition, with_outputs=is_passing)
    until_served(routed, arguments, runtime)
    sizes = ", ".join(f"{name}={size}" for name, size in axes.items())
    return Pair(title=f"{solution.name}, {sizes}", direct=runnable.function, routed=routed, arguments=arguments)


def chosen_solution(runtime: ApplyRuntime, device: str, definition: Definition, axes: Mapping[str, int]) -> Solution:
    """The solution that apply would call."""
    view = runtime.table.for_hardware(hardware_from_device(device))
    name = view.match_solution(definition.name, ApplyKey(axes))
    if name is None:
        raise LookupError(f"no solution of {definition.name} was chosen for {dict(axes)}")
    return runtime.table.solution(name)


def arguments_for(
    definition: Definition, axes: Mapping[str, int], device: str, *, with_outputs: bool
) -> tuple[Any, ...]:
    """Random inputs, followed by outputs for a destination-passing solution."""
    workload = Workload(dict(axes), {name: RandomInput() for name in definition.inputs}, "overhead")
    inputs = make_inputs(definition, workload, seed=0, synthesize_missing=True)
    found = [value.to(device) if isinstance(value, torch.Tensor) else value for value in inputs.values()]
    shapes = definition.get_output_shapes(dict(axes)) if with_outputs else ()
    return (*found, *(torch.empty(shape or (), dtype=torch.bfloat16, device=device) for shape in shapes))


def routed_function(definition: Definition, *, with_outputs: bool) -> Function:
    """A function with the definition's parameters, whose fallback raises `NotServed`."""
    if definition.op_type == "gemm":
        return _routed_gemm(definition.name, with_outputs=with_outputs)

    @apply(definition.name)
    def norm(hidden_states: Any, weight: Any) -> Any:
        raise NotServed

    @apply(definition.name)
    def norm_into(hidden_states: Any, weight: Any, output: Any) -> None:
        raise NotServed

    return norm_into if with_outputs else norm


def _routed_gemm(name: str, *, with_outputs: bool) -> Function:
    @apply(name)
    def gemm(A: Any, B: Any) -> Any:
        raise NotServed

    @apply(name)
    def gemm_into(A: Any, B: Any, C: Any) -> None:
        raise NotServed

    return gemm_into if with_outputs else gemm


def until_served(routed: Function, arguments: Sequence[Any], runtime: ApplyRuntime) -> None:
    """Call until a solution serves twice: the second call takes the fast path."""
    for _ in range(4):
        try:
            routed(*arguments)
            routed(*arguments)
        except NotServed:
            runtime.wait_until_built(120)
        else:
            return
    raise NotServed("the fallback serves on")


# -- clocks --------------------------------------------------------------------------------------


def wait_for(device: str) -> None:
    """Synchronise with the device."""
    if device != "cpu":
        torch.cuda.synchronize()


def in_turn(sample: Callable[[Function], float], functions: Mapping[str, Function], rounds: int) -> Samples:
    """Samples of both functions, in alternating order."""
    found: Samples = {name: [] for name in functions}
    for index in range(rounds + 2):
        names = list(functions) if index % 2 else list(functions)[::-1]
        for name in names:
            value = sample(functions[name])
            if index >= 2:  # the first ones warm up
                found[name].append(value)
    return found


def chunk_ns(function: Function, arguments: Sequence[Any], device: str) -> tuple[float, float]:
    """Nanoseconds per consecutive call: until the host has launched all, and until the device is done."""
    wait_for(device)
    begin = time.perf_counter_ns()
    for _ in range(CHUNK):
        function(*arguments)
    made = time.perf_counter_ns()
    wait_for(device)
    return (made - begin) / CHUNK, (time.perf_counter_ns() - begin) / CHUNK


def device_us(function: Function, arguments: Sequence[Any], device: str) -> float:
    """The approximate time of a call's kernels; on a GPU from a CUDA graph, without host time."""
    if device == "cpu":
        return chunk_ns(function, arguments, device)[1] / 1e3
    replay = graph_of(function, arguments)
    return statistics.median(replayed_us(replay) for _ in range(5))


def graph_of(function: Function, arguments: Sequence[Any]) -> Function:
    """A CUDA graph of some calls."""
    function(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_GRAPH):
            function(*arguments)
    return graph.replay  # a method, so that the graph lives on


def replayed_us(replay: Function) -> float:
    """The time per call of a replayed graph."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    replay()
    start.record()
    for _ in range(REPLAYS):
        replay()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / REPLAYS / IN_GRAPH * 1e3


# -- what is asked for ---------------------------------------------------------------------------


def eager_row(pair: Pair, device: str, rounds: int) -> dict[str, Any]:
    """An eager loop over a long kernel."""
    kernel_us = device_us(pair.direct, pair.arguments, device)

    def sample(function: Function) -> float:
        return chunk_ns(function, pair.arguments, device)[1] / 1e3

    row = _compared(in_turn(sample, pair.both(), rounds), limit=EAGER_LIMIT - 1)
    return {"what": f"eager loop, {pair.title}", "kernel_us": kernel_us, "is_asked": kernel_us >= LEAST_US, **row}


def host_row(pair: Pair, device: str, rounds: int) -> dict[str, Any]:
    """The host time added to each launch of a short kernel."""
    kernel_us = device_us(pair.direct, pair.arguments, device)
    samples = in_turn(lambda function: chunk_ns(function, pair.arguments, device)[0], pair.both(), rounds)
    row = _compared(samples, limit=HOST_LIMIT_NS, unit="ns")
    return {"what": f"host, {pair.title}", "kernel_us": kernel_us, "is_asked": kernel_us < MOST_US, **row}


def graph_row(pair: Pair, rounds: int) -> dict[str, Any]:
    """A short kernel in CUDA graphs: routed, direct, and direct again, each in several graphs captured in turn."""
    functions = {"direct": pair.direct, "routed": pair.routed, "again": pair.direct}
    graphs: dict[str, list[Function]] = {name: [] for name in functions}
    for index in range(CAPTURES):
        for name in list(functions) if index % 2 else list(functions)[::-1]:
            graphs[name].append(graph_of(functions[name], pair.arguments))
    launches = {name: recorded_launches(graphs[name][0]) for name in ("direct", "routed")}
    problems = [] if launches["direct"] == launches["routed"] else [f"graphs launch different kernels: {launches}"]
    next_graph = {name: cycle(made).__next__ for name, made in graphs.items()}
    samples = in_turn(lambda take: replayed_us(take()), next_graph, rounds)
    row = _compared(samples, limit=GRAPH_LIMIT - 1)
    same = _compared({"direct": samples["direct"], "routed": samples["again"]}, limit=GRAPH_LIMIT - 1)
    return {
        "what": f"CUDA graph, {pair.title}",
        "kernel_us": row["direct"],
        "is_asked": True,
        **row,
        "same": same["difference"],
        "same_spread": same["spread"],
        "launches": launches["direct"].total(),
        "problems": problems,
    }


def recorded_launches(replay: Function) -> Counter[tuple[str, ...]]:
    """The launches of one replay on the device, by the profiler of torch."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        replay()
        torch.cuda.synchronize()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return launches_of(json.loads(path.read_text("utf-8")))


def launches_of(trace: Mapping[str, Any]) -> Counter[tuple[str, ...]]:
    """The kernels, copies and fills of a trace, each with its launch configuration."""
    return Counter(
        (event["name"], *(str(event.get("args", {}).get(key)) for key in ("grid", "block", "shared memory", "bytes")))
        for event in trace["traceEvents"]
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )


def _compared(samples: Samples, *, limit: float, unit: str = "us") -> dict[str, Any]:
    """Medians, and the differences of adjacent samples: absolute in ns, else relative."""
    pairs = list(zip(samples["direct"], samples["routed"], strict=True))
    differences = [routed - direct if unit == "ns" else routed / direct - 1 for direct, routed in pairs]
    quarters = statistics.quantiles(differences, n=4)
    return {
        "unit": unit,
        **{name: statistics.median(found) for name, found in samples.items()},
        "difference": statistics.median(differences),
        "spread": [quarters[0], quarters[2]],
        "limit": limit,
        "rounds": len(pairs),
        "samples": samples,
    }


# -- captures while solutions are built ----------------------------------------------------------


def capture_while_building(root: Path, device: str, report: Any, kind: Kind) -> list[str]:
    """Capture CUDA graphs in global mode while a background thread builds a solution, and while it first runs it.

    Returns:
        What went wrong.
    """
    problems = []
    rows = []
    for moment in ("built", "first run"):
        with TemporaryDirectory() as folder:
            unseen(root, Path(folder), device, *kind)
            try:
                row = capture_once(Path(folder), device, moment, *kind)
            except Exception as error:  # noqa: BLE001 a failing capture is the result
                problems.append(f"a capture while a solution is {moment}: {type(error).__name__}: {error}")
                continue
        rows.append(row)
        problems += [f"a capture while a solution is {moment}: {problem}" for problem in row["problems"]]
    header = (
        "meanwhile",
        "seconds",
        "calls captured",
        "by the fallback",
        "by the solution",
        "hits of 10 calls afterwards",
    )
    keys = ("moment", "seconds", "captured", "misses_in_capture", "hits_in_capture", "hits_afterwards")
    report.table("Global-mode captures meanwhile", header, [[row[key] for key in keys] for row in rows])
    report.numbers["captures"] = rows
    return problems


def unseen(root: Path, to: Path, device: str, definition: Definition, axes: Mapping[str, int]) -> None:
    """A data set with a Triton solution that is not compiled yet, and a trace by which it is chosen.

    The trace is one of a solution that differs in its kernel's name alone.
    """
    trace_set = TraceSet.from_path(root)
    traces = [trace for trace in trace_set.traces[definition.name] if trace.is_successful()]
    known = next(t for t in traces if "triton" in str(t.solution) and dict(t.workload.axes) == dict(axes))
    solution = trace_set.get_solution(str(known.solution))
    assert solution is not None
    assert known.evaluation is not None
    mark = uuid4().hex
    sources = [SourceFile(s.path, s.content.replace("rmsnorm_rows", f"rows_{mark}")) for s in solution.sources]
    fresh = attrs.evolve(solution, name=f"unseen_{mark}", sources=tuple(sources))
    evaluation = attrs.evolve(known.evaluation, extra={"solution_hash": fresh.hash()})
    made = TraceSet.from_path(to)
    made.add_definitions([definition])
    made.add_solutions([fresh])
    made.add_traces([attrs.evolve(known, solution=fresh.name, evaluation=evaluation)])


def capture_once(
    root: Path, device: str, moment: str, definition: Definition, axes: Mapping[str, int]
) -> dict[str, Any]:
    """Capture calls until the background thread is done, and note what serves then and afterwards."""
    runtime = ApplyRuntime(root, ApplyConfig(aot_ratio=0.0, require_speedup=False), stats=True)
    inputs = arguments_for(definition, axes, device, with_outputs=False)
    norm = _norm_with_fallback(definition.name)

    def counts() -> tuple[int, int]:
        found = runtime.stats()[definition.name]
        return sum(found.hits.values()), sum(found.misses.values())

    with runtime:
        wanted = norm(*inputs)  # asks for the solution to be built
        if moment == "first run":
            runtime.wait_until_built(120)
            norm(*inputs)  # asks for it to be run
        before = counts()
        row = {"moment": moment, **_capture(lambda: norm(*inputs), runtime, wanted)}
        during = counts()
        row["hits_afterwards"] = _hits_afterwards(lambda: norm(*inputs), runtime, lambda: counts()[0])
    row["hits_in_capture"], row["misses_in_capture"] = during[0] - before[0], during[1] - before[1]
    row["left_out"] = runtime.left_out()
    row["problems"] += _capture_problems(row)
    return row


def _hits_afterwards(call: Callable[[], Any], runtime: ApplyRuntime, hits: Callable[[], int]) -> int:
    """The hits of ten eager calls, after everything is built and has run."""
    for _ in range(3):
        runtime.wait_until_built(120)
        call()
    before = hits()
    for _ in range(10):
        call()
    return hits() - before


def _norm_with_fallback(name: str) -> Function:
    """A norm with a working fallback."""

    @apply(name)
    def norm(hidden_states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(hidden_states, weight.shape, weight, eps=1e-5)

    return norm


def _capture(call: Callable[[], Any], runtime: ApplyRuntime, wanted: torch.Tensor) -> dict[str, Any]:
    """Capture until the background thread is done, then replay."""
    graph = torch.cuda.CUDAGraph()
    results: list[torch.Tensor] = []
    with _capturing(graph):
        begin = time.perf_counter()
        was_busy = not runtime.wait_until_built(0)
        is_done = False
        while len(results) < LEAST_CAPTURED or not is_done:
            is_done = runtime.wait_until_built(0.02) or time.perf_counter() - begin > MOST_CAPTURE_SECONDS
            results.append(call())
    seconds = time.perf_counter() - begin
    graph.replay()
    torch.cuda.synchronize()
    wrong = sum(not torch.allclose(one.float(), wanted.float(), rtol=2e-2, atol=2e-2) for one in results)
    problems = [f"{wrong} of {len(results)} captured calls replay wrong results"] if wrong else []
    if not was_busy:
        problems.append("nothing went on in the background")
    return {"seconds": f"{seconds:.2f}", "captured": len(results), "problems": problems}


@contextmanager
def _capturing(graph: Any) -> Iterator[None]:
    """Like `torch.cuda.graph` without its garbage collection, during which the background thread would finish."""
    torch.cuda.synchronize()
    stream: Any = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="global")
        try:
            yield
        finally:
            graph.capture_end()
    torch.cuda.synchronize()


def _capture_problems(row: Mapping[str, Any]) -> list[str]:
    problems = [f"{name} was left out: {why}" for name, why in row["left_out"].items()]
    if row["hits_afterwards"] != 10:
        problems.append("the solution does not serve afterwards")
    if row["moment"] == "built" and row["hits_in_capture"]:
        problems.append("a solution that had never run was captured")
    return problems
