"""Tests of the seal: refused and allowed system calls of a sealed process, on each of its threads."""

import ast
import subprocess
import sys
import textwrap

import pytest
import torch
from fib_bench.sandbox.seccomp import Filter

PRELUDE = """
import ctypes, errno, os, sys, threading
from fib_bench.sandbox.seccomp import seal_process
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p

def failure_of(call, *arguments):
    ctypes.set_errno(0)
    result = getattr(libc, call)(*(ctypes.c_long(argument) for argument in arguments))
    failed = result in (-1, ctypes.c_void_p(-1).value)
    return errno.errorcode[ctypes.get_errno()] if failed else "done"

page = libc.mmap(None, ctypes.c_size_t(4096), 3, 0x22, -1, ctypes.c_long(0))
"""


def _has_filters():
    try:
        Filter(())
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not _has_filters(), reason="there is no libseccomp")


def sealed(after, before=""):
    """Runs code in a process that seals itself in between; returns the value of its variable `found`."""
    parts = (PRELUDE, before, "reason = seal_process()", after, "print(repr(found), flush=True)\nos._exit(0)")
    code = "\n".join(map(textwrap.dedent, parts))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout)


@pytest.mark.parametrize(
    ("attempt", "failure"),
    [
        pytest.param("failure_of('mprotect', page, 4096, 5)", "EPERM", id="makes-a-page-executable"),
        pytest.param("failure_of('mprotect', page, 4096, 7)", "EPERM", id="writable-and-executable"),
        pytest.param("failure_of('mmap', 0, 4096, 5, 0x22, -1, 0)", "EPERM", id="maps-code"),
        pytest.param("failure_of('mremap', page, 4096, 4096, 3, page + 4096)", "EPERM", id="moves-to-an-address"),
        pytest.param("failure_of('personality', 0x0400000)", "EPERM", id="reads-imply-execution"),
        pytest.param("failure_of('prctl', 4, 0, 0, 0, 0)", "EPERM", id="hides-from-the-judge"),
        pytest.param("failure_of('ptrace', 16, os.getppid(), 0, 0)", "EPERM", id="ptrace"),
        pytest.param("failure_of('process_vm_writev', 0, 0, 0, 0, 0, 0)", "EPERM", id="writes-into-processes"),
        pytest.param("failure_of('unshare', 0x10000000)", "EPERM", id="namespace"),
        pytest.param("failure_of('mprotect', page, 4096, 1)", "done", id="read-only-page"),
        pytest.param("failure_of('mmap', 0, 4096, 3, 0x22, -1, 0)", "done", id="maps-memory"),
        pytest.param("failure_of('mremap', page, 4096, 8192, 1, 0)", "done", id="grows-memory"),
        pytest.param("failure_of('munmap', page, 4096)", "done", id="unmaps-memory"),
        pytest.param("failure_of('prctl', 3, 0, 0, 0, 0)", "done", id="asks-prctl"),
        pytest.param("failure_of('personality', 0xFFFFFFFF)", "done", id="asks-personality"),
    ],
)
def test_calls(attempt, failure):
    assert sealed(f"found = {attempt}") == failure


@pytest.mark.parametrize(
    "attempt",
    [
        pytest.param("threading.Thread(target=print).start()", id="thread"),
        pytest.param("os.fork()", id="fork"),
        pytest.param("os.posix_spawn('/bin/true', ['true'], {})", id="spawn"),
        pytest.param("os.execv('/bin/true', ['true'])", id="exec"),
        pytest.param("ctypes.CDLL(library)", id="library"),
    ],
)
def test_nothing_can_be_started_or_loaded(attempt):
    after = f"""
    try:
        {attempt}
        found = "done"
    except (RuntimeError, OSError, ImportError) as error:
        found = "refused"
    """
    before = "import importlib.util; library = importlib.util.find_spec('_multiprocessing').origin"
    assert sealed(after, before) == "refused"


def test_threads_that_exist_already_are_sealed_too():
    before = """
    results, gate = [], threading.Event()
    def attempt():
        gate.wait()
        results.append((failure_of("mprotect", page, 4096, 5), failure_of("execve", 0, 0, 0)))
    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for thread in threads: thread.start()
    """
    after = """
    gate.set()
    for thread in threads: thread.join()
    found = (reason, results)
    """
    assert sealed(after, before) == ("", [("EPERM", "EPERM")] * 4)


def test_warm_operators_of_torch_run():
    before = """
    import torch
    a = torch.ones(256, 256)
    def work():
        x = torch.randn(1 << 20).relu().sum() + (a @ a).softmax(-1).sum() + torch.ones(1 << 24).sum()
        return bool(torch.isfinite(x))
    work()
    """
    after = """
    shared = [work() for _ in range(5)]
    with open("/proc/self/status") as file:
        shared.append(bool(file.read()))
    read_end, write_end = os.pipe()
    os.write(write_end, b"x")
    shared.append(os.read(read_end, 1) == b"x")
    found = shared
    """
    assert sealed(after, before) == [True] * 7


def test_where_filters_are_refused_the_reason_is_told():
    before = """
    from fib_bench.sandbox.seccomp import Filter, Refusal
    from fib_bench.sandbox.syscalls import PR_SET_NO_NEW_PRIVS, prctl
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    Filter([Refusal(("seccomp",))]).load()
    """
    assert "seccomp" in str(sealed("found = reason", before))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a CUDA device")
def test_warm_work_on_a_device_runs():
    """Launches, allocations, graphs that were captured before and after, events, copies and shared memory."""
    before = """
    import torch
    def capture():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            (a @ a).relu_()
        return graph
    a = torch.ones(256, 256, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        (a @ a).relu_()
    first = capture()
    first.replay()
    a.cpu()
    torch.cuda.synchronize()
    """
    after = """
    second = capture()
    for graph in (first, second):
        graph.replay()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record(side)
    large = torch.zeros(1 << 28, device="cuda").add_(1)
    end.record(side)
    torch.cuda.synchronize()
    pinned = torch.empty(1 << 20, pin_memory=True).copy_(large[: 1 << 20])
    found = (reason, bool((pinned == 1).all()), start.elapsed_time(end) >= 0)
    del large
    torch.cuda.empty_cache()
    """
    assert sealed(after, before) == ("", True, True)
