"""Check of every builder on a device. It builds and runs real kernels, and prints a table of the results.

Each kernel is built twice, in two fresh processes: from nothing, and from the cache that the first
left behind. Nothing that fails stops the others.

    python on_gpu.py [--out FOLDER]      # everything; FOLDER gets report.md and report.json
    python on_gpu.py --device cpu        # what works without a GPU
    python on_gpu.py --prebuild CACHE    # compile the CUDA kernel for FIB_CUDA_ARCH_LIST, without a GPU
    python on_gpu.py --prebuilt CACHE    # everything, and on a machine with a GPU run what was compiled
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs
from fib_compile import BuilderRegistry, interpreter_environment, jit_environment
from fib_compile.device import hardware_from_device, library_versions
from fib_compile.toolchain import MissingTool, find_cxx, find_nvcc
from fib_schema import AxisConst, AxisVar, BuildSpec, Definition, Solution, SourceFile, TensorSpec

HERE = Path(__file__).resolve().parent
KERNELS = HERE / "kernels"
PREBUILT = "CUDA through TVM-FFI, compiled elsewhere"
CHILD_SECONDS = 280
TESTS_SECONDS = 200


def _tensor(*shape: str) -> TensorSpec:
    return TensorSpec(shape, "float32")


RMSNORM = Definition(
    "rmsnorm_h1024",
    "rmsnorm",
    axes={"n": AxisVar(), "h": AxisConst(1024)},
    inputs={"x": _tensor("n", "h"), "weight": _tensor("h")},
    outputs={"y": _tensor("n", "h")},
    reference=(KERNELS / "rmsnorm.py").read_text(),
)
GEMM = Definition(
    "gemm",
    "gemm",
    axes={"m": AxisVar(), "n": AxisVar(), "k": AxisVar()},
    inputs={"a": _tensor("m", "k"), "b": _tensor("k", "n")},
    outputs={"c": _tensor("m", "n")},
    reference="import torch\n\n\ndef run(a, b):\n    return torch.matmul(a.double(), b.double()).float()\n",
)
SHAPES = {"rmsnorm_h1024": [((1, 1024), (1024,)), ((1000, 1024), (1024,))], "gemm": [((300, 200), (200, 100))]}


@attrs.frozen
class Case:
    """One kernel for one builder."""

    title: str
    language: str
    files: tuple[str, ...]
    runs: str = "cuda"
    """The machine that can run it: ``cuda`` with a GPU, ``cpu`` without one, or ``both``."""
    tensors: str | None = None
    """The device of its tensors, if it differs from the requested one."""
    definition: Definition = RMSNORM
    is_dps: bool = True
    binding: str | None = None
    dependencies: tuple[str, ...] = ()

    def solution(self) -> Solution:
        spec = BuildSpec(
            self.language,
            ("NVIDIA H200", "cpu"),
            f"{self.files[0]}::run",
            self.dependencies,
            destination_passing_style=self.is_dps,
            binding=self.binding,
        )
        sources = [SourceFile(file, (KERNELS / file).read_text()) for file in self.files]
        return Solution(re.sub(r"\W+", "_", self.title.lower()), self.definition.name, "bench", spec, sources)


CUDA_FFI = ("rmsnorm.cu", "rmsnorm.cuh")
CASES = (
    Case("Python", "python", ("rmsnorm.py",), "both", is_dps=False),
    Case("Triton", "triton", ("rmsnorm_triton.py",), "both"),
    Case("TileLang", "tilelang", ("rmsnorm_tilelang.py",)),
    Case("TileLang to C", "tilelang", ("rmsnorm_tilelang_c.py",), "cpu"),
    Case("Helion", "helion", ("rmsnorm_helion.py",), "both"),
    Case("cuTile", "cutile", ("rmsnorm_cutile.py",)),
    Case("CuTe DSL", "cute_dsl", ("rmsnorm_cute_dsl.py",)),
    Case("CUTLASS through TVM-FFI", "cutlass", ("rmsnorm_cutlass.cu",)),
    Case("CUDA through TVM-FFI", "cuda", CUDA_FFI),
    Case(PREBUILT, "cuda", CUDA_FFI),
    Case("C++ through TVM-FFI", "cpp", ("rmsnorm.cpp",), "both", "cpu"),
    Case("C++ with cuBLAS through TVM-FFI", "cpp", ("gemm_cublas.cpp",), definition=GEMM, dependencies=("cublas",)),
    Case("CUDA through torch", "cuda", ("rmsnorm_torch.cu", "rmsnorm.cuh"), binding="torch"),
    Case("C++ through torch", "cpp", ("rmsnorm_torch.cpp",), "both", is_dps=False, binding="torch"),
)


# -- in a process of its own -------------------------------------------------------------------


def build_and_run(case: Case, device: str) -> dict[str, Any]:
    """Child process: build, call and compare; times exclude imports of frameworks."""
    import torch

    _import_framework(case)
    torch.manual_seed(0)
    device = case.tensors or device
    inputs = [[torch.randn(shape, device=device) for shape in shapes] for shapes in SHAPES[case.definition.name]]
    registry = BuilderRegistry.get_instance()
    reference = registry.build_reference(case.definition)
    expected = [reference.call_value_returning(*args) for args in inputs]
    solution = case.solution()
    start = time.perf_counter()
    runnable = registry.build(case.definition, solution)
    built = time.perf_counter()
    runnable.call_value_returning(*inputs[0])
    if device != "cpu":
        torch.cuda.synchronize()
    called = time.perf_counter()
    return {
        "builder": runnable.metadata.build_type,
        "build_ms": (built - start) * 1e3,
        "first_call_ms": (called - built) * 1e3,
        "max_error": max(_errors(runnable, inputs, expected)),
    }


def _import_framework(case: Case) -> None:
    frameworks = {"python": "torch", "cutile": "cuda.tile", "cute_dsl": "cutlass.cute"}
    name = case.solution().spec.language
    with suppress(ImportError):  # the build reports it
        import_module("tvm_ffi" if name.is_compiled else frameworks.get(name, name))


def _errors(runnable: Any, inputs: Sequence[Any], expected: Sequence[Any]) -> list[float]:
    """The largest error of the outputs, for calls in both styles and by name."""
    import torch

    errors = []
    for args, wanted in zip(inputs, expected, strict=True):
        buffer = torch.full_like(wanted, torch.nan)
        runnable.call_destination_passing(*args, buffer)
        by_name = dict(zip(runnable.metadata.definition.inputs, args, strict=True))
        for found in (buffer, runnable.call_value_returning(*args), runnable.call_kwargs(**by_name)):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
            errors.append((found - wanted).abs().max().item())
    return errors


# -- the process that starts them --------------------------------------------------------------


def run_case(case: Case, device: str, root: Path, prebuilt: Path | None) -> dict[str, Any]:
    """Build without a cache, then from the cache; a failure becomes the result."""
    row: dict[str, Any] = {"kernel": case.title, "language": case.language, "result": "correct"}
    if case.runs not in ("both", "cuda" if device != "cpu" else "cpu"):
        return {**row, "result": "not for this device"}
    environment = {"FIB_CACHE_PATH": str(root / re.sub(r"\W+", "_", case.title))}
    if case.title == PREBUILT:
        if prebuilt is None:
            return {**row, "result": "no --prebuilt cache"}
        environment = {"FIB_CACHE_PATH": str(prebuilt), "FIB_CACHE_ONLY": "1"}
    try:
        cold = None if case.title == PREBUILT else _child(case, device, environment)
        return {**row, "cold": cold, "cached": _child(case, device, environment)}
    except subprocess.TimeoutExpired:
        return {**row, "result": "failed", "error": f"took longer than {CHILD_SECONDS} s"}
    except (ChildFailed, OSError) as error:
        return {**row, "result": "failed", "error": str(error)}


class ChildFailed(Exception):
    """A child process that ended without a result; holds the end of its output."""


def _child(case: Case, device: str, environment: Mapping[str, str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, __file__, "--child", case.title, "--device", device, "--out", str(report)]
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=CHILD_SECONDS,
            check=False,
        )
        if not report.exists():
            raise ChildFailed(f"exit code {done.returncode}\n{done.stderr[-3000:]}")
        found: dict[str, Any] = json.loads(report.read_text())
        return found


def run_tests() -> dict[str, Any]:
    """The tests of fib-compile that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-q", str(HERE.parent / "tests")]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TESTS_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"exit_code": None, "output": f"killed after {TESTS_SECONDS} s"}
    return {"exit_code": done.returncode, "output": (done.stdout + done.stderr)[-6000:]}


def prebuild(cache: Path) -> None:
    """Compile the CUDA kernel into a cache, without a GPU."""
    os.environ["FIB_CACHE_PATH"] = str(cache)
    cases = [case for case in CASES if case.title == PREBUILT]
    for outcome in BuilderRegistry.get_instance().build_many([(one.definition, one.solution()) for one in cases]):
        print(f"{outcome.solution.name}: {outcome.state} in {outcome.seconds:.1f} s{outcome.error or ''}")


def versions() -> dict[str, str]:
    """Versions of libraries and compilers."""
    found = library_versions()
    for name, find in (("g++", find_cxx), ("nvcc", lambda: find_nvcc()[0])):
        try:
            numbers = re.findall(r"\d+\.\d+\.\d+", find().version)
        except MissingTool:
            continue
        if numbers:
            found[name] = numbers[0]
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The results in Markdown."""
    heads = ("kernel", "builder", "result", "largest error", "cold: build, first call", "cached: build, first call")
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for row in rows:
        cached: Mapping[str, Any] = row.get("cached") or {}
        error = f"{cached['max_error']:.1e}" if cached else ""
        cells = (
            row["kernel"],
            cached.get("builder", ""),
            row["result"],
            error,
            _times(row.get("cold")),
            _times(cached),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _times(run: Mapping[str, Any] | None) -> str:
    return ", ".join(_time(run[name]) for name in ("build_ms", "first_call_ms")) if run else ""


def _time(ms: float) -> str:
    return f"{ms:.1f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="cuda:N or cpu")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--jobs", type=int, default=4, help="how many kernels at once")
    parser.add_argument("--prebuild", type=Path, metavar="CACHE")
    parser.add_argument("--prebuilt", type=Path, metavar="CACHE")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.prebuild:
        prebuild(options.prebuild)
        return 0
    if options.child:
        case = next(case for case in CASES if case.title == options.child)
        os.environ.update(jit_environment(case.solution()))
        if options.device == "cpu":
            os.environ.update(interpreter_environment(case.solution()))
        options.out.write_text(json.dumps(build_and_run(case, options.device)))
        return 0
    return report(options.device, options.out, options.jobs, options.prebuilt)


def report(device: str, out: Path, jobs: int, prebuilt: Path | None) -> int:
    """Run all checks and write the report; 1 if a check failed."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        rows = list(pool.map(lambda case: run_case(case, device, Path(folder), prebuilt), CASES))
    data: dict[str, Any] = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "device": hardware_from_device(device),
        "versions": versions(),
        "rows": rows,
    }
    failures = [f"## {row['kernel']}\n\n```\n{row['error']}\n```" for row in rows if "error" in row]
    named = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    text = "\n\n".join((f"{data['device']}, {data['date']}: {named}.", table(rows), *failures))
    print(text, flush=True)
    data["tests"] = run_tests()
    tests = f"## Tests (exit code {data['tests']['exit_code']})\n\n```\n{data['tests']['output']}\n```"
    print(f"\n{tests}")
    (out / "report.md").write_text(f"{text}\n\n{tests}\n")
    (out / "report.json").write_text(json.dumps(data, indent=2) + "\n")
    return 1 if failures or data["tests"]["exit_code"] not in (0, 5) else 0


if __name__ == "__main__":
    sys.exit(main())
