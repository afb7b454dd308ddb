"""Tests of durability: acknowledged evaluations survive kills, once each, and a resumed run makes the others."""

import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from fib_schema import TraceSet

from .samples import make_solution

SOURCE = "import time\n\ndef run(x):\n    time.sleep(0.001)\n    return x * 2\n"
SIZES = (2, 3, 4)
ACKNOWLEDGED = re.compile(r"double \[n=(\d+)\] (\w+): [A-Z_]+")


def run(root, kills):
    """Run until it ends or is killed at random; returns the pairs that it said were evaluated, and its exit code."""
    command = [sys.executable, "-m", "fib_bench.cli.main", "run", str(root), "--resume", "--measure-seconds", "0.05"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        said = []
        reader = threading.Thread(target=lambda lines=process.stderr: said.extend(lines))
        reader.start()
        while kills is not None and process.poll() is None and not any(map(ACKNOWLEDGED.search, list(said))):
            time.sleep(0.01)
        if kills is not None:
            time.sleep(kills.uniform(0, 0.8))
            process.send_signal(signal.SIGKILL)
        process.wait()
        reader.join()
    pairs = [match.groups() for line in said if (match := ACKNOWLEDGED.search(line))]
    return Counter((f"n-{size}", solution) for size, solution in pairs), process.returncode


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_or_doubled(make_data_set, seeded_random):
    names = [f"s{index}" for index in range(4)]
    root = make_data_set(*(make_solution(SOURCE, name=name) for name in names), sizes=SIZES)
    wanted = Counter((f"n-{size}", name) for size in SIZES for name in names)
    acknowledged = Counter()
    for _ in range(2):
        said, code = run(root, seeded_random)
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
