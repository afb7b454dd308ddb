"""A running service: the real process with its judges, on a port of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from .samples import plain_solution

START_SECONDS = 120.0
FAST = ("--measure-seconds", "0.05", "--warmup-runs", "1", "--iterations", "2", "--num-trials", "2")


class RunningService:
    """Starts ``fib-serve run`` and stops it.

    Args:
        data_set: The data set.
        options: More options.
        environment: More variables.
    """

    def __init__(self, data_set: Path, *options: str, environment: dict[str, str] | None = None) -> None:
        self.data_set = data_set
        command = [sys.executable, "-m", "fib_serve.cli.main", "run", str(data_set), "--port", "0", "--devices", "cpu"]
        self.process = subprocess.Popen(
            [*command, "--allow-unranked", *FAST, *options],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.lines: list[str] = []
        self._address = threading.Event()
        self.address = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        self.wait_until_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_until_ready(self) -> None:
        """Wait for the first device.

        Raises:
            AssertionError: The service has ended, or takes too long.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "".join(self.lines)
            if self._address.wait(0.1) and self._answers():
                return
        raise AssertionError("".join(self.lines))

    def stop(self) -> int:
        """Drain and end it; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(START_SECONDS)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def kill(self) -> None:
        """Kill it, with which its judges end."""
        self.process.kill()
        self.stop()

    def client(self, token: str = "") -> httpx.Client:
        """A client of the API."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.address, headers=headers, timeout=START_SECONDS)

    def judges(self) -> list[int]:
        """The process ids of the judges."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().decode().split("\0")
                parent = int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == self.process.pid and "fib_bench.execution.judge_process" in words:
                found.append(int(path.parent.name))
        return found

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.address}/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if '"address"' in line:
                self.address = json.loads(line)["address"]
                self._address.set()


def create_token(data_set: Path, user: str, scope: str = "submitter") -> str:
    """A token, made by the command line."""
    command = [sys.executable, "-m", "fib_serve.cli.main", "token", "create", str(data_set)]
    options = ["--user", user, "--scope", scope]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def submit(client: httpx.Client, source: str, name: str = "mine", **more: Any) -> str:
    """Submit a Python solution; returns its id."""
    answer = client.post("/v1/submissions", json={"solution": plain_solution(source, name), "force": True, **more})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def wait(client: httpx.Client, identifiers: Sequence[str]) -> list[dict[str, Any]]:
    """Wait for submissions; returns the documented tasks."""
    found: list[dict[str, Any]] = client.post(
        "/tasks/batch", json={"task_ids": list(identifiers), "timeout": START_SECONDS}
    ).json()
    assert all(task["status"] in ("completed", "failed") for task in found), found
    return found


def follow(client: httpx.Client, identifier: str, is_enough: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until a submission is as expected."""
    deadline = time.monotonic() + START_SECONDS
    while not is_enough(found := client.get(f"/v1/submissions/{identifier}?timeout=5").json()):
        assert time.monotonic() < deadline, found


def is_running(submission: dict[str, Any]) -> bool:
    return bool(submission["state"] == "running")


def has_results(submission: dict[str, Any]) -> bool:
    return bool(submission["evaluated"] > 0)


def traces_by_submission(root: Path) -> Counter[tuple[str, str]]:
    """The number of traces of each submission and workload in the files of a data set."""
    found: Counter[tuple[str, str]] = Counter()
    for path in root.glob("traces/**/*.jsonl"):
        for line in path.read_text().splitlines():
            trace = json.loads(line)
            found[trace["evaluation"]["extra"]["submission"], trace["workload"]["uuid"]] += 1
    return found
