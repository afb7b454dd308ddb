"""Measures how soon a kernel file has a result: ``fib-bench add --quick``, and ``add`` followed by ``run --quick``.

Each figure is the time of whole commands, from the start of the first process to the end of the last one. The kernel is
new each time, so that nothing of it is in a cache; the data set is that of ``fib-bench demo``. CPU seconds are those
of the commands and of the processes that they have waited for; on a busy machine they say more than the time.

With ``--device cuda`` only Python is measured: nvcc alone takes longer than all else. `add_on_gpu.sh` runs it on a
machine without our packages. A command that fails ends the script, which prints the command and its output.
"""

from __future__ import annotations

import argparse
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fib_bench import BenchmarkConfig
from fib_bench.demo import write_demo
from gpu_report import where_and_when

_DEFINITION = "softmax_n2048"
_WORKLOADS = 3  # of this definition
_PYTHON = "import torch\n\n\ndef run(x):\n    return torch.softmax(x, -1)  # {number}\n"
_CPP = """#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cmath>

void Softmax(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {{
  const int64_t rows = x.size(0), columns = x.size(1);
  for (int64_t row = 0; row < rows; ++row) {{
    const float* in = static_cast<const float*>(x.data_ptr()) + row * columns;
    float* out = static_cast<float*>(y.data_ptr()) + row * columns;
    float most = in[0], sum = 0.0f;  // {number}
    for (int64_t i = 1; i < columns; ++i) most = std::fmax(most, in[i]);
    for (int64_t i = 0; i < columns; ++i) sum += out[i] = std::exp(in[i] - most);
    for (int64_t i = 0; i < columns; ++i) out[i] /= sum;
  }}
}}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Softmax);
"""


def _command(*words: object) -> str:
    """Run one command of fib-bench; returns stderr. A quick one must show that its kernel passed on all workloads."""
    command = [sys.executable, "-m", "fib_bench.cli.main", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or ("--quick" in words and done.stdout.count(": PASSED") != _WORKLOADS):
        problem = f"exit code {done.returncode}" if done.returncode else f"not {_WORKLOADS} passed"
        print(f"{shlex.join(command)}: {problem}\n{done.stdout}{done.stderr}", flush=True)
        raise SystemExit(1)
    return done.stderr


def measure(folder: Path, suffix: str, source: str, repeats: int, device: str) -> dict[str, list[tuple[float, float]]]:
    """The seconds, and the CPU seconds, of each way to a result, and of ``add`` alone."""
    root = folder / "demo"
    seconds: dict[str, list[tuple[float, float]]] = {"add": [], "add --quick": [], "add, then run --quick": []}
    for number in range(repeats):
        for way, times in seconds.items():
            name = f"kernel_{suffix[1:]}_{number}_{'_'.join(way.split(' '))}".replace(",", "").replace("-", "")
            file = folder / f"{name}{suffix}"
            file.write_text(source.format(number=f"{way} {number}"))
            quick = ("--quick", "--device", device) if way == "add --quick" else ()
            begin, cpu = time.monotonic(), _cpu_seconds()
            _command("add", file, "--definition", _DEFINITION, "--dataset", root, *quick)
            if way.endswith("run --quick"):
                _command("run", root, "--solutions", name, "--quick", "--device", device)
            times.append((time.monotonic() - begin, _cpu_seconds() - cpu))
    return seconds


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the median and the range of each way for Python and C++."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    device = BenchmarkConfig(device=arguments.device).device  # `cuda` is `cuda:0`
    found = where_and_when(device)
    print(", ".join(f"{name} {value}" for name, value in found.items() if name != "host"), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_demo(folder / "demo")
        kinds = [(".py", _PYTHON)] + ([(".cpp", _CPP)] if device == "cpu" else [])
        for suffix, source in kinds:
            for way, seconds in measure(folder, suffix, source, arguments.repeats, device).items():
                wall, cpu = ([pair[index] for pair in seconds] for index in (0, 1))
                times = f"{statistics.median(wall):5.1f} s  ({min(wall):.1f} to {max(wall):.1f})"
                print(f"{suffix:5} {way:24} {times}, {statistics.median(cpu):.1f} CPU seconds", flush=True)


if __name__ == "__main__":
    main()
