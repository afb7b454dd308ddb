"""Tests of runs on a real Ray cluster of several nodes on this machine, one of which is killed at random."""

import os
import socket
import threading
import time
from collections import Counter
from contextlib import suppress

import pytest
from fib_bench import Benchmark, BenchmarkConfig
from fib_bench.errors import ClusterUnreachable, JudgeFailed
from fib_bench.events import DeviceExcluded, Evaluated
from fib_schema import TraceSet

from .samples import make_solution

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # read at the import: nodes at 127.0.0.1 only
os.environ.update(RAY_health_check_timeout_ms="60000")  # a node that gets no processor for a while is not dead
ray = pytest.importorskip("ray", reason="needs the extra `ray`")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SLEEPS = "import time\n\ndef run(x):\n    time.sleep(0.01)\n    return x * 2\n"
QUICK = {"confidence": 1.0, "iterations": 3, "warmup_runs": 1, "num_trials": 1}


@pytest.fixture(scope="module", autouse=True)
def _nodes_have_time():
    """Have nodes register as late as a busy machine lets them; Ray gives them 30 seconds."""
    from ray._private import services

    once = services.get_node

    def patiently(*node):
        while True:
            with suppress(RuntimeError):
                return once(*node)
            time.sleep(0.5)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "get_node", patiently)
        yield


@pytest.fixture
def cluster(tmp_path_factory):
    """A Ray cluster at 127.0.0.1: a head without processors, and two nodes, each with one and a cache of its own."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, env_vars={"FIB_CACHE_PATH": str(tmp_path_factory.mktemp("node-cache"))})
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def run(cluster, root, observe):
    """Run on a cluster; whatever happens, nothing is left out and everything passes."""
    events = []

    def keep(event):
        events.append(event)
        observe(event)

    config = BenchmarkConfig(executor="ray", address=cluster.address, **QUICK)
    result = Benchmark(TraceSet.from_path(root), config).run(observe=keep)
    assert result.failures == ()
    assert [e.evaluation.log for e in result.traces if e.evaluation and not e.is_successful()] == []
    return events


def recorded(root):
    traces = TraceSet.from_path(root).traces["double"]
    return Counter((trace.solution, trace.workload.uuid) for trace in traces if trace.solution)


def pairs(solutions, sizes):
    return Counter((solution.name, f"n-{size}") for solution in solutions for size in sizes)


def assert_no_other_is_out(events, killed):
    """Whether the one that was killed is told to be depends on the work that is left for it to fail at."""
    out = {event.device.split("/")[1] for event in events if isinstance(event, DeviceExcluded)}
    assert out <= {killed[:8]}


def test_a_node_that_is_killed_at_any_time_costs_no_evaluation(cluster, make_data_set, seeded_random):
    solutions = [make_solution(SLEEPS, name=f"s{index}") for index in range(2)]
    root = make_data_set(*solutions, sizes=range(2, 7))
    killed, moment = seeded_random.randrange(2), seeded_random.randrange(len(pairs(solutions, range(2, 7))))
    delay = seeded_random.uniform(0, 0.5)  # anywhere in an evaluation
    seen = []

    def kill():
        time.sleep(delay)
        cluster.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=kill)

    def observe(event):
        if len([e for e in seen if isinstance(e, Evaluated)]) == moment and not killer.ident:
            killer.start()
        seen.append(event)

    node = sorted(cluster.worker_nodes, key=lambda node: node.node_id)[killed]
    events = run(cluster, root, observe)
    killer.join()
    assert_no_other_is_out(events, node.node_id)
    assert recorded(root) == pairs(solutions, range(2, 7))


@pytest.mark.parametrize("form", ["127.0.0.1:{port}", "ray://127.0.0.1:{port}", "localhost:{port}", "127.0.0.1:99999"])
def test_an_address_at_which_nothing_listens_is_refused_at_once(form):
    from fib_bench.execution.ray_scheduler import connect

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = form.format(port=listener.getsockname()[1])
    with pytest.raises(ClusterUnreachable, match=f"Ray cluster {address} does not answer: .*check the address"):
        connect(address)


def test_errors_of_ours_come_back_and_what_the_cluster_lost_is_tried_again():
    from fib_bench.execution.ray_scheduler import to_local_error
    from ray.exceptions import RayError, RayTaskError

    ours = ZeroDivisionError("a bug of ours")
    assert to_local_error(RayTaskError("execute", "", ours)) is ours
    lost = to_local_error(RayError("the node is full\nmore"))
    assert isinstance(lost, JudgeFailed)
    assert str(lost).endswith("the node is full")
