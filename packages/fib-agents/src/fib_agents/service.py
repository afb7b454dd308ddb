"""Submission to an evaluation service over HTTP: ``POST /evaluate``, then ``GET /tasks/ID`` until it is done."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import attrs
from fib_schema import FibError, Solution, to_plain
from fib_schema.display import escape_line

from .marked_text import fenced
from .results import Result, untrusted

TOKEN_VARIABLE = "FIB_SERVE_TOKEN"
"""Holds the token of the service, which is sent as ``Authorization: Bearer TOKEN``."""
_POLL_SECONDS = 30
_MAX_BYTES = 64 << 20


@attrs.frozen
class ServiceFailed(FibError, ConnectionError):
    """The service cannot be reached, refuses a request, or answers something else than the protocol says."""

    url: str
    problem: str

    def __str__(self) -> str:
        return f"service {self.url}: {self.problem}"


@attrs.frozen
class TaskResult(Result):
    """The results of a service for a solution. They are as trustworthy as the service."""

    task: str
    solution: str
    status: str
    results: tuple[tuple[str, str, float | None], ...]
    """Workload, status and latency in ms."""
    error: str = untrusted(default="")

    def lines(self) -> Iterator[str]:
        """A line for each workload."""
        yield escape_line(f"{self.solution}: task {self.task} {self.status}")
        for workload, status, latency_ms in self.results:
            yield escape_line(f"- {workload}: {status}" + ("" if latency_ms is None else f" {latency_ms:.5g} ms"))
        if self.error:
            yield from fenced(self.error, "error of the service")


def submit_to_service(url: str, solution: Solution, *, timeout_seconds: float = 600.0) -> TaskResult:
    """Have a service evaluate a solution on all workloads, and wait for the result.

    Args:
        url: Of the service, such as http://127.0.0.1:8000.
        solution: The solution; the service makes its name unique.
        timeout_seconds: How long to wait for the result.

    Raises:
        ServiceFailed: The service cannot be reached, refuses the solution, or does not finish in time.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise ServiceFailed(url, "write a URL that begins with http:// or https://")
    begin = time.monotonic()
    made = _request(url, "/evaluate", {"solution": to_plain(solution), "workload_uuids": None})
    task, name = made.get("task_id"), made.get("normalized_solution_name", solution.name)
    if not isinstance(task, str):
        raise ServiceFailed(url, "its answer to POST /evaluate has no task_id")
    while (left := timeout_seconds - (time.monotonic() - begin)) > 0:
        wait = max(1, int(min(left, _POLL_SECONDS)))
        answer = _request(url, f"/tasks/{quote(task, safe='')}?timeout={wait}", None)
        if answer.get("status") in ("completed", "failed"):
            return _result(task, str(name), answer)
    raise ServiceFailed(url, f"task {task} is not done after {timeout_seconds:.0f} s; GET /tasks/{task} shows it later")


def _request(url: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if token := os.environ.get(TOKEN_VARIABLE):
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url.rstrip("/") + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=2 * _POLL_SECONDS) as response:
            answer = json.loads(response.read(_MAX_BYTES))
    except urllib.error.HTTPError as error:
        problem = f"{path.partition('?')[0]}: status {error.code}: {error.read(500).decode('utf-8', 'replace')}"
        raise ServiceFailed(url, problem) from error
    except (OSError, ValueError) as error:
        if isinstance(error, urllib.error.URLError) and isinstance(error.reason, OSError):
            problem = f"does not answer: {error.reason.strerror or error.reason}; check the address and that it runs"
            raise ServiceFailed(url, problem) from error
        raise ServiceFailed(url, f"{path.partition('?')[0]}: {error}") from error
    if not isinstance(answer, dict):
        raise ServiceFailed(url, f"{path.partition('?')[0]}: the answer is not a JSON object")
    return answer


def _result(task: str, name: str, answer: dict[str, Any]) -> TaskResult:
    traces = answer.get("traces")
    found = []
    for trace in traces if isinstance(traces, list) else ():
        evaluation = _dict(_dict(trace).get("evaluation"))
        latency = _dict(evaluation.get("performance")).get("latency_ms")
        uuid = str(_dict(_dict(trace).get("workload")).get("uuid"))
        latency_ms = float(latency) if isinstance(latency, int | float) else None
        found.append((uuid, str(evaluation.get("status")), latency_ms))
    return TaskResult(task, name, str(answer["status"]), tuple(found), str(answer.get("error") or ""))


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
