"""Tests of the end of a process: counts come first, and what is lost is logged."""

import re
import time

import pytest
import torch
from fib_schema.traffic import load_traffic
from fib_tracer import TracingConfig, enable_tracing, writer

from .conftest import workloads
from .test_call_counts import by_rows
from .test_processes import start

_STUCK_DISK = """
import fib_schema.workload_log as log
entered = threading.Event()
def append(path, choose):
    if entered.is_set():
        threading.Event().wait()
    entered.set()
    ending.wait()
    return original(path, choose)
original, log.append_new_lines = log.append_new_lines, append
ending = threading.Event()
import atexit
runtime = enable_tracing(sys.argv[1], TracingConfig("dump_all"), exit_seconds=0.5)
atexit.register(ending.set)  # runs before what was registered earlier
call(0)
entered.wait()
for index in range(1, 8):
    call(index)
"""


@pytest.mark.slow
def test_a_stuck_disk_loses_no_count_and_what_is_lost_is_logged(root):
    """The second batch of records is never written."""
    process = start(root, _STUCK_DISK)
    _, err = process.communicate(timeout=300)
    assert re.search(r"without some kept calls \(\d+ bytes\): storing takes more than 0.5 s", err), err
    assert 8 > len(workloads(root, "silu_h8")) > 0
    assert by_rows(root) == {2: 8}


def until(is_so):
    end = time.monotonic() + 120
    while not is_so() and time.monotonic() < end:
        time.sleep(0.01)
    assert is_so()


@pytest.mark.parametrize(
    ("config", "rows"),
    [(TracingConfig("dump_all", filter_policy="keep_none"), 8), (TracingConfig("dump_all"), 9)],
    ids=["keep_none", "does not fit"],
)
def test_counts_are_saved_without_any_kept_call(root, silu, monkeypatch, config, rows):
    monkeypatch.setattr(writer, "_COUNTS_SECONDS", 0.01)
    with enable_tracing(root, config):
        silu(torch.ones(2, rows))
        until(lambda: "silu_h8" in load_traffic(root).definitions)
        assert workloads(root, "silu_h8") == []
