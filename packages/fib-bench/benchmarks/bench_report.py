"""Measures the reports of 200,000 traces with all that this harness writes, and prints a table in Markdown.

Run it with ``python packages/fib-bench/benchmarks/bench_report.py``; it takes about two minutes and 600 MB
of disk. Exits with 1 if the page takes more than 30 s to make or has more than 20 MiB.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

AUTHORS = ("baseline", *(f"author-{i}" for i in range(9)))
LANGUAGES = ("python", "triton", "cuda")
LIMIT_SECONDS = 30.0
LIMIT_MIB = 20.0


def write_set(root: Path, definitions: int, workloads: int) -> int:
    """Write a data set; the same bytes every time. Returns the number of traces."""
    rng = random.Random(0)
    for index in range(definitions):
        name = f"gemm_n{128 * (index + 1)}_k4096"
        _write(root / "definitions" / "gemm" / f"{name}.json", json.dumps(_definition(name, 128 * (index + 1))))
        made = [_workload(name, number, workloads) for number in range(workloads)]
        lines = [{"definition": name, "workload": w, "solution": None, "evaluation": None} for w in made]
        _write(root / "workloads" / "gemm" / f"{name}.jsonl", _lines(lines))
        for skill, author in enumerate(AUTHORS):
            solution = f"{name}_{author}"
            path = root / "solutions" / author / "gemm" / name / f"{solution}.json"
            _write(path, json.dumps(_solution(solution, name, author, LANGUAGES[skill % 3])))
            speed = 0.25 + 0.08 * skill + rng.uniform(-0.1, 0.1)
            fails = 0.0 if skill < 4 else 0.02 * skill
            traces = [
                {
                    "definition": name,
                    "workload": w,
                    "solution": solution,
                    "evaluation": _evaluation(rng, w, speed, fails),
                }
                for w in made
            ]
            _write(root / "traces" / author / "gemm" / f"{name}.jsonl", _lines(traces))
    return definitions * workloads * len(AUTHORS)


def _definition(name: str, columns: int) -> dict[str, Any]:
    return {
        "name": name,
        "op_type": "gemm",
        "description": "C = A B^T with weights of a projection.",
        "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": columns}, "K": {"type": "const", "value": 4096}},
        "inputs": {n: {"shape": [a, "K"], "dtype": "float16"} for n, a in (("A", "M"), ("B", "N"))},
        "outputs": {"C": {"shape": ["M", "N"], "dtype": "float16"}},
        "reference": "import torch\n\ndef run(A, B):\n    return torch.matmul(A, B.T)\n",
    }


def _solution(name: str, definition: str, author: str, language: str) -> dict[str, Any]:
    return {
        "name": name,
        "definition": definition,
        "author": author,
        "description": "A solution.",
        "spec": {
            "language": language,
            "target_hardware": ["NVIDIA H200"],
            "entry_point": "main.cu::run" if language == "cuda" else "main.py::run",
            "dependencies": [],
            "destination_passing_style": False,
        },
        "sources": [{"path": "main.cu" if language == "cuda" else "main.py", "content": "# a line of code\n" * 150}],
    }


def _workload(definition: str, number: int, count: int) -> dict[str, Any]:
    size = round(2 ** (14 * number / max(count - 1, 1)))
    return {
        "axes": {"M": size},
        "inputs": {"A": {"type": "random"}, "B": {"type": "random"}},
        "uuid": f"{definition[:12]}-{number:04d}-4000-8000-{size:012d}",
    }


def _evaluation(rng: random.Random, workload: dict[str, Any], speed: float, fails: float) -> dict[str, Any]:
    status = "PASSED"
    if rng.random() < fails:
        status = rng.choice(("INCORRECT_NUMERICAL", "RUNTIME_ERROR", "COMPILE_ERROR", "TIMEOUT"))
    evaluation: dict[str, Any] = {
        "status": status,
        "environment": {
            "hardware": "NVIDIA H200",
            "libs": {"torch": "2.13.0+cu130", "triton": "3.6.0", "cuda": "13.0", "python": "3.12.3"},
        },
        "timestamp": f"2026-01-{rng.randint(1, 28):02d}T00:00:00.000000",
        "log": "" if status == "PASSED" else _log(rng),
        "correctness": None,
        "performance": None,
        "extra": {
            "solution_hash": f"{rng.getrandbits(256):064x}",
            "flags": ["fixed_inputs"],
            "isolation": {"level": 2, "name": "confined", "measures": ["landlock", "no_new_privs", "limits"]},
        },
    }
    if status in ("PASSED", "INCORRECT_NUMERICAL"):
        evaluation["correctness"] = {"max_relative_error": rng.random() / 100, "max_absolute_error": rng.random() / 100}
    if status == "PASSED":
        evaluation["performance"] = _performance(rng, workload["axes"]["M"], speed)
    return evaluation


def _performance(rng: random.Random, rows: int, speed: float) -> dict[str, Any]:
    moved, operations = 2 * 4096 * (rows + 2048) + 4096 * rows, 2 * rows * 2048 * 4096
    attainable_ms = 1e3 * max(moved / 4.0e12, operations / 7.0e14)
    latency = (attainable_ms + 0.002) / min(speed, 0.95) * rng.uniform(0.98, 1.02)
    reference = (attainable_ms + 0.006) / 0.4 * rng.uniform(0.98, 1.02)
    return {
        "latency_ms": latency,
        "reference_latency_ms": reference,
        "speedup_factor": reference / latency,
        "extra": {
            "timing": _timing(latency),
            "reference_timing": _timing(reference),
            "speed_of_light": {
                "bytes": moved,
                "achieved_gb_per_s": round(moved / latency / 1e6, 1),
                "operations": operations,
                "achieved_tflop_per_s": round(operations / latency / 1e9, 2),
                "attainable_fraction": round(attainable_ms / latency, 4),
            },
        },
    }


def _timing(latency: float) -> dict[str, Any]:
    return {
        "method": "handshake",
        "samples": 128,
        "interval_ms": [latency * 0.997, latency * 1.003],
        "spread": 0.0061,
        "call_ms": latency + 0.012,
        "overhead_us": 0.91,
    }


def _log(rng: random.Random) -> str:
    """A traceback that no other trace has."""
    place = f"RuntimeError: output 'C'[{rng.randrange(2048)}, {rng.randrange(2048)}] is {rng.random()}"
    frames = "".join(
        f'  File "main.py", line {line}, in stage_{line}\n    return inner(tile, {line})\n' for line in range(12)
    )
    return f"Traceback (most recent call last):\n{frames}{place}\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _lines(values: list[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(value)}\n" for value in values)


def timed(*words: object) -> float:
    """Seconds that a report takes, start of the interpreter included."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "fib_bench.cli.main", "report", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--definitions", type=int, default=200)
    parser.add_argument("--workloads", type=int, default=100)
    parser.add_argument("--keep", type=Path, help="write the set and the page here, and leave them")
    arguments = parser.parse_args()
    folder = arguments.keep or Path(tempfile.mkdtemp())
    try:
        count = write_set(folder / "set", arguments.definitions, arguments.workloads)
        page = folder / "report.html"
        html_seconds = timed("html", folder / "set", "--output", page)
        mib = page.stat().st_size / 2**20
        print(f"{count:,} traces\n\n| report | seconds | MiB |\n| --- | --- | --- |")
        print(f"| html | {html_seconds:.1f} (at most {LIMIT_SECONDS:g}) | {mib:.1f} (at most {LIMIT_MIB:g}) |")
        for name, words in {
            "summary": ("summary", folder / "set"),
            "best": ("best", folder / "set", "--json"),
            "compare": ("compare", folder / "set", folder / "set"),
            "merge": ("merge", folder / "set", folder / "set", "--into", folder / "merged"),
        }.items():
            print(f"| {name} | {timed(*words):.1f} | |", flush=True)
    finally:
        shutil.rmtree(folder / "merged", ignore_errors=True)
        if arguments.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if html_seconds <= LIMIT_SECONDS and mib <= LIMIT_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
