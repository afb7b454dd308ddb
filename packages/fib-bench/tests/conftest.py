"""Fixtures that the tests of fib-bench share."""

from __future__ import annotations

import gc
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from fib_bench import BenchmarkConfig, ResolvedEvalConfig
from fib_bench.evaluators import Case, evaluator_for
from fib_bench.execution.execution import Execution
from fib_bench.judge.device import FOLDER_VARIABLE, DeviceContext
from fib_bench.judge.evaluate import Judge
from fib_bench.worker.client import ForkServerClient, KeptOutput, Worker
from fib_schema import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Correctness,
    Definition,
    Environment,
    Evaluation,
    Performance,
    RandomInput,
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
)

QUICK = {
    "warmup_runs": 1,
    "iterations": 3,
    "num_trials": 2,
    "confidence": 1.0,
    "measure_seconds": 20.0,
}
"""Few timed calls; the count of samples ends an evaluation and not the clock, however busy the machine is."""
_SLOWLY = 1 / 60


def _target(descriptor: str) -> str:
    """The file of a descriptor; empty for one that is closed again, as that of a listing is."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return ""


@pytest.fixture
def nothing_left_open() -> Callable[[], AbstractContextManager[None]]:
    """Watches that a block opens no descriptor that it leaves open."""

    @contextmanager
    def watch() -> Iterator[None]:
        gc.collect()  # what other tests have left
        before = set(os.listdir("/proc/self/fd"))
        yield
        gc.collect()  # the garbage that was left meanwhile
        left = {number: _target(number) for number in set(os.listdir("/proc/self/fd")) - before}
        assert not {number: target for number, target in left.items() if target}

    return watch


@pytest.fixture(scope="session", autouse=True)
def cache_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of its own for the whole run: what was compiled once is there for all tests."""
    path = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIB_CACHE_PATH", str(path))
        yield path


@pytest.fixture(autouse=True)
def _use_build_cache(cache_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the cache of these tests again: in a run of several packages each has a cache of its own."""
    monkeypatch.setenv("FIB_CACHE_PATH", str(cache_path))


@pytest.fixture(scope="session", autouse=True)
def _own_device_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Device locks of this process: no test waits for another run on this machine, or prints who holds the lock."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(tmp_path_factory.mktemp("locks")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """One thread of torch in this process and in workers: idle threads of a team spin, on a busy machine for long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def server(cache_path: Path) -> Iterator[ForkServerClient]:
    """One worker server for all tests, so that torch is imported once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIB_CACHE_PATH", str(cache_path))  # tests of another package may have set theirs
        server = ForkServerClient("cpu")
        server.launch()
    with server:
        yield server


@pytest.fixture
def seeded_random() -> random.Random:
    """Random numbers whose seed is printed where a test fails; ``FIB_TEST_SEED`` draws them once more."""
    seed = int(os.environ.get("FIB_TEST_SEED") or random.SystemRandom().getrandbits(32))
    print(f"FIB_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a worker's time run slowly until it prints that it hangs, so that on a busy machine it gets that far.

    It runs slowly again until the worker has told its stack, unless that "hangs silently".
    """
    answer, ask_for_stack, keep, monotonic = Worker.answer, Worker._ask_for_stack, KeptOutput.add, time.monotonic
    now, read, pace, is_silent = 0.0, monotonic(), _SLOWLY, False

    def passing() -> float:
        nonlocal now, read
        true = monotonic()
        now, read = now + (true - read) * pace, true
        return now

    def turn(to: float) -> None:
        nonlocal pace
        passing()
        pace = to

    def add(self: KeptOutput, data: bytes) -> None:
        nonlocal is_silent
        is_silent = is_silent or b"hangs silently" in data
        if b"hangs" in data or b"  File " in data:
            turn(1.0)
        keep(self, data)

    def answers(self: Worker, seconds: float) -> object:
        nonlocal is_silent
        is_silent = False
        turn(_SLOWLY)
        return answer(self, seconds)

    def asks_for_stack(self: Worker) -> None:
        if not is_silent:
            turn(_SLOWLY)
        ask_for_stack(self)

    monkeypatch.setattr(KeptOutput, "add", add)
    monkeypatch.setattr(Worker, "answer", answers)
    monkeypatch.setattr(Worker, "_ask_for_stack", asks_for_stack)
    monkeypatch.setattr("fib_bench.worker.client.time", SimpleNamespace(monotonic=passing))


@pytest.fixture
def survivors(cache_path: Path) -> Callable[[], dict[int, str]]:
    """Lists the processes that workers have left behind: their environment names our cache."""
    mark = os.fsencode(f"FIB_CACHE_PATH={cache_path}")

    def find() -> dict[int, str]:
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


def _parent(folder: Path) -> int:
    return int((folder / "stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def definition() -> Definition:
    """``y = 2 x`` on ``[n]`` float32."""
    return Definition(
        "double",
        "elementwise",
        axes={"n": AxisVar()},
        inputs={"x": TensorSpec(("n",), "float32")},
        outputs={"y": TensorSpec(("n",), "float32")},
        reference="def run(x):\n    return x * 2\n",
    )


@pytest.fixture(scope="session")
def make_definition() -> Callable[..., Definition]:
    """Make a definition from short words: ``make_definition({"x": "float32[n,4]", "s": "float32"}, ...)``.

    ``float32`` alone is a scalar, ``float32[]`` a tensor of no dimension, ``?`` means optional.
    """

    def spec(text: str) -> TensorSpec:
        match = re.fullmatch(r"(\w+)(\[(.*)\])?(\?)?", text)
        assert match is not None, text
        axes = None if match[2] is None else tuple(part for part in match[3].split(",") if part)
        shape = None if axes is None else tuple(f"c{axis}" if axis.isdigit() else axis for axis in axes)
        return TensorSpec(shape, match[1], optional=match[4] is not None)

    def make(
        inputs: Mapping[str, str],
        outputs: Mapping[str, str],
        reference: str,
        *,
        op_type: str = "elementwise",
        constraints: Sequence[str] = (),
        name: str = "made",
        constants: Mapping[str, int] | None = None,
    ) -> Definition:
        tensors = [{name: spec(text) for name, text in group.items()} for group in (inputs, outputs)]
        names = {axis for group in tensors for tensor in group.values() for axis in tensor.shape or ()}
        fixed = {axis: int(axis[1:]) for axis in names if re.fullmatch(r"c\d+", axis)} | dict(constants or {})
        axes = {axis: AxisConst(fixed[axis]) if axis in fixed else AxisVar() for axis in sorted(names | set(fixed))}
        return Definition(name, op_type, axes, *tensors, reference, constraints=constraints)

    return make


@pytest.fixture(scope="session")
def judged() -> Callable[..., tuple[str, ...]]:
    """The problems that a definition's evaluator finds in what a code returns, on inputs in order."""

    def run(code: str, definition: Definition, inputs: Mapping[str, object]) -> dict[str, torch.Tensor]:
        names: dict[str, Callable[..., Any]] = {}
        exec(code, names)
        found = names["run"](*inputs.values())
        return dict(zip(definition.outputs, found if isinstance(found, tuple) else (found,), strict=True))

    def judge(definition: Definition, inputs: Mapping[str, object], code: str) -> tuple[str, ...]:
        evaluator = evaluator_for(definition, ResolvedEvalConfig())
        expected = run(definition.reference, definition, inputs)
        config = evaluator.settings(ResolvedEvalConfig())
        check = evaluator.check(Case(definition=definition, inputs=inputs, expected=expected, config=config))  # type: ignore[arg-type]
        return check.compare(run(code, definition, inputs), expected).problems

    return judge


@pytest.fixture
def make_workload() -> Callable[..., Workload]:
    """Make a workload whose inputs are random unless given."""

    def make(definition: Definition, axes: Mapping[str, int], uuid: str = "w", **inputs: object) -> Workload:
        given = {n: RandomInput() for n in definition.inputs if n not in inputs}
        sources = given | {n: source for n, source in inputs.items() if source is not None}
        return Workload(dict(axes), {n: sources[n] for n in definition.inputs if n in sources}, uuid)

    return make


@pytest.fixture
def make_solution() -> Callable[..., Solution]:
    """Make a solution from one file."""

    def make(
        code: str,
        *,
        name: str = "solution",
        definition: str = "double",
        dps: bool = False,
        language: str = "python",
        hardware: Sequence[str] = ("cpu",),
    ) -> Solution:
        file = "k.cpp" if language == "cpp" else "k.py"
        spec = BuildSpec(language, tuple(hardware), f"{file}::run", destination_passing_style=dps)
        return Solution(name, definition, "tests", spec, (SourceFile(file, code),))

    return make


class SharedServer:
    """The shared server, which a judge cannot close."""

    def __init__(self, server: ForkServerClient) -> None:
        self.spawn = server.spawn

    def close(self) -> None:
        """Leave it running."""


@pytest.fixture(scope="session")
def device_context(server: ForkServerClient) -> DeviceContext:
    """Device context of the CPU, measured once for all tests."""
    return Judge(BenchmarkConfig(), server=SharedServer(server)).context


@pytest.fixture
def make_judge(server: ForkServerClient, device_context: DeviceContext) -> Iterator[Callable[..., Judge]]:
    """Make a judge that forks its workers from the shared server."""
    judges: list[Judge] = []

    def make(root: Path | None = None, **fields: object) -> Judge:
        config = BenchmarkConfig(**{**QUICK, "timeout_seconds": 60.0, **fields})
        judge = Judge(config, root=root, server=SharedServer(server))
        judge.context = attrs.evolve(device_context, timeout_seconds=judge._config.timeout_seconds, phases=judge.phases)
        judges.append(judge)
        return judge

    yield make
    for judge in judges:
        judge.close()


@pytest.fixture
def evaluate(
    make_judge: Callable[..., Judge], make_workload: Callable[..., Workload], definition: Definition
) -> Callable[..., list[Evaluation]]:
    """Evaluate solutions, one after the other, on one workload with `n` = 8, or on those given."""
    double = definition

    def run(
        *solutions: Solution,
        definition: Definition | None = None,
        workloads: Sequence[Workload] | None = None,
        **fields: object,
    ) -> list[Evaluation]:
        definition = definition or double
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
def make_data_set(
    tmp_path: Path, definition: Definition, make_workload: Callable[..., Workload]
) -> Callable[..., Path]:
    """Write a data set of ``double`` with workloads of the sizes given."""

    def make(*solutions: Solution, sizes: Sequence[int] = (4,), definitions: Sequence[Definition] = ()) -> Path:
        root = tmp_path / "data"
        root.mkdir()
        trace_set = TraceSet.from_path(root)
        trace_set.add_definitions([definition, *definitions])
        workloads = [make_workload(definition, {"n": size}, f"n-{size}") for size in sizes]
        trace_set.add_traces([Trace(definition.name, workload) for workload in workloads])
        trace_set.add_solutions(solutions)
        return root

    return make


@pytest.fixture
def shared_server(
    monkeypatch: pytest.MonkeyPatch, server: ForkServerClient, device_context: DeviceContext
) -> ForkServerClient:
    """Have every run of this test judge in this process, with workers from the shared server and few timed calls."""

    def execution(config: BenchmarkConfig, root: Path | None, baselines: Mapping[str, Solution]) -> Execution:
        unset = {name: value for name, value in QUICK.items() if getattr(config, name) is None}
        config = config.with_fields(**unset)
        execution = Execution(config, root, baselines, SharedServer(server))
        judge = execution._judge
        judge.context = attrs.evolve(device_context, timeout_seconds=config.timeout_seconds, phases=judge.phases)
        return execution

    monkeypatch.setattr("fib_bench.execution.executors.JudgeProcess", execution)
    return server


@pytest.fixture(scope="session")
def make_result() -> Callable[..., Trace]:
    """A trace for reports: which passed if it has a latency, with the fields of this harness only if they are given."""

    def make(
        solution: str,
        workload: str,
        latency_ms: float | None = None,
        *,
        definition: str = "double",
        axes: Mapping[str, int] | None = None,
        status: str = "RUNTIME_ERROR",
        log: str = "boom",
        hardware: str = "cpu",
        reference_ms: float = 1.0,
        speedup: float | None = None,
        flags: Sequence[str] = (),
        performance_extra: Mapping[str, object] | None = None,
        timestamp: str = "2026-01-01",
    ) -> Trace:
        performance = None
        if latency_ms is not None:
            ratio = speedup if speedup is not None else reference_ms / latency_ms if latency_ms else 0.0
            performance = Performance(latency_ms, reference_ms, ratio, performance_extra)
        evaluation = Evaluation(
            "PASSED" if performance else status,
            Environment(hardware, {"torch": "2.13.0"}),
            timestamp,
            "" if performance else log,
            Correctness() if performance or status == "INCORRECT_NUMERICAL" else None,
            performance,
            {"flags": list(flags)} if flags else None,
        )
        return Trace(definition, Workload(axes or {"n": 4}, {"x": RandomInput()}, workload), solution, evaluation)

    return make


@pytest.fixture
def write_set(tmp_path: Path, definition: Definition) -> Callable[..., Path]:
    """Write traces, and the definitions and solutions that they name, to a folder."""

    def write(*traces: Trace, name: str = "set") -> Path:
        root = tmp_path / name
        root.mkdir()
        names = {trace.definition: None for trace in traces} | {definition.name: None}
        trace_set = TraceSet.from_path(root)
        trace_set.add_definitions([attrs.evolve(definition, name=each) for each in names])
        solutions = {(trace.solution, trace.definition): None for trace in traces if trace.solution}
        trace_set.add_solutions([
            Solution(
                name=str(each),
                definition=of,
                author="tester",
                spec=BuildSpec(language="python", target_hardware=("cpu",), entry_point="main.py::run"),
                sources=(SourceFile("main.py", "def run(x):\n    return x * 2\n"),),
            )
            for each, of in solutions
        ])  # fmt: skip
        trace_set.add_traces(traces)
        return root

    return write
