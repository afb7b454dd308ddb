"""Tests of builds on a real Ray cluster: tasks without a device build what actors load."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import attrs
import pytest
from fib_bench import Benchmark, BenchmarkConfig
from fib_bench.events import Event, Working
from fib_bench.plan import BuildFailure, DefinitionPlan
from fib_schema import Definition, EvaluationStatus, Solution, Trace, TraceSet, Workload

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # read at the import: nodes at 127.0.0.1 only
ray = pytest.importorskip("ray", reason="needs the extra `ray`")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

MakeDataSet = Callable[..., Path]
MakeSolution = Callable[..., Solution]
MakePart = Callable[..., DefinitionPlan]
RayCluster = Callable[..., AbstractContextManager[tuple[Any, dict[Any, Path]]]]
QUICK: dict[str, Any] = {"confidence": 1.0, "iterations": 3, "warmup_runs": 1, "num_trials": 1}
PYTHON = "def run(x):\n    return x * 2\n"
CPP = """
#include <tvm/ffi/c_api.h>
#include <stdint.h>

// TVM-FFI's C interface alone compiles ten times as fast as its C++ one.
static const DLTensor* tensor(const TVMFFIAny& any) {
  if (any.type_index == kTVMFFITensor) return TVMFFITensorGetDLTensorPtr(any.v_obj);
  return static_cast<const DLTensor*>(any.v_ptr);
}

extern "C" int __tvm_ffi_run(void*, const TVMFFIAny* args, int32_t, TVMFFIAny*) {
  const DLTensor* x = tensor(args[0]);
  const DLTensor* y = tensor(args[1]);
  for (int64_t i = 0; i < x->shape[0]; ++i) static_cast<float*>(y->data)[i] = 2 * static_cast<float*>(x->data)[i];
  return 0;
}
"""


@pytest.fixture(scope="module")
def cluster(ray_cluster: RayCluster) -> Iterator[tuple[Any, list[Path]]]:
    """Two nodes with two processors each: an actor's and one for builds."""
    with ray_cluster(2, 2) as (cluster, nodes):
        yield cluster, list(nodes.values())


@pytest.fixture
def cpp(make_solution: MakeSolution) -> Callable[[str], Solution]:
    """A solution that compiles, and which no other test has built; one named ``bad`` does not compile."""

    def make(name: str) -> Solution:
        code = f"int x = {name!r}; nonsense" if name == "bad" else CPP
        return make_solution(f"// {time.time_ns()}\n{code}", name=name, language="cpp", dps=True)

    return make


@pytest.fixture
def make_part(definition: Definition, make_workload: Callable[..., Workload]) -> MakePart:
    def make(*solutions: Solution, definition: Definition = definition) -> DefinitionPlan:
        workload = make_workload(definition, {"n": 2})
        return DefinitionPlan(definition, (workload,), {workload.uuid: solutions})

    return make


def libraries(cache: Path, *solutions: Solution) -> dict[str, int]:
    """Times at which the libraries of solutions were made, by their files; without those that are being built."""
    folders = [folder for s in solutions for folder in cache.glob(f"*/solution-{s.hash()[:32]}-*")]
    found = [path for folder in folders for path in folder.rglob("library-*.so") if path.parent.suffix != ".tmp"]
    return {str(path): path.stat().st_mtime_ns for path in found}


def built(cache: Path, *solutions: Solution) -> int:
    """Number of solutions that have a library; one that ran with two uids has two."""
    return sum(bool(libraries(cache, solution)) for solution in solutions)


def what_is_known(traces: Sequence[Trace], solution: str, cache: Path) -> list[tuple[object, ...]]:
    """Status, log and isolation of the evaluations of a solution, but no uid, place of the cache or who built first."""
    return [
        (
            e.status,
            re.sub(r"(solution-\w+)-\d+", r"\1", re.sub(r" \(known from .*\)", "", e.log.replace(str(cache), "CACHE"))),
            (e.extra or {}).get("isolation"),
        )
        for trace in traces
        if trace.solution == solution and (e := trace.evaluation)
    ]


def test_everything_is_built_before_it_is_needed_and_what_is_not_built_is_a_result_as_it_is_locally(
    cluster: tuple[Any, list[Path]],
    make_data_set: MakeDataSet,
    make_solution: MakeSolution,
    cpp: Callable[[str], Solution],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = [cpp(f"s{index}") for index in range(3)]
    solutions = [compiled[0], cpp("bad"), *compiled[1:], make_solution(PYTHON, name="python")]
    sizes = 2, 3, 4, 5, 6  # so many that each piece of the work has all solutions
    root = make_data_set(*solutions, sizes=sizes)
    _, caches = cluster
    seen: list[dict[str, int]] = []
    counts: list[int] = []

    def observe(event: Event) -> None:
        if isinstance(event, Working) and not seen:
            counts.extend(built(cache, *compiled) for cache in caches)
            seen.extend(libraries(cache, *compiled) for cache in caches)

    config = BenchmarkConfig(**QUICK)
    remote = Benchmark(TraceSet.from_path(root), attrs.evolve(config, executor="ray")).run(
        dump_traces=False, observe=observe
    )
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    local = Benchmark(TraceSet.from_path(root), config).run(dump_traces=False)

    assert len(compiled) in counts  # the node that began first
    for before, cache in zip(seen, caches, strict=True):
        # Nothing is built twice. A node that has nothing left to evaluate may have stopped in the middle of its builds.
        assert before.items() <= libraries(cache, *compiled).items()
    assert remote.failures == local.failures == ()
    known, *others = what_is_known(local.traces, "bad", tmp_path / "cache")
    assert known[0] is EvaluationStatus.COMPILE_ERROR
    assert others == [known] * (len(sizes) - 1)
    for trace in remote.traces:
        if trace.solution == "bad":
            assert [known] in [what_is_known([trace], "bad", cache) for cache in caches]
        else:
            assert trace.is_successful(), trace.evaluation
    assert len(remote.traces) == len(sizes) * len(solutions)


class TestBuilds:
    """By tasks that stand for builds, which note what they do."""

    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        path = tmp_path / "log"
        path.touch()
        return path

    @pytest.fixture
    def builds(self, cluster: tuple[Any, list[Path]]) -> Iterator[Callable[..., Any]]:
        """Make builds whose tasks do what is given, for solutions by their names."""
        from fib_bench.execution.ray_builds import Builds
        from fib_bench.execution.ray_cluster import device_slots

        made: list[Any] = []

        def make(build: Callable[[str], BuildFailure | None] | None = None, device: str = "cpu") -> Any:
            class Task:  # here, so that it travels to the node, which cannot import this module
                seconds = 60.0

                def build(self, definition: Definition, solution: Solution) -> BuildFailure | None:
                    assert build is not None
                    return build(solution.name)

            made.append(Builds(device_slots(ray.nodes(), "CPU"), BenchmarkConfig(device=device), None, {}))
            if build is not None:
                made[-1]._task = Task()
            return made[-1]

        yield make
        for each in made:
            each.close()
            assert not each._thread.is_alive()

    def nodes(self) -> list[str]:
        return [node["NodeID"] for node in ray.nodes() if node["Resources"].get("CPU")]

    def test_only_what_is_compiled_is_built_on_the_node_that_asks(
        self, builds: Callable[..., Any], make_part: MakePart, make_solution: MakeSolution, log: Path, cpp: Any
    ) -> None:
        first, second = self.nodes()

        def build(name: str) -> None:
            with log.open("a") as file:
                file.write(f"{name} {ray.get_runtime_context().get_node_id()}\n")

        part = make_part(cpp("a"), make_solution(PYTHON, name="python"), cpp("b"))
        made = builds(build)
        made.begin([part])
        assert made.prioritize(second, part) == part
        assert sorted(log.read_text().splitlines()) == [f"a {second}", f"b {second}"]
        assert made.prioritize(second, part) == part
        assert len(log.read_text().splitlines()) == 2
        assert made.prioritize(first, part) == part
        assert sorted(log.read_text().splitlines()[2:]) == [f"a {first}", f"b {first}"]

    def test_what_a_compiler_refuses_is_not_tried_again(
        self, builds: Callable[..., Any], make_part: MakePart, log: Path, cpp: Any
    ) -> None:
        failure = BuildFailure(EvaluationStatus.COMPILE_ERROR, "no")

        def build(name: str) -> BuildFailure | None:
            with log.open("a") as file:
                file.write(f"{name}\n")
            return failure if name == "bad" else None

        part = make_part(cpp("bad"), cpp("good"))
        made = builds(build)
        made.begin([part])
        for _ in range(2):
            assert made.prioritize(self.nodes()[0], part).unbuildable == {"bad": failure}
        assert sorted(log.read_text().split()) == ["bad", "good"]

    def test_a_task_that_is_lost_is_tried_again_and_left_to_the_judge_after_a_few_times(
        self, builds: Callable[..., Any], make_part: MakePart, log: Path, cpp: Any
    ) -> None:
        def build(name: str) -> None:
            with log.open("a") as file:
                file.write(f"{name}\n")
            if name == "lost" or log.read_text().split().count(name) < 2:
                os.kill(os.getpid(), signal.SIGKILL)

        part = make_part(cpp("lost"), cpp("once"))
        made = builds(build)
        made.begin([part])
        assert made.prioritize(self.nodes()[0], part) == part
        assert sorted(log.read_text().split()) == ["lost"] * 3 + ["once"] * 2

    def test_an_error_of_ours_ends_the_run(self, builds: Callable[..., Any], make_part: MakePart, cpp: Any) -> None:
        def build(name: str) -> None:
            raise ZeroDivisionError(f"a bug of ours at {name}")

        part = make_part(cpp("a"))
        made = builds(build)
        made.begin([part])
        with pytest.raises(ZeroDivisionError, match="a bug of ours at a"):
            made.prioritize(self.nodes()[0], part)
        with pytest.raises(ZeroDivisionError):
            made.check()

    def test_stopped_they_end(self, builds: Callable[..., Any], make_part: MakePart, log: Path, cpp: Any) -> None:
        def build(name: str) -> None:
            log.write_text(f"{os.getpid()}")
            signal.pause()

        part = make_part(cpp("a"), cpp("b"))
        made = builds(build, device="cuda:0")
        made.begin([part])
        while not log.read_text():
            time.sleep(0.01)
        made.close()
        assert made.prioritize(self.nodes()[0], part) is None

    def test_for_gpus_all_is_built_ahead_as_many_at_a_time_as_there_is_room_for(
        self, builds: Callable[..., Any], make_part: MakePart, cluster: tuple[Any, list[Path]], cpp: Any
    ) -> None:
        """Here really, as for a GPU: its node and its kind of cache, but nothing touches the device."""
        solutions = [cpp("bad"), *(cpp(f"s{index}") for index in range(3))]
        part = make_part(*solutions)
        made = builds(device="cuda:0")
        made.begin([part])

        def is_building() -> bool:
            with made._change:  # a build is between `waiting` and `running` while it is submitted
                assert all(len(node.running) <= 1 for node in made._nodes.values())
                return any(node.waiting or node.running for node in made._nodes.values())

        while is_building():
            time.sleep(0.01)
        assert [len(libraries(cache, *solutions)) for cache in cluster[1]] == [3, 3]
        for node in self.nodes():
            assert list(made.prioritize(node, part).unbuildable) == ["bad"]

    def test_for_gpus_what_is_not_built_yet_comes_last_and_what_others_do_is_not_built(
        self, builds: Callable[..., Any], make_part: MakePart, make_solution: MakeSolution, log: Path, cpp: Any
    ) -> None:
        first, second = self.nodes()

        def build(name: str) -> None:
            with log.open("a") as file:
                file.write(f"{name} {ray.get_runtime_context().get_node_id()}\n")
            while not log.with_suffix(".go").exists():
                time.sleep(0.01)

        part = make_part(cpp("a"), cpp("b"), cpp("c"), cpp("d"), make_solution(PYTHON, name="python"))
        made = builds(build, device="cuda:0")
        made.begin([part])
        while len(log.read_text().splitlines()) < 2:
            time.sleep(0.01)
        (solutions,) = made.prioritize(first, part).pending.values()
        assert [solution.name for solution in solutions] == ["python", "a", "b", "c", "d"]
        log.with_suffix(".go").touch()
        while len([line for line in log.read_text().splitlines() if first in line]) < 4:
            time.sleep(0.01)
        assert len([line for line in log.read_text().splitlines() if second in line]) == 1
