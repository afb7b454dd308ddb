"""Client of the service.

A submission is sent with an idempotency key, so that it can be repeated after a failure of the network without being
made twice. Requests are repeated after such failures and after answers that ask for it (429, 503).
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import attrs
import httpx
from fib_schema import Definition, FibError, Solution, Trace, to_plain
from fib_schema.codec import structure

_ATTEMPTS = 6
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 30.0
_TIMEOUT_SECONDS = 60.0
_PAGE = 200
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


class Client:
    """Client for programs that wait for each answer.

    Args:
        address: Such as ``http://127.0.0.1:8000``.
        token: As a maintainer gave it to you; None for a service without tokens.
        transport: Sends requests; by default over the network.
        sleep: Waits between attempts.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._address = address
        self._sleep = sleep
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=address, headers=headers, timeout=_TIMEOUT_SECONDS, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def submit(
        self,
        solution: Solution,
        workload_uuids: Sequence[str] | None = None,
        *,
        priority: int = 0,
        force: bool = False,
        idempotency_key: str | None = None,
    ) -> SubmissionInfo:
        """Submit a solution.

        Args:
            solution: Its author becomes the user of the token.
            workload_uuids: Public workloads to run on; None means all. A choice does not rank.
            priority: From -10 to 10, among your own submissions.
            force: Evaluate it although an identical one has a result.
            idempotency_key: Identifies the request; by default a new one.

        Raises:
            ServiceError: The service refuses it.
            ServiceUnreachable: The service does not answer.
        """
        request = _submit_request(
            solution, workload_uuids, priority=priority, force=force, idempotency_key=idempotency_key
        )
        return SubmissionInfo.from_json(self._send(request))

    def get(self, submission: str) -> SubmissionInfo:
        """A submission."""
        return SubmissionInfo.from_json(self._send(_Attempt("GET", f"/v1/submissions/{submission}")))

    def cancel(self, submission: str) -> SubmissionInfo:
        """Cancel a submission."""
        return SubmissionInfo.from_json(self._send(_Attempt("DELETE", f"/v1/submissions/{submission}")))

    def definition(self, name: str) -> Definition:
        """A definition."""
        return structure(self._send(_Attempt("GET", f"/definitions/{name}")), Definition, source=self._address)

    def traces(self, submission: str) -> Iterator[Trace]:
        """The traces of a submission on public workloads. Their logs are output of the solution: do not trust them."""
        cursor: int | None = 0
        while cursor is not None:
            path = f"/v1/submissions/{submission}/traces?limit={_PAGE}&cursor={cursor}"
            page = self._send(_Attempt("GET", path))
            yield from (structure(item, Trace, source=self._address) for item in page["items"])
            cursor = page["next_cursor"]

    def leaderboard(self, definition: str) -> list[SubmissionInfo]:
        """The best submission of each user, the best first, up to 500."""
        found = self._send(_Attempt("GET", f"/v1/leaderboards/{definition}?limit=500"))
        return [SubmissionInfo.from_json(item["submission"]) for item in found["items"]]

    def quota(self) -> Mapping[str, Any]:
        """The user of the token, and how much of its quotas is used."""
        found: Mapping[str, Any] = self._send(_Attempt("GET", "/v1/quota"))
        return found

    def events(self, submission: str) -> Iterator[ProgressEvent]:
        """The progress of a submission until its end, across interruptions of the connection."""
        last, attempt = 0, 0
        request = _Attempt("GET", f"/v1/submissions/{submission}/events")
        while True:
            error = httpx.TransportError("the stream ended before the submission did")
            try:
                for event in self._stream(request.path, last):
                    last, attempt = event.id, 0
                    yield event
                if self.get(submission).is_final:
                    return
            except httpx.TransportError as failure:
                error = failure
            self._pause(request, attempt, None, error)
            attempt += 1

    def _stream(self, path: str, last: int) -> Iterator[ProgressEvent]:
        """The events after one that was received."""
        parser = _EventParser()
        with self._http.stream("GET", path, headers={"Last-Event-ID": str(last)}) as answer:
            if not answer.is_success:
                answer.read()
                _checked(answer)
            for line in answer.iter_lines():
                if (event := parser.feed(line)) is not None:
                    yield event

    def wait(self, submission: str) -> SubmissionInfo:
        """Wait for the end of a submission."""
        for _ in self.events(submission):
            pass
        return self.get(submission)

    def _send(self, request: _Attempt) -> Any:
        attempt = 0
        while True:
            error: httpx.TransportError | None = None
            answer: httpx.Response | None = None
            try:
                answer = self._http.request(request.method, request.path, **request.options)
            except httpx.TransportError as failure:
                error = failure
            if not self._pause(request, attempt, answer, error):
                assert answer is not None
                return _checked(answer)
            attempt += 1

    def _pause(
        self, request: _Attempt, attempt: int, answer: httpx.Response | None, error: httpx.TransportError | None
    ) -> bool:
        """Wait before the next attempt; false if the answer is final.

        Raises:
            ServiceUnreachable: There was no answer, and there is no next attempt.
        """
        pause = request.pause_seconds(attempt, answer)
        if pause is not None:
            self._sleep(pause)
            return True
        if error is not None:
            raise ServiceUnreachable(self._address, str(error) or type(error).__name__) from error
        return False


@attrs.frozen
class _Attempt:
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


def _submit_request(
    solution: Solution,
    workload_uuids: Sequence[str] | None,
    *,
    priority: int,
    force: bool,
    idempotency_key: str | None,
) -> _Attempt:
    """The request that submits a solution."""
    body = {
        "solution": to_plain(solution),
        "workload_uuids": None if workload_uuids is None else list(workload_uuids),
        "priority": priority,
        "force": force,
    }
    headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16), "Content-Type": "application/json"}
    return _Attempt("POST", "/v1/submissions", {"content": json.dumps(body), "headers": headers})


def _checked(answer: httpx.Response) -> Any:
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


class _EventParser:
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
