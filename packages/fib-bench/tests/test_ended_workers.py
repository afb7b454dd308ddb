"""Tests of killed workers whose end nobody has waited for yet, with real processes and a real lock."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from multiprocessing import Pipe
from pathlib import Path

import attrs
import pytest
from fib_bench.judge.device import DeviceContext, DeviceLock
from fib_bench.worker.client import ForkServerClient


@pytest.fixture(autouse=True)
def _leaves_no_process(survivors: Callable[[], dict[int, str]]) -> Iterator[None]:
    yield
    assert survivors() == {}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of the lock of passes."""
    return tmp_path / "locks" / "d.lock"


@pytest.fixture
def context(device_context: DeviceContext, path: Path) -> DeviceContext:
    return attrs.evolve(device_context, lock=DeviceLock(path), takes_turns=True)


def may_time(path: Path) -> bool:
    """Whether another judge could time a pass now."""
    with path.open() as another:
        try:
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_others_time_no_passes_until_a_killed_worker_has_ended(
    context: DeviceContext, server: ForkServerClient, path: Path
) -> None:
    worker = server.spawn()
    with context.device_work():
        context.kill(worker)
    assert not may_time(path)
    context.settle()
    assert worker.is_closed
    assert may_time(path)


@pytest.mark.parametrize("block", ["exclusive", "no_device_work"])
def test_the_end_is_waited_for_before_passes_are_timed(
    context: DeviceContext, server: ForkServerClient, path: Path, block: str
) -> None:
    worker = server.spawn()
    entered: AbstractContextManager[None] = getattr(context, block)()
    with context.device_work():
        context.kill(worker)
        with entered:
            assert worker.is_closed
        assert not may_time(path)
    assert may_time(path)


def test_work_on_the_device_does_not_wait_for_the_end(context: DeviceContext, server: ForkServerClient) -> None:
    context.kill(server.spawn())
    with context.device_work():
        assert not context.is_settled
    context.settle()
    assert context.is_settled


def test_a_request_ends_the_wait_for_the_end(context: DeviceContext, server: ForkServerClient, path: Path) -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        context.kill(server.spawn())
        theirs.send("request")
        context.settle_before(ours)
        assert not context.is_settled
        assert not may_time(path)
        ours.recv()
        context.settle_before(ours)
    assert context.is_settled
    assert may_time(path)


def test_the_wait_ends_when_the_server_has_died(context: DeviceContext, server: ForkServerClient) -> None:
    ours, theirs = Pipe()
    with ours, theirs, ForkServerClient("cpu") as dying:
        context.kill(dying.spawn())
        dying.close()
        context.settle_before(ours)
    assert context.is_settled


def test_a_kept_lock_is_shared_outside_of_blocks(path: Path) -> None:
    lock = DeviceLock(path)
    lock.keep(True)
    with lock.sharing(), lock.apart():
        assert lock.is_shared
    with lock.alone():
        assert lock.is_alone
    assert lock.is_shared
    lock.keep(False)
    assert may_time(path)
