"""`fib-agents submit --server` against a running service: neither package imports the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fib_schema import AxisVar, Definition, RandomInput, TensorSpec, Trace, TraceSet, Workload

pytestmark = pytest.mark.slow
pytest.importorskip("fastapi", reason="needs fib-serve")

REFERENCE = "def run(x):\n    return x * 2\n"
SERVE, AGENTS = (sys.executable, "-m", "fib_serve.cli.main"), (sys.executable, "-m", "fib_agents.cli")
FAST = ("--measure-seconds", "0.05", "--warmup-runs", "1", "--iterations", "2", "--num-trials", "2")


@pytest.fixture
def data_set(tmp_path: Path) -> Path:
    vector = TensorSpec(("n",), "float32")
    trace_set = TraceSet(tmp_path / "data")
    trace_set.add_definitions(
        [Definition("double", "elementwise", {"n": AxisVar()}, {"x": vector}, {"y": vector}, REFERENCE)]
    )
    workloads = [Workload({"n": size}, {"x": RandomInput()}, f"double-{size}") for size in (4, 8)]
    trace_set.add_traces([Trace("double", workload) for workload in workloads])
    return tmp_path / "data"


@pytest.fixture
def service(data_set: Path) -> Iterator[str]:
    """The address of a service on the CPU."""
    command = [*SERVE, "run", str(data_set), "--port", "0", "--devices", "cpu", "--allow-unranked", *FAST]
    log = data_set.with_name("log")
    with log.open("w") as stream:
        process = subprocess.Popen(command, stderr=stream)
    try:
        while not (found := [line for line in log.read_text().splitlines() if '"address"' in line]):
            assert process.poll() is None, log.read_text()
            os.sched_yield()
        yield str(json.loads(found[0])["address"])
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize(
    ("source", "status"),
    [(REFERENCE, "PASSED"), (REFERENCE.replace("2", "3"), "INCORRECT_NUMERICAL")],
    ids=["right", "wrong"],
)
def test_a_service_evaluates_what_an_agent_submits(data_set: Path, service: str, source: str, status: str) -> None:
    token = subprocess.run(
        [*SERVE, "token", "create", str(data_set), "--user", "alice", "--scope", "submitter"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    (data_set.parent / "kernel.py").write_text(source)
    command = [*AGENTS, "submit", "double", str(data_set.parent / "kernel.py"), "--dataset", str(data_set)]
    ended = subprocess.run(
        [*command, "--device", "cpu", "--server", service, "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "FIB_SERVE_TOKEN": token},
    )
    assert ended.stdout, ended.stderr
    result = json.loads(ended.stdout)
    assert result["status"] == "completed"
    assert {(workload, found) for workload, found, _ in result["results"]} == {
        ("double-4", status),
        ("double-8", status),
    }
