"""Times the table of 200 definitions, 2,000 solutions and 200,000 traces: made, from the cache, and choosing alone.

    python packages/fib-apply/benchmarks/bench_table.py [--keep DIR]

Each run is a process of its own; medians are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fib_schema import Definition, EvaluationStatus, TraceSet

DEFINITIONS = 200
AUTHORS = ("baseline", *(f"author-{i}" for i in range(9)))
WORKLOADS = 100
HARDWARE = "NVIDIA H200"
LIMITS = {
    "made (s)": 4.0,
    "enable_apply, nothing cached (s)": 4.0,
    "from the cache (s)": 0.1,
    "enable_apply, cached (s)": 0.1,
    "choosing alone (s)": 1.0,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="write the data set here, or use the one that is here")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(PARTS[arguments.part](arguments.keep)))
        return
    with tempfile.TemporaryDirectory(prefix="fib-bench-table-") as folder:
        root = arguments.keep or Path(folder)
        if not (root / "traces").exists():
            write_data_set(root)
        show([_run_part(part, root) for _ in range(arguments.runs) for part in PARTS])


def _run_part(part: str, root: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--part", part, "--keep", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def show(results: list[dict[str, float]]) -> None:
    for name in dict.fromkeys(name for result in results for name in result):
        values = [result[name] for result in results if name in result]
        limit = f"at most {LIMITS[name]:g}" if name in LIMITS else ""
        print(f"{name:32} {statistics.median(values):9.4g}  ({min(values):.4g} to {max(values):.4g})  {limit}")


def measure_table(root: Path) -> dict[str, float]:
    """Times of making, opening and using a table."""
    from fib_apply.selection.table import ApplyTable

    with tempfile.TemporaryDirectory(prefix="fib-bench-table-cache-") as cache:
        start = time.perf_counter()
        made = ApplyTable.load_or_build(root, cache_root=cache)
        was_made = time.perf_counter()
        cached = ApplyTable.load_or_build(root, cache_root=cache)
        was_opened = time.perf_counter()
        winners = cached.winners(HARDWARE)
        was_won = time.perf_counter()
        first = cached.rankings(cached.definitions[0])
        was_decoded = time.perf_counter()
        size = sum(path.stat().st_size for path in Path(cache).rglob("*.table"))
    assert cached.digest == made.digest
    assert winners
    assert len(first[HARDWARE].by_key) == WORKLOADS
    return {
        "made (s)": was_made - start,
        "from the cache (s)": was_opened - was_made,
        "winners (s)": was_won - was_opened,
        "rankings of one definition (s)": was_decoded - was_won,
        "file (MB)": size / 1e6,
    }


def measure_enabling(root: Path) -> dict[str, float]:
    """Times of `enable_apply` without builds: the traces are of other hardware."""
    import torch
    from fib_apply import enable_apply

    taken = {}
    assert torch.__version__  # an engine has imported it
    with tempfile.TemporaryDirectory(prefix="fib-bench-table-cache-") as cache:
        os.environ["FIB_CACHE_PATH"] = cache
        for state in ("nothing cached", "cached"):
            start = time.perf_counter()
            enable_apply(root).stop()
            taken[f"enable_apply, {state} (s)"] = time.perf_counter() - start
    return taken


def measure_choosing(root: Path) -> dict[str, float]:
    """Times of choosing solutions from traces in memory."""
    import gc

    from fib_apply.config import ApplyConfig
    from fib_apply.key import ApplyKeyFactory
    from fib_apply.selection.rules import SolutionFacts, select

    del root
    with tempfile.TemporaryDirectory(prefix="fib-bench-choose-") as folder:
        write_data_set(Path(folder), definitions=20)
        trace_set = TraceSet.from_path(folder)
        seconds = 0.0
        gc.disable()
        for name, definition in trace_set.definitions.items():
            traces = trace_set.traces[name]
            facts = [SolutionFacts.from_solution(solution) for solution in trace_set.solutions[name]]
            start = time.perf_counter()
            select(definition, traces, facts, ApplyConfig(), ApplyKeyFactory.specialize(definition))
            seconds += time.perf_counter() - start
    return {"choosing alone (s)": seconds * DEFINITIONS / 20}


def write_data_set(root: Path, definitions: int = DEFINITIONS) -> None:
    """Write the set below `root`; the same bytes every time. Half of the authors have our own traces' extras."""
    rng = random.Random(0)
    for index in range(definitions):
        name = f"op_{index:03d}_n{128 * (index + 1)}"
        _write(root / "definitions" / "gemm" / f"{name}.json", [_definition(name)])
        for number, author in enumerate(AUTHORS):
            solution = f"{name}_{author}"
            path = root / "solutions" / author / "gemm" / name / f"{solution}.json"
            _write(path, [_solution(solution, name, author)])
            traces = [_trace(rng, name, solution, m, has_extras=number % 2 == 1) for m in range(1, WORKLOADS + 1)]
            _write(root / "traces" / author / "gemm" / f"{name}.jsonl", traces)


def _definition(name: str) -> dict[str, object]:
    definition: dict[str, object] = {
        "name": name,
        "op_type": "gemm",
        "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 128}, "K": {"type": "const", "value": 2048}},
        "inputs": {n: {"shape": [a, "K"], "dtype": "float16"} for n, a in (("A", "M"), ("B", "N"))},
        "outputs": {"C": {"shape": ["M", "N"], "dtype": "float16"}},
        "reference": "import torch\n\ndef run(A, B):\n    return torch.matmul(A, B.T)\n",
    }
    assert set(definition) <= set(Definition.__annotations__)
    return definition


def _solution(name: str, definition: str, author: str) -> dict[str, object]:
    spec = {"language": "python", "target_hardware": [HARDWARE], "entry_point": "main.py::run"}
    sources = [{"path": "main.py", "content": "import torch\n\n" + "# a line of code\n" * 150}]
    return {"name": name, "definition": definition, "author": author, "spec": spec, "sources": sources}


def _trace(rng: random.Random, definition: str, solution: str, m: int, *, has_extras: bool) -> dict[str, object]:
    status = str(EvaluationStatus.PASSED) if rng.random() < 0.9 else str(EvaluationStatus.RUNTIME_ERROR)
    latency, reference = rng.uniform(0.01, 0.1), rng.uniform(0.05, 0.2)
    timing = {"method": "graph", "interval_ms": [latency * 0.99, latency * 1.01], "samples": 50}
    tolerance = {"atol": 0.01, "rtol": 0.01, "required_matched_ratio": None}
    passed: dict[str, dict[str, object]] = {
        "correctness": {"max_relative_error": rng.random() / 100, "max_absolute_error": rng.random() / 100},
        "performance": {
            "latency_ms": latency,
            "reference_latency_ms": reference,
            "speedup_factor": reference / latency,
        },
    }
    if has_extras:
        passed["correctness"]["extra"] = tolerance
        passed["performance"]["extra"] = {"timing": timing}
    libs = {"torch": "2.11.0+cu130", "triton": "3.6.0", "cuda": "13.0", "python": "3.12.3"}
    return {
        "definition": definition,
        "workload": {
            "axes": {"M": m},
            "inputs": {"A": {"type": "random"}, "B": {"type": "random"}},
            "uuid": f"{definition}-{m:08d}-0000-4000-8000-000000000000",
        },
        "solution": solution,
        "evaluation": {
            "status": status,
            "environment": {"hardware": HARDWARE, "libs": libs},
            "timestamp": "2026-01-01T00:00:00.000000",
            "log": "x" * 200,
            **(passed if status == EvaluationStatus.PASSED else {}),
        },
    }


def _write(path: Path, values: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


PARTS = {"table": measure_table, "enable": measure_enabling, "choose": measure_choosing}

if __name__ == "__main__":
    main()
