"""Protocol of the client: its values, requests and their repetition, errors, and the parser of progress."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import httpx
from fib_schema import FibError, Solution, to_plain

_ATTEMPTS = 5
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 30.0
TIMEOUT_SECONDS = 60.0
PAGE = 200
_REPEATED = frozenset({429, 503})
_FINAL = frozenset({"completed", "failed", "cancelled"})


@attrs.frozen
class ServiceError(FibError, RuntimeError):
    """An answer of the service that reports an error."""

    status: int
    title: str
    detail: str

    def __str__(self) -> str:
        return f"{self.status} {self.title}: {self.detail}"


@attrs.frozen
class ServiceUnreachable(FibError, ConnectionError):
    """The service does not answer."""

    address: str
    problem: str

    def __str__(self) -> str:
        return f"{self.address} does not answer: {self.problem}; check the address and that the service runs"


@attrs.frozen
class SubmissionInfo:
    """A submission as the service reports it."""

    id: str
    user: str
    definition: str
    solution: str
    state: str
    """``queued``, ``running``, ``completed``, ``failed`` or ``cancelled``."""
    verdict: str | None
    """The most serious status of all workloads, once it is completed."""
    is_ranked: bool
    score: float | None
    passed: int
    planned: int
    summary: Mapping[str, Any] | None
    rejection: str | None
    error: str | None
    fields: Mapping[str, Any] = attrs.field(repr=False)
    """Everything that the service reports."""

    @property
    def is_final(self) -> bool:
        """Whether it does not change any more."""
        return self.state in _FINAL

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> SubmissionInfo:
        """The value of an answer."""
        names = [field.name for field in attrs.fields(cls) if field.name != "fields"]
        return cls(**{name: plain[name] for name in names}, fields=plain)


@attrs.frozen
class ProgressEvent:
    """One step of a submission."""

    id: int
    kind: str
    """``state``, ``progress`` or ``rejection``."""
    data: Mapping[str, Any]


@attrs.frozen
class Attempt:
    """A request, and its repetition after failures."""

    method: str
    path: str
    options: Mapping[str, Any] = attrs.field(factory=dict)

    def pause_seconds(self, attempt: int, answer: httpx.Response | None) -> float | None:
        """The pause before the next attempt; None if the answer is final."""
        if answer is not None and answer.status_code not in _REPEATED:
            return None
        if attempt >= _ATTEMPTS or (answer is None and not self._is_repeatable):
            return None
        given = "" if answer is None else answer.headers.get("retry-after", "")
        pause = float(given) if given.isdecimal() else _FIRST_PAUSE_SECONDS * 2**attempt
        return min(pause, _LONGEST_PAUSE_SECONDS)

    @property
    def _is_repeatable(self) -> bool:
        return self.method != "POST" or "Idempotency-Key" in self.options.get("headers", {})


def submit_request(
    solution: Solution,
    workload_uuids: Sequence[str] | None,
    *,
    priority: int,
    force: bool,
    idempotency_key: str | None,
) -> Attempt:
    """The request that submits a solution."""
    body = {
        "solution": to_plain(solution),
        "workload_uuids": None if workload_uuids is None else list(workload_uuids),
        "priority": priority,
        "force": force,
    }
    headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16), "Content-Type": "application/json"}
    return Attempt("POST", "/v1/submissions", {"content": json.dumps(body), "headers": headers})


def checked(answer: httpx.Response) -> Any:
    """The content of an answer.

    Raises:
        ServiceError: It reports an error.
    """
    if answer.is_success:
        return answer.json() if answer.content else None
    try:
        problem = answer.json()
        raise ServiceError(answer.status_code, str(problem["title"]), str(problem["detail"]))
    except (ValueError, KeyError, TypeError):
        raise ServiceError(answer.status_code, answer.reason_phrase, answer.text[:500]) from None


class EventParser:
    """Parses lines of server-sent events."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def feed(self, line: str) -> ProgressEvent | None:
        """The event that a line completes."""
        name, _, value = line.partition(": ")
        if line and name in ("id", "event", "data"):
            self._fields[name] = value
            return None
        if line or "data" not in self._fields:
            return None
        fields, self._fields = self._fields, {}
        return ProgressEvent(int(fields["id"]), fields["event"], json.loads(fields["data"]))


def headers_of(token: str | None) -> dict[str, str]:
    """The headers of all requests."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}
