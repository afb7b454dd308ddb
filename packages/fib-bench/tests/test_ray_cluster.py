"""Tests of the connection to a Ray cluster: addresses at which nothing listens."""

from __future__ import annotations

import os
import socket

import pytest
from fib_bench.errors import ClusterUnreachable

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # read at the import: nodes at 127.0.0.1 only
pytest.importorskip("ray", reason="needs the extra `ray`")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("form", ["127.0.0.1:{port}", "ray://127.0.0.1:{port}", "localhost:{port}"])
def test_an_address_at_which_nothing_listens_is_refused_at_once(form: str) -> None:
    from fib_bench.execution.ray_cluster import connect

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = form.format(port=listener.getsockname()[1])
    with pytest.raises(ClusterUnreachable, match=f"Ray cluster {address} does not answer: .*check the address"):
        connect(address)


def test_a_port_that_does_not_exist_is_refused() -> None:
    from fib_bench.execution.ray_cluster import connect

    with pytest.raises(ClusterUnreachable, match=r"127\.0\.0\.1:99999 does not answer"):
        connect("127.0.0.1:99999")


def test_the_reason_of_an_actor_that_does_not_start_is_named() -> None:
    from fib_bench.execution.ray_cluster import to_local_error
    from ray.exceptions import RayError

    said = (
        "The actor died because of an error raised in its creation task, A.__init__()\n  File\nImportError: no torch\n"
    )
    assert str(to_local_error(RayError(said))).endswith("it did not start on a node: ImportError: no torch")
    assert str(to_local_error(RayError("the node is full\nmore"))).endswith("the node is full")
