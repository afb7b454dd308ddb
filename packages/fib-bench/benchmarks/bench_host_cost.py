"""Measures what an evaluation costs the host: CPU time of judge, fork server and workers, messages and their bytes.

A judge of this process evaluates small functions on the CPU, a fixed number of timed passes each, after a first
definition has warmed it up. Workers run the functions in between, which take microseconds, so nearly all of the time
is that of the harness. With `--against DIR`, the root of another checkout, both are measured in turns: each run is a
process of its own, with the sources of its checkout. `--profile` prints the functions of the judge by CPU time.

The CPU time of workers includes their start and their end. Messages are those between judge and workers.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
from fib_bench import BenchmarkConfig
from fib_bench.events import Evaluated, PhaseTimes, Skipped
from fib_bench.judge.device import FOLDER_VARIABLE
from fib_bench.judge.evaluate import Judge
from fib_bench.plan import DefinitionPlan
from fib_bench.worker import client
from fib_bench.worker.outside_checks import children, descendants
from fib_schema import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Definition,
    RandomInput,
    Solution,
    SourceFile,
    TensorSpec,
    Workload,
)

_REFERENCE = """import torch

def run(x, weight):
    values = x.float()
    return (values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + {epsilon}) * weight).to(x.dtype)
"""
_SOLUTION = """import torch

def run(x, weight):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, {epsilon})  # {index}
"""
_FIXED_WORK: Mapping[str, Any] = {"iterations": 20, "max_iterations": 20, "confidence": 0.0, "measure_seconds": 60.0}
_ROOT = Path(__file__).parents[3]


def plan_of(number: int, workloads: int, solutions: int) -> DefinitionPlan:
    """All solutions of one rmsnorm on all its workloads; each definition has another epsilon."""
    name, epsilon = f"rmsnorm_{number}", f"{number + 1}e-6"
    tensor, weight = TensorSpec(("n", "h"), "float32"), TensorSpec(("h",), "float32")
    axes = {"n": AxisVar(), "h": AxisConst(128)}
    reference = _REFERENCE.format(epsilon=epsilon)
    definition = Definition(name, "rmsnorm", axes, {"x": tensor, "weight": weight}, {"y": tensor}, reference)
    spec = BuildSpec("python", ("cpu",), "m.py::run", destination_passing_style=False)
    sources = [SourceFile("m.py", _SOLUTION.format(epsilon=epsilon, index=index)) for index in range(solutions)]
    made = tuple(Solution(f"{name}_{i}", name, "fib", spec, (source,)) for i, source in enumerate(sources))
    random = {"x": RandomInput(), "weight": RandomInput()}
    given = tuple(Workload({"n": n + 1}, random, f"{name}-{n}") for n in range(workloads))
    return DefinitionPlan(definition, given, {workload.uuid: made for workload in given})


# -- one run -----------------------------------------------------------------------------------


class Traffic:
    """Counts messages between judge and workers by type, and their bytes."""

    def __init__(self) -> None:
        self.messages: Counter[str] = Counter()
        self.size_bytes = 0

    def clear(self) -> None:
        """Start again from 0."""
        self.messages.clear()
        self.size_bytes = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the messages of all workers during a block."""
        post, answer = client.Worker.post, client.Worker.answer

        def count_request(worker: client.Worker, message: Any, descriptors: tuple[int, ...] = ()) -> None:
            self._count(message)
            post(worker, message, descriptors)

        def count_reply(worker: client.Worker, seconds: float) -> object:
            found = answer(worker, seconds)
            self._count(found)
            return found

        with (
            patch.object(client.Worker, "post", count_request),
            patch.object(client.Worker, "answer", count_reply),
        ):
            yield

    def _count(self, message: Any) -> None:
        self.messages[type(message).__name__] += 1
        self.size_bytes += len(msgspec.msgpack.encode(message)) + 4


class CpuTime:
    """CPU seconds so far of this process, of its fork server, and of all workers that server has forked."""

    def __init__(self) -> None:
        (self._server,) = children()

    def seconds(self) -> dict[str, float]:
        """By kind of process."""
        fields = Path(f"/proc/{self._server}/stat").read_text().rpartition(")")[2].split()
        ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
        running = sum(_cpu_seconds(pid) for pid in descendants(self._server))
        return {"judge": time.process_time(), "server": _cpu_seconds(self._server), "workers": ended + running}


def _cpu_seconds(pid: int) -> float:
    return time.clock_gettime(~pid << 3 | 2)  # the clock of all its threads


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Evaluate all plans but the first, which warms up; numbers of one evaluation."""
    plans = [plan_of(index, options.workloads, options.solutions) for index in range(options.definitions + 1)]
    traffic, phases, profile = Traffic(), Counter[str](), cProfile.Profile(time.process_time)
    with Judge(BenchmarkConfig(**_FIXED_WORK)) as judge:
        _evaluate(judge, plan_of(options.definitions + 1, 2, 2), Counter())
        _evaluate(judge, plans[0], Counter())
        cpu = CpuTime()
        before, begin = cpu.seconds(), time.perf_counter()
        with profile if options.profile else traffic.counted():
            made = sum(_evaluate(judge, plan, phases) for plan in plans[1:])
        wall = time.perf_counter() - begin
        spent = {kind: seconds - before[kind] for kind, seconds in cpu.seconds().items()}
    if options.profile:
        pstats.Stats(profile, stream=sys.stderr).sort_stats(options.sort).print_stats(60)
    per_evaluation = {"wall": wall, **{f"cpu of {kind}": seconds for kind, seconds in spent.items()}}
    return {
        "evaluations": made,
        "ms": {name: seconds / made * 1e3 for name, seconds in per_evaluation.items()},
        "phases": {name: seconds / made * 1e3 for name, seconds in phases.items()},
        "messages": {name: count / made for name, count in sorted(traffic.messages.items())},
        "bytes": traffic.size_bytes / made,
    }


def _evaluate(judge: Judge, plan: DefinitionPlan, phases: Counter[str]) -> int:
    made = 0
    for event in judge.execute(plan):
        match event:
            case Evaluated(trace=trace):
                assert trace.is_successful(), trace.evaluation
                made += 1
            case Skipped(skip=skip):
                sys.exit(f"not evaluated: {skip}")
            case PhaseTimes(seconds=seconds):
                phases.update({str(phase): taken for phase, taken in seconds.items()})
    return made


# -- runs of checkouts in turns ----------------------------------------------------------------


def run_in(root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One run with the sources of a checkout, in a process of its own, which waits for no other run."""
    sources = sorted(map(str, root.glob("packages/*/src")))
    sizes = [f"--{name}={getattr(options, name)}" for name in ("definitions", "workloads", "solutions")]
    with tempfile.TemporaryDirectory() as folder:
        variables = {
            "PYTHONPATH": os.pathsep.join(sources),
            "OMP_WAIT_POLICY": "passive",  # as for a judge
            FOLDER_VARIABLE: folder,
            "FIB_CACHE_PATH": folder,
        }
        command = [sys.executable, __file__, "--child", *sizes]
        printed = subprocess.run(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, check=True).stdout
    found: dict[str, Any] = json.loads(printed)
    return found


def print_table(found: Mapping[str, list[dict[str, Any]]]) -> None:
    """The medians of all numbers, a column for each checkout."""
    first = next(iter(found.values()))[0]
    print(f"{first['evaluations']} evaluations in each run; ms, messages and bytes are for one evaluation\n")
    print(f"| | {' | '.join(found)} |\n| --- {'| --- ' * len(found)}|")
    for group, unit in (("ms", " ms"), ("phases", " ms (phase)"), ("messages", "")):
        names = dict.fromkeys(name for runs in found.values() for run in runs for name in run[group])
        for name in names:
            _print_row(f"{name}{unit}", {k: [run[group].get(name, 0.0) for run in runs] for k, runs in found.items()})
    _print_row("all messages", {k: [sum(run["messages"].values()) for run in runs] for k, runs in found.items()})
    _print_row("bytes", {k: [run["bytes"] for run in runs] for k, runs in found.items()})


def _print_row(name: str, values: Mapping[str, list[float]]) -> None:
    cells = [f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})" for each in values.values()]
    print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--definitions", type=int, default=3)
    parser.add_argument("--workloads", type=int, default=8)
    parser.add_argument("--solutions", type=int, default=6)
    parser.add_argument("--runs", type=int, default=3, help="of each checkout")
    parser.add_argument("--against", type=Path, metavar="DIR", help="root of a checkout to compare with")
    parser.add_argument("--profile", action="store_true", help="profile one run of this checkout")
    parser.add_argument("--sort", default="tottime", help="order of the profile")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child or options.profile:
        print(json.dumps(measure(options)))
        return
    roots = {"before": options.against, "now": _ROOT} if options.against else {"now": _ROOT}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in roots}
    for _ in range(options.runs):
        for name, root in roots.items():
            found[name].append(run_in(root, options))
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}", end="; ")
    print_table(found)


if __name__ == "__main__":
    main()
