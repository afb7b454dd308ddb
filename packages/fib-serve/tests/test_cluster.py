"""Tests of a service whose devices are nodes of a real Ray cluster on this machine."""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from typing import Any

import attrs
import pytest
from fib_serve.errors import InvalidSetting

from .running_service import (
    START_SECONDS,
    RunningService,
    follow,
    has_begun,
    has_results,
    submit,
    traces_by_submission,
    wait,
)
from .samples import write_data_set

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # read at the import: nodes at 127.0.0.1 only
os.environ.update(RAY_health_check_timeout_ms="60000")  # a node that gets no processor for a while is not dead
pytest.importorskip("ray", reason="needs the extra `ray`")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

WEAK = {"FIB_BENCH_ISOLATION": "1"}
SLOW = "import time\ndef run(x):\n    time.sleep(0.05)\n    return x * 2\n"


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


@attrs.frozen
class Cluster:
    """A head without processors; nodes are added by the tests."""

    ray: Any

    @property
    def options(self):
        return ("--no-auth", "--max-running", "100", "--executor", "ray", "--address", str(self.ray.address))

    def add(self, **environment):
        return self.ray.add_node(num_cpus=1, env_vars=environment)

    def kill(self, node):
        self.ray.remove_node(node, allow_graceful=False)


@contextmanager
def running_cluster():
    from ray.cluster_utils import Cluster as RayCluster

    cluster = RayCluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        yield Cluster(cluster)
    finally:
        cluster.shutdown()


@pytest.fixture
def cluster():
    with running_cluster() as cluster:
        yield cluster


def devices_of(client, is_enough):
    """The devices by the first digits of their node, when they are as expected."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        found = {device["name"].split("/")[1]: device for device in client.get("/v1/devices").json()}
        if is_enough(found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def usable(found):
    return [node for node, device in found.items() if device["problem"] is None]


def nodes_of(client, identifiers):
    return [client.get(f"/v1/submissions/{one}").json()["device"].split("/")[1] for one in identifiers]


def evaluate_on(client, nodes, name):
    """Submit until each of these nodes has evaluated a submission; returns all submissions."""
    identifiers = []
    deadline = time.monotonic() + START_SECONDS
    while not nodes <= set(nodes_of(client, identifiers)):
        assert time.monotonic() < deadline, nodes_of(client, identifiers)
        batch = [submit(client, f"{SLOW}# {len(identifiers) + index}", name=name) for index in range(4)]
        assert [task["status"] for task in wait(client, batch)] == ["completed"] * 4
        identifiers += batch
    return identifiers


def assert_evaluated_once(root, identifiers, prefix="double", sizes=(4, 8)):
    found = traces_by_submission(root)
    assert {key: found[key] for key in found if key[0] in identifiers} == {
        (one, f"{prefix}-{size}"): 1 for one in identifiers for size in sizes
    }


def test_submissions_are_evaluated_on_all_nodes_and_recorded_on_this_machine(cluster, tmp_path):
    data_set = write_data_set(tmp_path / "data")
    hidden = write_data_set(tmp_path / "hidden", "secret", (65537,))
    nodes = {cluster.add().node_id[:8] for _ in range(2)}
    with RunningService(data_set, *cluster.options, "--hidden", str(hidden)) as service, service.client() as client:
        found = devices_of(client, lambda found: len(usable(found)) == 2)
        assert found.keys() == nodes
        assert {(device["hardware"], device["isolation"]) for device in found.values()} == {("cpu", 3)}
        page = client.get("/submissions").text
        assert all(f"/{node}/cpu:0" in page for node in nodes)

        identifiers = evaluate_on(client, nodes, "mine")
        assert_evaluated_once(data_set, identifiers)
        assert_evaluated_once(hidden, identifiers, "secret", (65537,))
        texts = [client.get(f"/v1/submissions/{identifiers[0]}{end}").text for end in ("", "/traces")]
        assert not any(re.search(r"\b65537\b|secret", text) for text in texts)
    assert service.process.returncode == 0


def test_a_submission_that_takes_too_long_ends_and_the_next_one_begins(cluster, tmp_path):
    cluster.add()
    options = (*cluster.options, "--submission-seconds", "5")
    with RunningService(write_data_set(tmp_path / "data"), *options) as service, service.client() as client:
        (task,) = wait(client, [submit(client, "def run(x):\n    while True: pass\n")])
        assert "took more than 5 s" in task["error"]
        follow(client, submit(client, SLOW), has_begun)


def test_a_node_that_is_killed_during_an_evaluation_loses_nothing_and_doubles_nothing(cluster, tmp_path):
    sizes = tuple(range(2, 7))
    data_set = write_data_set(tmp_path / "data", sizes=sizes)
    nodes = {node.node_id[:8]: node for node in (cluster.add(), cluster.add())}
    with RunningService(data_set, *cluster.options) as service, service.client() as client:
        devices_of(client, lambda found: len(usable(found)) == 2)
        identifiers = [submit(client, f"{SLOW}# {index}") for index in range(4)]
        follow(client, identifiers[0], has_results)
        (killed,) = nodes_of(client, identifiers[:1])
        cluster.kill(nodes[killed])
        assert [task["status"] for task in wait(client, identifiers)] == ["completed"] * 4
        assert killed not in nodes_of(client, identifiers[:1])
        assert_evaluated_once(data_set, identifiers, sizes=sizes)
        found = devices_of(client, lambda found: killed not in found)
        assert usable(found) == list(nodes.keys() - {killed})

        added = cluster.add().node_id[:8]
        devices_of(client, lambda found: added in usable(found))
        evaluate_on(client, nodes.keys() - {killed} | {added}, "later")


def test_a_service_refuses_to_start_without_its_cluster(tmp_path):
    command = [sys.executable, "-m", "fib_serve.cli.main", "run", str(write_data_set(tmp_path / "data")), "--no-auth"]
    options = ["--port", "0", "--devices", "cpu", "--executor", "ray", "--address", "127.0.0.1:1"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=START_SECONDS, check=False)
    assert done.returncode == 2
    assert "127.0.0.1:1" in done.stderr
    assert "serving" not in done.stderr


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1:", "ray://127.0.0.1:10001", "127.0.0.1:x", ""])
def test_other_forms_of_addresses_are_refused(settings, address):
    with pytest.raises(InvalidSetting, match="write HOST:PORT, or auto"):
        attrs.evolve(settings, executor="ray", devices=("cpu",), address=address)


def test_a_node_whose_sandbox_is_weak_is_shown_and_not_used(cluster, tmp_path):
    data_set = write_data_set(tmp_path / "data")
    weak, good = (cluster.add(**environment).node_id[:8] for environment in (WEAK, {}))
    with RunningService(data_set, *cluster.options) as service, service.client() as client:
        found = devices_of(client, lambda found: len(found) == 2 and bool(usable(found)))
        assert usable(found) == [good]
        assert found[weak]["problem"] == "its sandbox reaches level 1, required is 3"
        identifiers = [submit(client, f"{SLOW}# {index}") for index in range(3)]
        assert [task["status"] for task in wait(client, identifiers)] == ["completed"] * 3
        assert Counter(nodes_of(client, identifiers)) == {good: 3}
