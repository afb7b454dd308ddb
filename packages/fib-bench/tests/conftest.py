import gc
import os
import random
import re
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
import torch
from fib_bench import BenchmarkConfig
from fib_bench.cli.main import main
from fib_bench.judge.device import FOLDER_VARIABLE
from fib_bench.judge.evaluate import Judge
from fib_bench.worker.client import ForkServerClient, KeptOutput, Worker
from fib_schema import BuildSpec, Solution, SourceFile, Trace, TraceSet

from .samples import DOUBLE, GOOD, make_workload

QUICK = {
    "warmup_runs": 1,
    "iterations": 3,
    "num_trials": 2,
    "confidence": 1.0,
    "cpu_processes": 1,
    "measure_seconds": 20.0,
}
"""Few timed calls; the count of samples ends an evaluation and not the clock, however busy the machine is."""
_SLOWLY = 1 / 60


def _target(descriptor):
    """The file of a descriptor; empty for one that is closed again, as that of a listing is."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return ""


@pytest.fixture
def nothing_left_open():
    """Watches that a block opens no descriptor that it leaves open."""

    @contextmanager
    def watch():
        gc.collect()  # what other tests have left
        before = set(os.listdir("/proc/self/fd"))
        yield
        gc.collect()  # the garbage that was left meanwhile
        left = {number: _target(number) for number in set(os.listdir("/proc/self/fd")) - before}
        assert not {number: target for number, target in left.items() if target}

    return watch


@pytest.fixture(scope="session", autouse=True)
def cache_path(tmp_path_factory):
    """A cache of its own for the whole run: what was compiled once is there for all tests."""
    path = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIB_CACHE_PATH", str(path))
        yield path


@pytest.fixture(autouse=True)
def _use_build_cache(cache_path, monkeypatch):
    """Set the cache of these tests again: in a run of several packages each has a cache of its own."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(cache_path))


@pytest.fixture(scope="session", autouse=True)
def _own_device_locks(tmp_path_factory):
    """Device locks of this process: no test waits for another run on this machine, or prints who holds the lock."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """One thread of torch in this process and in workers: idle threads of a team spin, on a busy machine for long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def server(cache_path):
    """One worker server for all tests, so that torch is imported once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIB_CACHE_PATH", str(cache_path))  # tests of another package may have set theirs
        server = ForkServerClient("cpu")
        server.launch()
    with server:
        yield server


@pytest.fixture
def seeded_random():
    """Random numbers whose seed is printed where a test fails; ``FIB_TEST_SEED`` draws them once more."""
    seed = int(os.environ.get("FIB_TEST_SEED") or random.SystemRandom().getrandbits(32))
    print(f"FIB_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def slow_clock(monkeypatch):
    """Have a worker's time run slowly until it prints that it hangs, so that on a busy machine it gets that far.

    It runs slowly again until the worker has told its stack, unless that "hangs silently".
    """
    receive, ask_for_stack, keep, monotonic = Worker._receive, Worker._ask_for_stack, KeptOutput.add, time.monotonic
    now, read, pace, is_silent = 0.0, monotonic(), _SLOWLY, False

    def passing():
        nonlocal now, read
        true = monotonic()
        now, read = now + (true - read) * pace, true
        return now

    def turn(to):
        nonlocal pace
        passing()
        pace = to

    def add(self, data):
        nonlocal is_silent
        is_silent = is_silent or b"hangs silently" in data
        if b"hangs" in data or b"  File " in data:
            turn(1.0)
        keep(self, data)

    def receives(self, seconds):
        nonlocal is_silent
        is_silent = False
        turn(_SLOWLY)
        return receive(self, seconds)

    def asks_for_stack(self):
        if not is_silent:
            turn(_SLOWLY)
        ask_for_stack(self)

    monkeypatch.setattr(KeptOutput, "add", add)
    monkeypatch.setattr(Worker, "_receive", receives)
    monkeypatch.setattr(Worker, "_ask_for_stack", asks_for_stack)
    monkeypatch.setattr("fib_bench.worker.client.time", SimpleNamespace(monotonic=passing))


@pytest.fixture
def survivors(cache_path):
    """Lists the processes that workers have left behind: their environment names our cache."""
    mark = os.fsencode(f"FIB_CACHE_PATH={cache_path}")

    def find():
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark not in (folder / "environ").read_bytes():
                    continue
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                is_zombie = re.search(r"\) [ZX] ", (folder / "stat").read_text()) is not None
            except (FileNotFoundError, PermissionError, ProcessLookupError):
                continue  # it has ended while we looked, or is none of ours
            if "fib_bench.worker.fork_server" not in command or _parent(folder) != os.getpid():
                found[int(folder.name)] = command
            if is_zombie:
                found.pop(int(folder.name), None)
        return found

    return find


def _parent(folder):
    return int((folder / "stat").read_text().rpartition(")")[2].split()[1])


class SharedServer:
    """The shared server, which a judge cannot close."""

    def __init__(self, server):
        self.spawn = server.spawn

    def close(self):
        """Leave it running."""


@pytest.fixture(scope="session")
def device_context(server):
    """Device context of the CPU, measured once for all tests."""
    return Judge(BenchmarkConfig(), server=SharedServer(server)).context


@pytest.fixture
def make_judge(server, device_context):
    """Make a judge that forks its workers from the shared server, or from one of its `own`."""
    judges = []

    def make(root=None, own=None, **fields):
        config = BenchmarkConfig(**{**QUICK, "timeout_seconds": 60.0, **fields})
        judge = Judge(config, root=root, server=own or SharedServer(server))
        context = attrs.evolve(device_context, timeout_seconds=config.timeout_seconds, phases=judge.phases)
        judge.context = judge.baselines._context = context
        judges.append(judge)
        return judge

    yield make
    for judge in judges:
        judge.close()


@pytest.fixture
def evaluate(make_judge):
    """Evaluate solutions, one after the other, on one workload with `n` = 8, or on those given."""

    def run(*solutions, definition=DOUBLE, workloads=None, **fields):
        if workloads is None:
            workloads = [make_workload(definition, dict.fromkeys(definition.var_axes, 8))]
        judge = make_judge(**fields)
        try:
            prepared = [judge.prepare(definition, workload) for workload in workloads]
            return [e for solution in solutions for _, e in judge.evaluate(definition, solution, prepared)]
        finally:
            judge.close()

    return run


@pytest.fixture
def make_data_set(tmp_path):
    """Write a data set of ``double`` with workloads of the sizes given."""

    def make(*solutions, sizes=(4,), definitions=()):
        root = tmp_path / "data"
        root.mkdir()
        trace_set = TraceSet.from_path(root)
        trace_set.add_definitions([DOUBLE, *definitions])
        workloads = [make_workload(DOUBLE, {"n": size}, f"n-{size}") for size in sizes]
        trace_set.add_traces([Trace(DOUBLE.name, workload) for workload in workloads])
        trace_set.add_solutions(solutions)
        return root

    return make


@pytest.fixture
def shared_server(monkeypatch, server, device_context):
    """Have every run of this test judge in this process, with workers from the shared server and few timed calls."""

    def execution(config, root, baselines):
        unset = {name: value for name, value in QUICK.items() if getattr(config, name) is None}
        config = config.with_fields(**unset)
        judge = Judge(config, root=root, baselines=baselines, server=SharedServer(server))
        context = attrs.evolve(device_context, timeout_seconds=config.timeout_seconds, phases=judge.phases)
        judge.context = judge.baselines._context = context
        return judge

    monkeypatch.setattr("fib_bench.execution.scheduler.JudgeProcess", execution)
    return server


@pytest.fixture
def write_set(tmp_path):
    """Write traces, and the definitions and solutions that they name, to a folder."""

    def write(*traces, name="set"):
        root = tmp_path / name
        root.mkdir()
        names = {trace.definition: None for trace in traces} | {DOUBLE.name: None}
        trace_set = TraceSet.from_path(root)
        trace_set.add_definitions([attrs.evolve(DOUBLE, name=each) for each in names])
        solutions = {(trace.solution, trace.definition): None for trace in traces if trace.solution}
        trace_set.add_solutions([
            Solution(
                name=str(each),
                definition=of,
                author="tester",
                spec=BuildSpec(language="python", target_hardware=("cpu",), entry_point="main.py::run"),
                sources=(SourceFile("main.py", GOOD),),
            )
            for each, of in solutions
        ])  # fmt: skip
        trace_set.add_traces(traces)
        return root

    return write


@pytest.fixture
def run(capfd):
    """Run the command in this process; returns the exit code, stdout and stderr."""

    def run(*words):
        try:
            code = main([str(word) for word in words])
        except SystemExit as error:
            code = int(str(error.code))
        captured = capfd.readouterr()
        return code, captured.out, " ".join(captured.err.split())

    return run
