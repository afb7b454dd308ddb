"""Tests of the judge's handles on workers and on the server that forks them."""

import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from fib_bench.errors import WorkerPoolFailed
from fib_bench.sandbox.environment import readable_paths
from fib_bench.transport.messages import Build, Built
from fib_bench.worker import fork_server
from fib_bench.worker.client import ForkServerClient, KeptOutput, Rejected, WorkerLost, server_environment
from fib_schema import format_json
from hypothesis import given
from hypothesis import strategies as st

from .samples import DOUBLE, make_solution


@pytest.fixture(autouse=True)
def _leaves_no_process(survivors):
    yield
    assert survivors() == {}


@pytest.fixture
def worker(server):
    with server.spawn() as worker:
        yield worker


@pytest.fixture
def build():
    return lambda code: Build("cpu", format_json(DOUBLE), format_json(make_solution(code)))


class TestKeptOutput:
    @given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 40))
    def test_keeps_head_and_tail(self, pieces, kept_bytes):
        output = KeptOutput(kept_bytes)
        for piece in pieces:
            output.add(piece)
        whole = b"".join(pieces)
        text = output.text()
        if len(whole) <= 2 * kept_bytes:
            assert text == whole.decode("utf-8", "replace")
        else:
            dropped = len(whole) - 2 * kept_bytes
            head, tail = whole[:kept_bytes], whole[-kept_bytes:]
            gap = f"\n... {dropped} bytes dropped ...\n".encode()
            assert text == (head + gap + tail).decode("utf-8", "replace")

    def test_a_letter_on_the_border_stays_whole(self):
        output = KeptOutput(3)
        output.add("naïve".encode())
        assert output.text() == "naïve"


def test_what_was_printed_is_told_once(worker, build):
    worker.request(build("print('hello')\ndef run(x): pass"), Built, seconds=60)
    assert worker.printed() == "hello\n"
    assert worker.printed() == ""


@pytest.mark.usefixtures("slow_clock")
def test_a_worker_that_ends_is_lost_with_the_reason_and_stays_so(worker, build):
    for _ in range(2):
        with pytest.raises(WorkerLost, match="exited with status 9 before it answered") as caught:
            worker.request(build("import os\nprint('last words')\nos._exit(9)"), Built, seconds=60)
        assert not caught.value.is_timeout
    assert "last words" in worker.printed()


def test_a_worker_that_overstays_is_killed(worker, build):
    with pytest.raises(WorkerLost, match=r"no answer within 0\.2 s") as caught:
        worker.request(build("while True: pass"), Built, seconds=0.2)
    assert caught.value.is_timeout


def test_closing_gives_back_the_process_its_folder_and_every_descriptor(server, nothing_left_open):
    server.start()
    with nothing_left_open():
        for _ in range(3):
            with server.spawn() as worker:
                folder = worker._folder.path
                assert folder.is_dir()
            assert not folder.exists()
            assert not Path(f"/proc/{worker.pid}").exists()
            worker.close()


def test_workers_run_side_by_side(server, build):
    with server.spawn() as first, server.spawn() as second:
        assert first.pid != second.pid
        for worker in (second, first):
            with pytest.raises(Rejected) as caught:
                worker.request(build("import nothing_of_this_name"), Built, seconds=60)
            assert caught.value.status == "COMPILE_ERROR"


def test_a_server_that_died_is_an_error_of_the_harness_wherever_it_is_noticed(build):
    """No end of its workers will be reported, so nobody waits for one, and no solution is blamed."""
    with ForkServerClient("cpu") as server, server.spawn() as idle, server.spawn() as asked:
        os.kill(server._process.pid, signal.SIGKILL)
        for worker in (asked, idle):
            with pytest.raises(WorkerPoolFailed, match="it died, and its workers with it"):
                worker.request(build("while True: pass"), Built, seconds=60)
            assert worker.is_closed
        with pytest.raises(WorkerPoolFailed, match="it died, and its workers with it"):
            server.spawn()


def test_a_server_that_does_not_start_is_an_error(monkeypatch, tmp_path, capfd):
    (tmp_path / "torch.py").write_text("raise RuntimeError('broken installation')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with ForkServerClient("cpu") as server, pytest.raises(WorkerPoolFailed, match="did not start"):
        server.start()
    assert "broken installation" in capfd.readouterr().err


def test_a_server_that_finds_no_place_says_so_in_one_line(monkeypatch, tmp_path, capfd):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "file" / "cache"))
    with ForkServerClient("cpu") as server, pytest.raises(WorkerPoolFailed, match="did not start"):
        server.start()
    (line,) = capfd.readouterr().err.splitlines()
    assert "File exists" in line


def test_workers_know_the_judges_cache(monkeypatch, tmp_path):
    """Workers have folders and homes of their own, in which a build would be lost."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIB_CACHE_PATH", "some/cache")
    assert server_environment("cpu")["FIB_CACHE_PATH"] == str(tmp_path / "some/cache")
    monkeypatch.delenv("FIB_CACHE_PATH")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert server_environment("cpu")["FIB_CACHE_PATH"].startswith(f"{tmp_path}/")


def test_threads_of_workers_leave_the_judge_a_processor_and_spin_briefly(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "50000"}.items() <= server_environment("cpu").items()


@pytest.mark.parametrize("name", ["CUTLASS_PATH", "CUTLASS_HOME"])
def test_a_checkout_of_cutlass_is_known_to_workers_and_readable(monkeypatch, tmp_path, name):
    monkeypatch.setenv(name, str(tmp_path))
    assert server_environment("cpu")[name] == str(tmp_path)
    assert tmp_path in readable_paths.__wrapped__()


def test_a_linked_startup_module_of_python_is_readable(monkeypatch, tmp_path):
    """Debian links ``sitecustomize.py`` to a file below ``/etc``."""
    target, link = tmp_path / "etc" / "sitecustomize.py", tmp_path / "lib" / "sitecustomize.py"
    for folder in (target.parent, link.parent):
        folder.mkdir()
    target.touch()
    link.symlink_to(target)
    module = ModuleType("sitecustomize")
    module.__file__ = str(link)
    monkeypatch.setitem(sys.modules, "sitecustomize", module)
    assert target in readable_paths.__wrapped__()


def test_a_worker_with_too_many_tasks_is_found_where_the_machine_reports_none(monkeypatch):
    killed = []
    monkeypatch.setattr(fork_server, "tasks_on_machine", lambda: 0)
    monkeypatch.setattr(fork_server, "most_tasks", lambda: 0)
    monkeypatch.setattr(fork_server.outside_checks, "kill", lambda listed: killed.extend(listed()))
    server = object.__new__(fork_server.Server)
    server.folders, server._reasons, server._looks = {os.getpid(): ""}, {}, 0
    while not killed:
        server._end_bombs()
        assert server._looks < 50
    assert killed[0] == os.getpid()
    assert "more than 0 processes and threads" in server._reasons[os.getpid()]


def test_the_digest_of_triton_and_the_versions_of_ptxas_are_asked_for_once():
    compiler = pytest.importorskip("triton.backends.nvidia.compiler")
    compiler.get_ptxas_version.cache_clear()
    fork_server.identify_triton(["9.0a", "10.0a"])
    assert compiler.get_ptxas_version.cache_info().currsize == 2
    names = ("triton.runtime.cache", "triton.compiler.compiler")
    digests = [found for name in names if (found := getattr(import_module(name), "triton_key", None)) is not None]
    assert [digest.cache_info().currsize for digest in digests] == [1] * len(digests)
    assert digests


def test_a_missing_triton_is_no_error(monkeypatch):
    for name in ("triton.runtime.cache", "triton.compiler.compiler", "triton.backends.nvidia.compiler"):
        monkeypatch.setitem(sys.modules, name, None)
    fork_server.identify_triton(["9.0a"])
