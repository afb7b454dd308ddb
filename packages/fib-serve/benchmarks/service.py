"""A real service for the benchmarks: its processes, a data set, and connections that cost the load generator little."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from fib_schema import (
    AxisVar,
    BuildSpec,
    Definition,
    RandomInput,
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
    to_plain,
)

GOOD = "def run(x):\n    return x * 2\n"
FAST = (
    "--measure-seconds", "0.05", "--warmup-runs", "1", "--iterations", "2", "--num-trials", "2", "--cpu-processes", "1",
)  # fmt: skip


def write_data_set(root: Path, sizes: tuple[int, ...] = (4, 8)) -> Path:
    """A data set with one definition."""
    root.mkdir(parents=True)
    definition = Definition(
        name="double",
        op_type="elementwise",
        axes={"n": AxisVar()},
        inputs={"x": TensorSpec(("n",), "float32")},
        outputs={"y": TensorSpec(("n",), "float32")},
        reference=GOOD,
    )
    trace_set = TraceSet.from_path(root)
    trace_set.add_definitions([definition])
    workloads = [Workload({"n": size}, {"x": RandomInput()}, f"double-{size}") for size in sizes]
    trace_set.add_traces([Trace("double", workload) for workload in workloads])
    return root


def make_solution(source: str, name: str = "mine") -> Solution:
    spec = BuildSpec("python", ("cpu",), "kernel.py::run", destination_passing_style=False)
    return Solution(name, "double", "me", spec, (SourceFile("kernel.py", source),))


def plain_solution(source: str, name: str = "mine") -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(to_plain(make_solution(source, name))))
    return plain


class Service:
    """Starts ``fib-serve run`` on a free port, without tokens by default, and stops it.

    Args:
        data_set: Its data set.
        options: Further options of the command.
        device: The device.
        settings: Options of all evaluations; by default of short ones.
        has_auth: Whether requests need tokens.
    """

    def __init__(
        self,
        data_set: Path,
        *options: str,
        device: str = "cpu",
        settings: tuple[str, ...] = FAST,
        has_auth: bool = False,
    ) -> None:
        self.data_set = data_set
        self.log = data_set.with_name(f"{data_set.name}.log")
        words = ["run", str(data_set), "--port", "0", "--devices", device, "--allow-unranked", *settings]
        words += [] if has_auth else ["--no-auth"]
        with self.log.open("ab") as log:
            begin = log.tell()
            self.process = subprocess.Popen([sys.executable, "-m", "fib_serve.cli.main", *words, *options], stderr=log)
        deadline = time.monotonic() + 60
        self.address = ""
        while not self.address and time.monotonic() < deadline and self.process.poll() is None:
            for line in self.log.read_bytes()[begin:].decode(errors="replace").splitlines():
                if '"serving ' in line and line.endswith("}"):
                    self.address = json.loads(line)["message"].split()[-1]
            time.sleep(0.01)
        if not self.address:
            raise SystemExit(
                f"the service has no address, status {self.process.poll()}:\n{self.log.read_text()[-3000:]}"
            )
        self.port = int(self.address.rpartition(":")[2])

    def __enter__(self) -> Self:
        self.wait_until_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                if httpx.get(f"{self.address}/ready").status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.02)
        raise SystemExit(f"the service does not start:\n{self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def machine() -> str:
    """One line about the machine."""
    model = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line)
    return f"{model.partition(': ')[2]}, {os.cpu_count()} cores, Python {platform.python_version()}"


def print_table(title: str, rows: list[tuple[str, ...]]) -> None:
    """Print a Markdown table."""
    print(f"\n## {title}\n")
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + " --- |" * len(rows[0]))
    for row in rows[1:]:
        print("| " + " | ".join(row) + " |", flush=True)
