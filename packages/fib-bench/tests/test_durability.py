"""Tests of durability: acknowledged evaluations survive kills, once each, and a resumed run makes the others."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from fib_schema import TraceSet

from .samples import make_solution

SOURCE = "import time\n\ndef run(x):\n    time.sleep(0.001)\n    return x * 2\n"
SIZES = (2, 3, 4)
ACKNOWLEDGED = re.compile(r"double \[n=(\d+)\] (\w+): [A-Z_]+")


def run(root, kills, *, kill_worker=False):
    """Run until it ends or is killed at random; returns the pairs that it said were evaluated, and its exit code."""
    command = [sys.executable, "-m", "fib_bench.cli.main", "run", str(root), "--resume", "--measure-seconds", "0.05"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        said = []
        reader = threading.Thread(target=lambda lines=process.stderr: said.extend(lines))
        reader.start()
        while kills is not None and process.poll() is None and not any(map(ACKNOWLEDGED.search, list(said))):
            time.sleep(0.01)
        if kills is not None and kill_worker:
            time.sleep(kills.uniform(0, 0.3))
            _kill_a_worker(process.pid, kills)
        if kills is not None:
            time.sleep(kills.uniform(0, 0.8))
            process.send_signal(signal.SIGKILL)
        process.wait()
        reader.join()
    pairs = [match.groups() for line in said if (match := ACKNOWLEDGED.search(line))]
    return Counter((f"n-{size}", solution) for size, solution in pairs), process.returncode


def _kill_a_worker(driver, kills):
    """Kill one of the processes that solutions run in: grandchildren of the judge."""
    children = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(folder.name))
    workers = [
        w for judge in children.get(driver, []) for server in children.get(judge, []) for w in children.get(server, [])
    ]
    for pid in kills.sample(workers, min(1, len(workers))):
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_or_doubled(make_data_set, seeded_random):
    names = [f"s{index}" for index in range(4)]
    root = make_data_set(*(make_solution(SOURCE, name=name) for name in names), sizes=SIZES)
    wanted = Counter((f"n-{size}", name) for size in SIZES for name in names)
    acknowledged = Counter()
    for kill_worker in (False, True):
        said, code = run(root, seeded_random, kill_worker=kill_worker)
        acknowledged += said
        if code == 0:
            break
        assert code == -signal.SIGKILL
    said, code = run(root, None)
    assert code == 0
    acknowledged += said
    assert all(count == 1 for count in acknowledged.values())
    traces = [trace for trace in TraceSet.from_path(root).traces["double"] if trace.solution]
    assert Counter((trace.workload.uuid, str(trace.solution)) for trace in traces) == wanted
    assert set(acknowledged) <= set(wanted)
