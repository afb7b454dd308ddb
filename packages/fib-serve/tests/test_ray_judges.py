"""Tests of the judges on a node of a real Ray cluster, without a service."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import fib_bench
import pytest
from fib_bench import BenchmarkConfig
from fib_bench.errors import JudgeFailed
from fib_bench.events import Evaluated, Event, Working
from fib_serve.errors import DeviceLost, InvalidSetting

from .samples import GOOD, make_definition, make_solution, make_workloads, write_data_set

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # read at the import: nodes at 127.0.0.1 only
ray = pytest.importorskip("ray", reason="needs the extra `ray`")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

if TYPE_CHECKING:
    from fib_serve.worker.ray_judges import RayJudges

ENDLESS = "def run(x):\n    while True: pass\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data_set(tmp_path_factory.mktemp("data") / "data")


@pytest.fixture(scope="module")
def make_judges(root: Path) -> Iterator[Callable[[], RayJudges]]:
    """Starts judges on the one node of a cluster, whose head has no processors."""
    from fib_bench.execution.ray_scheduler import device_slots
    from fib_serve.worker.ray_judges import RayJudges
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        (slot,) = device_slots(ray.nodes(), "CPU")
        config = BenchmarkConfig(measure_seconds=0.05, warmup_runs=1, iterations=2, num_trials=2, timeout_seconds=60)
        yield lambda: RayJudges(slot, {root: config})
    finally:
        ray.shutdown()
        cluster.shutdown()


def evaluate(judges: RayJudges, root: Path, source: str) -> Iterator[Event]:
    return judges.run(root, make_definition(), make_solution(source), make_workloads(), "key")


def statuses(events: Iterator[Event]) -> list[str]:
    evaluations = [event.trace.evaluation for event in events if isinstance(event, Evaluated)]
    return [str(evaluation.status) for evaluation in evaluations if evaluation is not None]


def check_for(judges: RayJudges, *, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        judges.check()


def test_an_evaluation_is_interrupted_at_once_and_the_next_one_runs(
    make_judges: Callable[[], RayJudges], root: Path
) -> None:
    judges = make_judges()
    try:
        events = evaluate(judges, root, ENDLESS)
        next(event for event in events if isinstance(event, Working) and event.solution)
        thread = threading.Thread(target=judges.interrupt)
        thread.start()
        with pytest.raises(JudgeFailed):
            list(events)
        thread.join()
        with pytest.raises(JudgeFailed, match="interrupted"):
            list(evaluate(judges, root, GOOD))
        judges.begin()
        assert statuses(evaluate(judges, root, GOOD)) == ["PASSED"] * 2
    finally:
        judges.close()
    with pytest.raises(DeviceLost, match="is lost"):
        check_for(judges, seconds=30)  # an actor that was killed may answer once more


def test_a_node_with_another_version_is_not_used(
    make_judges: Callable[[], RayJudges], monkeypatch: pytest.MonkeyPatch
) -> None:
    version = fib_bench.__version__
    monkeypatch.setattr(fib_bench, "__version__", "9.9")
    with pytest.raises(InvalidSetting, match=f"has fib-bench {version}, the service has 9.9"):
        make_judges()
    monkeypatch.undo()
    make_judges().close()  # the refused one has left the device
