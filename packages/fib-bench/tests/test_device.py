"""Tests of a device that judges share: its lock, and killed workers that are still ending, with real processes."""

import fcntl
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from multiprocessing import Pipe

import attrs
import pytest
import torch
from fib_bench.judge.device import FOLDER_VARIABLE, DeviceLock, lock_of
from fib_bench.judge.functions import BoundFunction, FunctionWorker, build_request
from fib_bench.transport.messages import Called
from fib_bench.worker.client import ForkServerClient
from fib_schema.files import UnsafePath

from .samples import DOUBLE, make_solution, make_workload

HOLDS = """
import sys
from pathlib import Path
from fib_bench.judge.device import DeviceLock
lock = DeviceLock(Path(sys.argv[1]))
with getattr(lock, sys.argv[2])():
    print("held", flush=True)
    sys.stdin.readline()
print("released", flush=True)
sys.stdin.read()
"""
PASSES = """
import random, sys
from pathlib import Path
from fib_bench.judge.device import DeviceLock
root, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
draw, lock = random.Random(seed), DeviceLock(root / "d.lock")
journal = open(root / f"{seed}.journal", "w", buffering=1)

def note(what):
    with open(root / "order", "a") as order:
        order.write(f"{seed} {what}\\n")

with lock.sharing():
    note("share")
    for _ in range(count):
        if draw.random() < 0.5:
            note("end")
            with lock.alone():
                note("alone")
                note("end")
            note("share")
        else:
            note("end")
            lock.give_way()
            note("share")
    note("end")
"""


@contextmanager
def holder(path, how):
    """A process that holds the lock until it gets a line."""
    command = [sys.executable, "-c", HOLDS, str(path), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "locks" / "d.lock"


def is_free(path, how):
    with path.open() as another:
        try:
            fcntl.flock(another, (fcntl.LOCK_EX if how == "alone" else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_several_judges_share_it(path):
    with holder(path, "sharing"), DeviceLock(path).sharing():
        assert is_free(path, "sharing")


@pytest.mark.parametrize(("first", "second"), [("alone", "sharing"), ("sharing", "alone"), ("alone", "alone")])
def test_one_that_holds_it_alone_excludes_all_others(path, first, second):
    with holder(path, first):
        assert not is_free(path, second)


def test_blocks_are_nested_and_an_error_restores_the_lock(path):
    lock = DeviceLock(path)
    with lock.sharing():
        with lock.apart():
            assert is_free(path, "alone")
        assert lock.is_shared
        with pytest.raises(ValueError, match="broken"), lock.alone():
            raise ValueError("broken")
        assert lock.is_shared
    assert not lock.is_shared


def test_a_judge_that_waits_is_seen_and_goes_first(path):
    lock = DeviceLock(path)
    with lock.sharing():
        assert not lock.is_wanted
        command = [sys.executable, "-c", HOLDS, str(path), "alone"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as waiting:
            while not lock.is_wanted:
                assert waiting.poll() is None
            waiting.stdin.write("\n")  # it releases the lock as soon as it has it
            waiting.stdin.flush()
            lock.give_way()
            assert [waiting.stdout.readline() for _ in range(2)] == ["held\n", "released\n"]
            waiting.kill()
    assert lock.waited_seconds > 0


def test_the_system_releases_it_when_its_holder_is_killed(path):
    with holder(path, "alone") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with DeviceLock(path).alone():
            pass


@pytest.mark.slow
def test_no_pass_runs_beside_other_work(tmp_path, seeded_random):
    seeds = [seeded_random.randrange(10**6) for _ in range(4)]
    commands = [[sys.executable, "-c", PASSES, str(tmp_path), str(seed), "200"] for seed in seeds]
    processes = [subprocess.Popen(command) for command in commands]
    assert [process.wait() for process in processes] == [0] * len(seeds)
    at_work = {}
    for line in (tmp_path / "order").read_text().splitlines():
        seed, what = line.split()
        if what == "end":
            at_work.pop(seed)
        else:
            others = set(at_work.values())
            assert not others if what == "alone" else "alone" not in others
            at_work[seed] = what


def test_other_users_can_neither_open_nor_replace_it(path):
    DeviceLock(path)
    assert path.parent.stat().st_mode & 0o077 == 0
    path.parent.chmod(0o777)
    with pytest.raises(UnsafePath):
        DeviceLock(path)


def test_a_long_wait_is_reported(path, capfd, monkeypatch):
    """The holder ends when the report is out."""
    report = DeviceLock._report
    monkeypatch.setattr("fib_bench.judge.device._NOTICE_SECONDS", 0.0)
    with holder(path, "alone") as process:
        monkeypatch.setattr(DeviceLock, "_report", lambda lock: (report(lock), process.kill()))
        with DeviceLock(path).alone():
            pass
    assert capfd.readouterr().err == f"waiting for device lock {path} (`fuser` shows its holder)\n"


def test_a_device_has_one_lock_in_the_folder_that_the_environment_names(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "named"))
    cpu = torch.device("cpu")
    with lock_of(cpu).alone():
        (file,) = (tmp_path / "named").glob("*.lock")
        assert not is_free(file, "sharing")
    assert is_free(file, "alone")


SLEEPS_IN_SETUP = """
import time

def setup(x):
    time.sleep(0.5)
    return {}

def run(x, y):
    y.copy_(x * 2)
"""


def test_a_first_setup_compiles_while_other_judges_time_passes(path, make_judge, server):
    judge = make_judge(num_trials=1)
    judge.context = attrs.evolve(judge.context, lock=DeviceLock(path), takes_turns=True)
    found = []
    is_over = threading.Event()

    def look():
        while not is_over.wait(0.001):
            found.append(is_free(path, "alone"))

    prepared = judge.prepare(DOUBLE, make_workload(DOUBLE, {"n": 8}))
    watching = threading.Thread(target=look)
    with judge.context.device_work():
        solution = make_solution(SLEEPS_IN_SETUP, dps=True)
        candidate = FunctionWorker(server, build_request("cpu", DOUBLE, solution), judge.context)
        candidate.build()
        with BoundFunction(candidate, prepared.layout, 2) as function:
            watching.start()
            function.call(prepared.trials[0].inputs, is_first=True)
            is_over.set()
            watching.join()
        candidate.worker.close()
    assert any(found)  # it is never free within a call that has no setup


class TestPauses:
    @pytest.fixture
    def calls(self, path, make_judge, server):
        """Two calls of a reference, of 1.5 s each, by a judge that shares the device; and the worker."""
        judge, loop = make_judge(num_trials=1), "for _ in range(150):\n        time.sleep(0.01)"
        definition = attrs.evolve(DOUBLE, reference=f"import time\ndef run(x):\n    {loop}\n    return x * 2\n")
        item = judge.prepare(DOUBLE, make_workload(DOUBLE, {"n": 8})).trials[0]
        judge.context = attrs.evolve(judge.context, lock=DeviceLock(path), takes_turns=True)
        reference = FunctionWorker(server, build_request("cpu", definition, None), judge.context)
        reference.build()

        def call():
            outputs = function.call_each(item.inputs.repeat(2, 1))
            assert not any(item.compare(each).problems for each in outputs)

        with judge.context.device_work(), BoundFunction(reference, item.layout, 2) as function:
            yield call, reference.worker
        reference.worker.close()

    def test_it_stands_still_while_another_judge_times_a_pass(self, calls, path):
        (call, worker), order, give_way = calls, [], calls[1].give_way

        def time_a_pass():
            with DeviceLock(path).alone():
                order.append("pass")

        def let_others_go_first():
            order.append("pause")
            give_way()

        other = threading.Timer(0.5, time_a_pass)
        worker.give_way = let_others_go_first
        other.start()
        call()
        order.append("calls")
        other.join()
        assert order == ["pause", "pass", "calls"]

    def test_a_judge_that_fails_meanwhile_leaves_no_worker_paused(self, calls):
        call, worker = calls
        worker.is_wanted, worker.give_way = lambda: True, lambda: 1 / 0
        with pytest.raises(ZeroDivisionError):
            call()
        worker.is_wanted = lambda: False
        assert all(worker.answer(Called, seconds=60) for _ in range(2))
        call()


class TestEndingWorkers:
    """Killed workers whose end nobody has waited for yet."""

    @pytest.fixture
    def context(self, device_context, path, survivors):
        yield attrs.evolve(device_context, lock=DeviceLock(path), takes_turns=True)
        assert survivors() == {}

    def test_others_time_no_passes_until_they_have_ended(self, context, server, path):
        worker = server.spawn()
        with context.device_work():
            context.kill(worker)
        assert not is_free(path, "alone")
        context.settle()
        assert worker.is_closed
        assert is_free(path, "alone")

    @pytest.mark.parametrize("block", ["exclusive", "no_device_work"])
    def test_the_end_is_waited_for_before_passes_are_timed(self, context, server, path, block):
        worker = server.spawn()
        with context.device_work():
            context.kill(worker)
            with getattr(context, block)():
                assert worker.is_closed
            assert not is_free(path, "alone")
        assert is_free(path, "alone")

    def test_work_on_the_device_does_not_wait_for_the_end(self, context, server):
        context.kill(server.spawn())
        with context.device_work():
            assert context._ending
        context.settle()
        assert not context._ending

    def test_a_request_ends_the_wait_for_the_end(self, context, server, path):
        ours, theirs = Pipe()
        with ours, theirs:
            context.kill(server.spawn())
            theirs.send("request")
            context.settle_before(ours)
            assert context._ending
            assert not is_free(path, "alone")
            ours.recv()
            context.settle_before(ours)
        assert not context._ending
        assert is_free(path, "alone")

    def test_the_wait_ends_when_the_server_has_died(self, context):
        ours, theirs = Pipe()
        with ours, theirs, ForkServerClient("cpu") as dying:
            context.kill(dying.spawn())
            dying.close()
            context.settle_before(ours)
        assert not context._ending

    def test_a_kept_lock_is_shared_outside_of_blocks(self, path):
        lock = DeviceLock(path)
        lock.keep(True)
        with lock.sharing(), lock.apart():
            assert lock.is_shared
        with lock.alone():
            assert lock.is_alone
        assert lock.is_shared
        lock.keep(False)
        assert is_free(path, "alone")
