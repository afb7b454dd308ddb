"""Tests of the supervisor's choice of workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fib_serve.operation.supervisor import workers_of
from fib_serve.settings import Settings


def test_workers_that_share_a_gpu_have_names_and_know_how_many_they_are(tmp_path: Path) -> None:
    settings = Settings(dataset="/d", state=str(tmp_path), devices=("cuda:0", "cuda:1"), concurrency=2)
    workers = list(workers_of(settings))
    assert [worker.command[1:] for worker in workers] == [
        [settings.to_json(), device, f"{device} (worker {number} of 2)"]
        for device in ("cuda:0", "cuda:1")
        for number in (1, 2)
    ]
    assert workers[0].name == "worker cuda:0 (worker 1 of 2)"


def test_all_devices_of_a_cluster_have_one_process(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra `ray`")
    settings = Settings(dataset="/d", state=str(tmp_path), devices=("cuda:0",), executor="ray", address="a:1")
    (worker,) = workers_of(settings)
    assert worker.command == ["fib_serve.worker.process", settings.to_json()]


def test_the_cpu_has_one_worker_because_timing_needs_all_of_it(tmp_path: Path) -> None:
    settings = Settings(dataset="/d", state=str(tmp_path), devices=("cpu",), concurrency=4)
    (worker,) = workers_of(settings)
    assert json.loads(worker.command[1])["concurrency"] == 1
    assert worker.command[2:] == ["cpu", "cpu"]
