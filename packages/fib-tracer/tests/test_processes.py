"""Tests with processes: kills, signals, exits, forks, and concurrent tracing."""

import os
import signal
import subprocess
import sys

import pytest
from fib_schema import TraceSet, validate
from fib_schema.traffic import load_traffic

from . import program_server
from .conftest import tensors, workloads

_BEGIN = """
import os, signal, sys, threading
import torch
from fib_apply import apply
from fib_tracer import TracingConfig, enable_tracing, get_tracing_runtime

@apply("silu_h8")
def silu(x):
    return x

def call(value, rows=2):
    silu(torch.full((rows, 8), float(value)))
"""


def start(root, code, **environment):
    return program_server.start(_BEGIN + code, [str(root)], environment)


def run(root, code, **environment):
    process = start(root, code, **environment)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def values(root):
    return sorted(float(tensors(root, w)["x"][0, 0]) for w in workloads(root, "silu_h8"))


def test_flushed_workloads_survive_a_kill(root):
    process = start(
        root,
        """
runtime = enable_tracing(sys.argv[1], TracingConfig("dump_all"))
for index in range(100_000):
    call(index)
    if index % 20 == 19:
        runtime.flush()
        print(index, flush=True)
""",
    )
    acknowledged = -1
    while acknowledged < 150:
        acknowledged = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    out, _ = process.communicate(timeout=300)
    acknowledged = max([acknowledged, *map(int, out.split())])
    data_set = TraceSet.from_path(root)
    found = values(root)
    assert set(range(acknowledged + 1)) <= set(found)
    assert len(found) == len(set(found))
    assert not [problem for problem in validate(root).problems if problem.severity == "error"]
    assert data_set.problems == ()
    assert acknowledged < load_traffic(root).definitions["silu_h8"].calls <= acknowledged + 21


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGTERM); threading.Event().wait()", 143),
        ("os.kill(os.getpid(), signal.SIGINT); threading.Event().wait()", -signal.SIGINT),
        ("raise RuntimeError('of the engine')", 1),
    ],
)
def test_kept_calls_and_counts_are_stored_when_the_process_ends(root, end, status):
    code = f"""
enable_tracing(sys.argv[1], TracingConfig("dump_all", filter_policy="keep_random_k", filter_policy_kwargs={{"k": 5}}))
for index in range(5):
    call(index)
{end}
"""
    process = start(root, code)
    process.communicate(timeout=300)
    assert process.returncode == status
    assert values(root) == [0, 1, 2, 3, 4]
    assert load_traffic(root).definitions["silu_h8"].calls == 5


def test_a_forked_child_traces_what_it_enables_itself(root):
    run(
        root,
        """
config = TracingConfig("dump_all", filter_policy="keep_random_k", filter_policy_kwargs={"k": 9})
runtime = enable_tracing(sys.argv[1], config)
for index in range(3):
    call(index)
child = os.fork()
if child == 0:
    import gc
    call(3)
    assert get_tracing_runtime() is None
    gc.collect()  # entries of the parent's sample
    with enable_tracing(sys.argv[1], config):
        call(10)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""",
    )
    assert values(root) == [0, 1, 2, 10]


def test_a_multiprocessing_child_stores_kept_calls_when_it_ends(root):
    """It does not run `atexit` functions."""
    run(
        root,
        """
import multiprocessing
def work():
    config = TracingConfig("dump_all", filter_policy="keep_random_k", filter_policy_kwargs={"k": 5})
    enable_tracing(sys.argv[1], config)
    for index in range(5):
        call(index)
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
assert child.exitcode == 0
""",
    )
    assert values(root) == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_processes_that_trace_the_same_traffic_store_each_workload_once(root):
    """Forked before anything is traced, so that they share no state, and torch is imported once."""
    out = run(
        root,
        """
begin, end = os.pipe()
for _ in range(8):
    if os.fork() == 0:
        os.close(end)
        runtime = enable_tracing(sys.argv[1], TracingConfig("dump_all"))
        os.read(begin, 1)  # returns when the parent lets all of them go
        for index in range(40):
            call(index)
        stored = sum(stats.stored for stats in runtime.flush().values())
        os.write(1, f"{stored}\\n".encode())  # as one piece: eight processes write
        os._exit(0)
os.close(end)
assert [os.wait()[1] for _ in range(8)] == [0] * 8
""",
    )
    stored = [int(line) for line in out.splitlines()]
    assert values(root) == list(range(40))
    assert (len(stored), sum(stored)) == (8, 40)


@pytest.mark.slow
def test_an_environment_variable_enables_tracing(root, tmp_path):
    settings = tmp_path / "tracing.yaml"
    settings.write_text("default: {input_dump_policy: dump_all}\n")
    variables = {"FIB_ENABLE_TRACING": "1", "FIB_DATASET_PATH": str(root), "FIB_TRACING_CONFIG": str(settings)}
    program = [sys.executable, "-c", _BEGIN + "call(7)", str(root)]
    subprocess.run(program, env={**os.environ, **variables}, timeout=300, check=True)
    assert values(root) == [7]
    run(root, "call(8)", **{**variables, "FIB_ENABLE_TRACING": "0"})
    assert values(root) == [7]
