"""Writes the data set that the benchmarks measure: 200 definitions, 2,000 solutions, 200,000 traces."""

from __future__ import annotations

import json
import random
from pathlib import Path

DEFINITIONS = 200
AUTHORS = ("baseline", *(f"author-{i}" for i in range(9)))
WORKLOADS = 100
STATUSES = ("PASSED",) * 17 + ("INCORRECT_NUMERICAL", "RUNTIME_ERROR", "COMPILE_ERROR")


def write_data_set(root: Path, definitions: int = DEFINITIONS) -> None:
    """Write the set below `root`, or its first definitions; the same bytes every time."""
    rng = random.Random(0)
    for index in range(definitions):
        name = f"op_{index:03d}_n{128 * (index + 1)}"
        _write_json(root / "definitions" / "gemm" / f"{name}.json", _definition(name))
        workloads = [_workload(name, number) for number in range(WORKLOADS)]
        lines = [{"definition": name, "workload": w, "solution": None, "evaluation": None} for w in workloads]
        _write_lines(root / "workloads" / "gemm" / f"{name}.jsonl", lines)
        for author in AUTHORS:
            solution = f"{name}_{author}"
            path = root / "solutions" / author / "gemm" / name / f"{solution}.json"
            _write_json(path, _solution(solution, name, author))
            traces = [
                {"definition": name, "workload": w, "solution": solution, "evaluation": _evaluation(rng, author)}
                for w in workloads
            ]
            _write_lines(root / "traces" / author / "gemm" / f"{name}.jsonl", traces)


def _definition(name: str) -> dict[str, object]:
    return {
        "name": name,
        "op_type": "gemm",
        "description": "C = A B^T",
        "tags": ["status:verified"],
        "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 128}, "K": {"type": "const", "value": 2048}},
        "inputs": {n: {"shape": [a, "K"], "dtype": "float16"} for n, a in (("A", "M"), ("B", "N"))},
        "outputs": {"C": {"shape": ["M", "N"], "dtype": "float16"}},
        "reference": "import torch\n\ndef run(A, B):\n    return torch.matmul(A, B.T)\n",
    }


def _solution(name: str, definition: str, author: str) -> dict[str, object]:
    return {
        "name": name,
        "definition": definition,
        "author": author,
        "description": "A solution.",
        "spec": {
            "language": "python",
            "target_hardware": ["NVIDIA H200"],
            "entry_point": "main.py::run",
            "dependencies": [],
            "destination_passing_style": False,
        },
        "sources": [{"path": "main.py", "content": "import torch\n\n" + "# a line of code\n" * 150}],
    }


def _workload(definition: str, number: int) -> dict[str, object]:
    return {
        "axes": {"M": number + 1},
        "inputs": {"A": {"type": "random"}, "B": {"type": "random"}},
        "uuid": f"{definition}-{number:08d}-0000-4000-8000-000000000000",
    }


def _evaluation(rng: random.Random, author: str) -> dict[str, object]:
    status = "PASSED" if author == "baseline" else rng.choice(STATUSES)
    evaluation: dict[str, object] = {
        "status": status,
        "environment": {
            "hardware": "NVIDIA H200",
            "libs": {"torch": "2.11.0+cu130", "triton": "3.6.0", "cuda": "13.0", "python": "3.12.3"},
        },
        "timestamp": "2026-01-01T00:00:00.000000",
        "log": "x" * 200,
        "correctness": None,
        "performance": None,
    }
    if status in ("PASSED", "INCORRECT_NUMERICAL"):
        evaluation["correctness"] = {
            "max_relative_error": rng.random() / 100,
            "max_absolute_error": rng.random() / 100,
            "extra": None,
        }
    if status == "PASSED":
        latency, reference = rng.uniform(0.01, 0.1), rng.uniform(0.05, 0.2)
        evaluation["performance"] = {
            "latency_ms": latency,
            "reference_latency_ms": reference,
            "speedup_factor": reference / latency,
        }
    return evaluation


def _write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2))


def _write_lines(path: Path, values: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
