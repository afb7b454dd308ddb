"""A running service: the real process with its judges, on a port of its own."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import httpx

from .samples import plain_solution

START_SECONDS = 300.0
FAST = (
    "--measure-seconds", "0.05", "--warmup-runs", "1", "--iterations", "2", "--num-trials", "2", "--cpu-processes", "1",
)  # fmt: skip


class RunningService:
    """Starts ``fib-serve run`` and stops it.

    Args:
        data_set: The data set.
        options: More options.
        environment: More variables.
    """

    def __init__(self, data_set, *options, environment=None):
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

    def __enter__(self):
        self.wait_until_ready()
        return self

    def __exit__(self, kind, error, trace):
        self.stop()

    def wait_until_ready(self):
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

    def stop(self):
        """Drain and end it; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(START_SECONDS)
        self._reader.join()
        self.process.stderr.close()
        return code

    def kill(self):
        self.process.kill()
        self.stop()

    def client(self, token=""):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.address, headers=headers, timeout=START_SECONDS)

    def judges(self):
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

    def _answers(self):
        try:
            return httpx.get(f"{self.address}/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            if '"serving ' in line:
                self.address = json.loads(line)["message"].split()[-1]
                self._address.set()


def create_token(data_set, user, scope="submitter"):
    command = [sys.executable, "-m", "fib_serve.cli.main", "token", "create", str(data_set)]
    options = ["--user", user, "--scope", scope]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def submit(client, source, name="mine", **more):
    """Submit a Python solution; returns its id."""
    answer = client.post("/v1/submissions", json={"solution": plain_solution(source, name), "force": True, **more})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def wait(client, identifiers):
    """Wait for submissions; returns the documented tasks."""
    found = client.post("/tasks/batch", json={"task_ids": list(identifiers), "timeout": START_SECONDS}).json()
    assert all(task["status"] in ("completed", "failed") for task in found), found
    return found


def follow(client, identifier, is_enough):
    """Wait until a submission is as expected."""
    deadline = time.monotonic() + START_SECONDS
    while not is_enough(found := client.get(f"/v1/submissions/{identifier}?timeout=5").json()):
        assert time.monotonic() < deadline, found


def has_begun(submission):
    return bool(submission["state"] != "queued")


def has_results(submission):
    return bool(submission["evaluated"] > 0)


def traces_by_submission(root):
    """The number of traces of each submission and workload in the files of a data set."""
    found = Counter()
    for path in root.glob("traces/**/*.jsonl"):
        for line in path.read_text().splitlines():
            trace = json.loads(line)
            submission = trace["evaluation"]["extra"].get("submission")  # withdrawn results name none
            found[submission, trace["workload"]["uuid"]] += 1
    return found
