"""The suite of 137 pairs on a device: four clients of one server, against ``fib-bench run``, as a table in Markdown.

Fused add and rmsnorm in torch, Triton and CUDA, a gemm in torch and Triton, on the workloads that the data set records:
11 solutions. A server builds each submission anew, so its run compares with ``fib-bench run`` with nothing built, while
``--runs direct warm`` adds the latter with everything built. ``--device cpu`` tries the script out with small work.
It ends within `--budget` seconds; a run that is likely not to fit is not begun, and the report names it.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import httpx
from fib_bench import Benchmark, BenchmarkConfig
from fib_bench.events import Event, Working
from fib_bench.execution.scheduler import concurrency_of
from fib_compile.device import env_snapshot, hardware_from_device
from fib_schema import Definition, Solution, Trace, TraceSet, Workload
from fib_serve import Client
from service import FAST, Service, machine

sys.path.append(str(Path(__file__).parents[3] / "tests-integration" / "support"))

from solution_table import entry_of

SUITE = {
    r"fused_add_rmsnorm_h(2048|4096|7168)": (
        "fused_add_rmsnorm_torch.py",
        "fused_add_rmsnorm_triton.py",
        "fused_add_rmsnorm.cu",
    ),
    r"gemm_n128_k2048": ("gemm_torch.py", "gemm_triton.py"),
}
CLIENTS = 4
RUNS = {
    "direct": ("`fib-bench run`", "nothing"),
    "server": (f"{CLIENTS} clients of a server", "nothing"),
    "warm": ("`fib-bench run`", "everything"),
}
"""Ways to run the suite, and what was built before."""
SMALL_WORKLOADS = 2
"""Of each definition on the CPU."""


@attrs.frozen
class Suite:
    """Definitions with their workloads and solutions."""

    device: str
    parts: tuple[tuple[Definition, tuple[Workload, ...], tuple[Solution, ...]], ...]

    @property
    def pairs(self) -> int:
        """The number of evaluations."""
        return sum(len(workloads) * len(solutions) for _, workloads, solutions in self.parts)

    @property
    def solutions(self) -> list[Solution]:
        """All solutions."""
        return [solution for _, _, solutions in self.parts for solution in solutions]

    @classmethod
    def read(cls, data_set: TraceSet, device: str) -> Suite:
        """The suite for a device; on the CPU the torch solutions on two workloads of each definition."""
        is_cuda, hardware, parts = device.startswith("cuda"), hardware_from_device(device), []
        for pattern, files in SUITE.items():
            for name in filter(re.compile(pattern).fullmatch, data_set.definitions):
                definition = data_set.definitions[name]
                workloads = [trace.workload for trace in data_set.workloads.get(name, [])]
                if not is_cuda:
                    workloads = sorted(workloads, key=lambda one: max(one.axes.values()))[:SMALL_WORKLOADS]
                chosen = [file for file in files if is_cuda or "torch" in file]
                parts.append(
                    (definition, tuple(workloads), tuple(entry_of(f).solution(definition, hardware) for f in chosen))
                )
        return cls(device, tuple(parts))

    def write(self, root: Path, *, with_solutions: bool) -> TraceSet:
        """Write a data set with the suite."""
        root.mkdir()
        trace_set = TraceSet.from_path(root)
        for definition, workloads, solutions in self.parts:
            trace_set.add_definitions([definition])
            trace_set.add_solutions(solutions if with_solutions else [])
            trace_set.add_traces([Trace(definition.name, workload) for workload in workloads])
        return trace_set


@attrs.frozen
class Run:
    """One run of the suite."""

    way: str
    state: str
    evaluated: int
    passed: int
    start_seconds: float
    seconds: float
    """Without the start of processes: from the first evaluation or the first post to the last result."""
    levels: tuple[int, ...]
    """Isolation of the workers."""
    failures: tuple[str, ...]


def settings_of(device: str) -> tuple[str, ...]:
    """The options of all evaluations: the default ones on a GPU, short ones on the CPU."""
    return () if device.startswith("cuda") else FAST


def run_directly(suite: Suite, folder: Path, name: str) -> Run:
    """The work of ``fib-bench run``; `name` is one of `RUNS`."""
    options = settings_of(suite.device)
    fields = {
        option.removeprefix("--").replace("-", "_"): float(value) if "." in value else int(value)
        for option, value in zip(options[::2], options[1::2], strict=True)
    }
    trace_set = suite.write(folder / name, with_solutions=True)
    begun: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, Working) and not begun:
            begun.append(time.perf_counter())

    begin = time.perf_counter()
    config = BenchmarkConfig(device=suite.device, **fields)  # type: ignore[arg-type]
    with Benchmark(trace_set, config) as benchmark:
        result = benchmark.run(observe=note)
    first = begun[0] if begun else begin
    skipped = [str(skip) for skip in result.failures]
    return _run(*RUNS[name], result.traces, skipped, (begin, first, time.perf_counter()))


def run_by_clients(suite: Suite, folder: Path, services: list[Service]) -> Run:
    """The work of four clients, each with every fourth solution, submitted at once."""
    count = concurrency_of(BenchmarkConfig(), suite.device)
    options = ["--max-running", "1000", "--allow-isolation", "0"]
    root = folder / "server"
    suite.write(root, with_solutions=False)
    begin = time.perf_counter()
    with Service(root, *options, device=suite.device, settings=settings_of(suite.device)) as service:
        services.append(service)
        wait_for_workers(service, count)
        first = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as pool:
            parts = [suite.solutions[index::CLIENTS] for index in range(CLIENTS)]
            found = list(pool.map(lambda part: submit_all(service.address, part), parts))
        end = time.perf_counter()
    traces = [trace for some, _ in found for trace in some]
    problems = [problem for _, some in found for problem in some]
    return _run(*RUNS["server"], traces, problems, (begin, first, end))


def submit_all(address: str, solutions: Sequence[Solution]) -> tuple[list[Trace], list[str]]:
    """Submit solutions at once and wait for all; returns their traces and errors."""
    traces: list[Trace] = []
    problems: list[str] = []
    with Client(address) as client:
        made = [client.submit(solution) for solution in solutions]
        for info in made:
            done = client.wait(info.id)
            problems += [f"{done.id}: {done.error}"] if done.error else []
            traces += client.traces(info.id)
    return traces, problems


def wait_for_workers(service: Service, count: int) -> None:
    """Wait until all workers of the device are ready."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if len(httpx.get(f"{service.address}/health").json()["workers"]) >= count:
            return
        time.sleep(0.1)
    raise SystemExit(f"fewer than {count} workers have started:\n{service.log.read_text()[-3000:]}")


def levels_of(traces: Iterable[Trace]) -> list[int]:
    """The isolation levels of workers that traces state."""
    extras: list[Mapping[str, Any]] = [trace.evaluation.extra or {} for trace in traces if trace.evaluation is not None]
    return sorted({extra["isolation"]["level"] for extra in extras if "isolation" in extra})


def _run(
    way: str, state: str, traces: Sequence[Trace], problems: Sequence[str], times: tuple[float, float, float]
) -> Run:
    begin, first, end = times
    failed = [
        f"{trace.solution} {dict(trace.workload.axes)}: {trace.evaluation and trace.evaluation.status}"
        for trace in traces
        if not trace.is_successful()
    ]
    passed = sum(trace.is_successful() for trace in traces)
    levels = tuple(levels_of(traces))
    return Run(way, state, len(traces), passed, first - begin, end - first, levels, (*problems, *failed))


def report(suite: Suite, runs: Sequence[Run], end: str) -> str:
    """The table of the runs so far."""
    libs = env_snapshot(suite.device).libs
    versions = ", ".join(f"{name} {libs[name]}" for name in ("torch", "triton", "cuda") if name in libs)
    lines = ["# The suite through a server", "", f"{hardware_from_device(suite.device)}, {machine()}, {versions}"]
    lines += ["", f"{len(suite.solutions)} solutions, {suite.pairs} pairs; `benchmarks/on_gpu.py`", ""]
    header = (
        "run",
        "built before",
        "passed",
        "start, s",
        "seconds",
        "pairs a second",
        "overhead per evaluation",
        "isolation",
    )
    lines += ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    direct = {run.state: run for run in runs if run.way == "`fib-bench run`"}
    for run in runs:
        other = direct.get(run.state)
        overhead = (
            ""
            if other in (run, None) or not run.evaluated
            else (f"{(run.seconds / run.evaluated - other.seconds / max(other.evaluated, 1)) * 1e3:+.0f} ms")
        )
        cells: tuple[str, ...] = (
            run.way,
            run.state,
            f"{run.passed}/{suite.pairs}",
            f"{run.start_seconds:.1f}",
            f"{run.seconds:.1f}",
        )
        cells += (f"{run.evaluated / run.seconds:.2f}", overhead, ", ".join(map(str, run.levels)))
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "The seconds do not include the start of processes, which has a column of its own.", ""]
    lines += [f"- {run.way}, {run.state}: {text.splitlines()[0][:300]}" for run in runs for text in run.failures[:10]]
    return "\n".join([*lines, *([end] if end else [])]) + "\n"


def main() -> None:
    """Run the suite both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, required=True, help="folder of the flashinfer-trace data set")
    parser.add_argument("--output", type=Path, default=Path("out"), help="folder for suite.md")
    parser.add_argument("--device", default="cuda:0", help="`cpu` tries the script out with small work")
    parser.add_argument("--budget", type=float, default=205.0, metavar="SECONDS", help="bound on everything")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=["direct", "server"], help="`warm` follows `direct`")
    chosen = parser.parse_args()
    if "warm" in chosen.runs and "direct" not in chosen.runs[: chosen.runs.index("warm")]:
        parser.error("--runs: `warm` needs what `direct` has built before it")
    began = time.monotonic()
    suite = Suite.read(TraceSet.from_path(chosen.dataset), chosen.device)
    runs: list[Run] = []
    services: list[Service] = []
    chosen.output.mkdir(parents=True, exist_ok=True)

    def save(end: str = "") -> None:
        text = report(suite, runs, end)
        (chosen.output / "suite.md").write_text(text, "utf-8")
        print(text, flush=True)

    def give_up() -> None:
        save(f"The rest did not fit into {chosen.budget:.0f} s.")
        for service in services:
            service.kill()  # its processes end with it, as judges end with this one
        os._exit(1)

    timer = threading.Timer(chosen.budget, give_up)
    timer.daemon = True
    timer.start()
    left_out: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in chosen.runs:
            left = chosen.budget - (time.monotonic() - began)
            expected = max((run.start_seconds + run.seconds for run in runs), default=0.0)  # as long as one before
            if expected > left:
                left_out.append(f"{' with '.join(RUNS[name])} built: {left:.0f} of {chosen.budget:.0f} s are left.")
                continue
            if name == "server":
                os.environ["FIB_CACHE_PATH"] = str(folder / "cache-server")
                runs.append(run_by_clients(suite, folder, services))
            else:
                os.environ["FIB_CACHE_PATH"] = str(folder / "cache-direct")
                runs.append(run_directly(suite, folder, name))
            save(f"{time.monotonic() - began:.0f} s so far.")
    if left_out:
        save("\n".join(["Not run:", "", *(f"- {line}" for line in left_out)]))
    else:
        save()
    timer.cancel()
    if any(run.passed != suite.pairs for run in runs):
        sys.exit("not every pair has passed")


if __name__ == "__main__":
    main()
