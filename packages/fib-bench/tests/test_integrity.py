"""Tests of the integrity checks of workers, on real ones whose code was written over."""

from contextlib import ExitStack

import pytest
from fib_bench.judge.functions import check_code
from fib_bench.transport.messages import Build, Built
from fib_bench.worker.client import Rejected
from fib_schema import EvaluationStatus, format_json

from .samples import DOUBLE, make_solution

RUNS = "def run(x):\n    return x\n"
MODIFIES = f"""
import ctypes
libc = ctypes.CDLL(None)
page = ctypes.cast(libc.getrandom, ctypes.c_void_p).value & ~4095
assert libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(4096), 7) == 0
ctypes.memset(page, ctypes.string_at(page, 1)[0], 1)
assert libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(4096), 5) == 0
{RUNS}"""
KEEPS_ITS_MEMORY_OPEN = f"memory = open('/proc/self/mem', 'rb', buffering=0)\n{RUNS}"
UNREAD = "the table of driver functions could not be read before the solution was loaded"


@pytest.fixture
def load(server):
    """Starts workers that have loaded a solution."""
    with ExitStack() as stack:

        def loaded(code):
            worker = stack.enter_context(server.spawn())
            worker.request(Build("cpu", format_json(DOUBLE), format_json(make_solution(code))), Built, seconds=60)
            return worker

        yield loaded


def test_code_as_it_was_loaded_is_accepted(load):
    assert check_code(load(RUNS), load(RUNS), 0, "") == UNREAD


@pytest.mark.parametrize(
    ("code", "trusted", "said"),
    [
        (MODIFIES, RUNS, r".*libc.*KiB differ from the file"),
        (MODIFIES, None, r".*KiB differ from the file"),
        (KEEPS_ITS_MEMORY_OPEN, RUNS, r"descriptor \d+ is /proc/\d+/mem"),
    ],
)
def test_changed_code_is_rejected(load, code, trusted, said):
    with pytest.raises(Rejected, match=f"the worker's code was changed: {said}") as caught:
        check_code(load(code), trusted and load(trusted), 0, "")
    assert caught.value.status is EvaluationStatus.REWARD_HACK


def test_a_library_that_patches_itself_in_every_worker_accuses_nobody(load):
    assert check_code(load(MODIFIES), load(MODIFIES), 0, "") == UNREAD


def test_a_worker_that_has_ended_is_reported(load):
    worker = load(RUNS)
    worker.close()
    assert check_code(worker, None, 0, "") == "the worker has ended"
