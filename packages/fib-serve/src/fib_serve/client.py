"""Client of the service, for programs that wait (`Client`) and for asyncio (`AsyncClient`).

A submission is sent with an idempotency key, so that it can be repeated after a failure of the network without being
made twice. Requests are repeated after such failures and after answers that ask for it (429, 503).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx
from fib_schema import Definition, Solution, Trace
from fib_schema.codec import structure

from .client_protocol import (
    PAGE,
    TIMEOUT_SECONDS,
    Attempt,
    EventParser,
    ProgressEvent,
    ServiceError,
    ServiceUnreachable,
    SubmissionInfo,
    checked,
    headers_of,
    submit_request,
)

__all__ = ["AsyncClient", "Client", "ProgressEvent", "ServiceError", "ServiceUnreachable", "SubmissionInfo"]


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
        self._http = httpx.Client(
            base_url=address, headers=headers_of(token), timeout=TIMEOUT_SECONDS, transport=transport
        )

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
        request = submit_request(
            solution, workload_uuids, priority=priority, force=force, idempotency_key=idempotency_key
        )
        return SubmissionInfo.from_json(self._send(request))

    def get(self, submission: str) -> SubmissionInfo:
        """A submission."""
        return SubmissionInfo.from_json(self._send(Attempt("GET", f"/v1/submissions/{submission}")))

    def cancel(self, submission: str) -> SubmissionInfo:
        """Cancel a submission."""
        return SubmissionInfo.from_json(self._send(Attempt("DELETE", f"/v1/submissions/{submission}")))

    def definition(self, name: str) -> Definition:
        """A definition."""
        return structure(self._send(Attempt("GET", f"/definitions/{name}")), Definition, source=self._address)

    def traces(self, submission: str) -> Iterator[Trace]:
        """The traces of a submission on public workloads. Their logs are output of the solution: do not trust them."""
        cursor: int | None = 0
        while cursor is not None:
            path = f"/v1/submissions/{submission}/traces?limit={PAGE}&cursor={cursor}"
            page = self._send(Attempt("GET", path))
            yield from (structure(item, Trace, source=self._address) for item in page["items"])
            cursor = page["next_cursor"]

    def leaderboard(self, definition: str) -> list[SubmissionInfo]:
        """The best submission of each user, the best first, up to 500."""
        found = self._send(Attempt("GET", f"/v1/leaderboards/{definition}?limit=500"))
        return [SubmissionInfo.from_json(item["submission"]) for item in found["items"]]

    def quota(self) -> Mapping[str, Any]:
        """The user of the token, and how much of its quotas is used."""
        found: Mapping[str, Any] = self._send(Attempt("GET", "/v1/quota"))
        return found

    def events(self, submission: str) -> Iterator[ProgressEvent]:
        """The progress of a submission until its end, across interruptions of the connection."""
        last, attempt = 0, 0
        request = Attempt("GET", f"/v1/submissions/{submission}/events")
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
        parser = EventParser()
        with self._http.stream("GET", path, headers={"Last-Event-ID": str(last)}) as answer:
            if not answer.is_success:
                answer.read()
                checked(answer)
            for line in answer.iter_lines():
                if (event := parser.feed(line)) is not None:
                    yield event

    def wait(self, submission: str) -> SubmissionInfo:
        """Wait for the end of a submission."""
        for _ in self.events(submission):
            pass
        return self.get(submission)

    def _send(self, request: Attempt) -> Any:
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
                return checked(answer)
            attempt += 1

    def _pause(
        self, request: Attempt, attempt: int, answer: httpx.Response | None, error: httpx.TransportError | None
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


class AsyncClient:
    """Client for asyncio; see `Client`.

    Args:
        address: Such as ``http://127.0.0.1:8000``.
        token: As a maintainer gave it to you; None for a service without tokens.
        transport: Sends requests; by default over the network.
    """

    def __init__(
        self, address: str, token: str | None = None, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._address = address
        self._http = httpx.AsyncClient(
            base_url=address, headers=headers_of(token), timeout=TIMEOUT_SECONDS, transport=transport
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def submit(
        self,
        solution: Solution,
        workload_uuids: Sequence[str] | None = None,
        *,
        priority: int = 0,
        force: bool = False,
        idempotency_key: str | None = None,
    ) -> SubmissionInfo:
        """Submit a solution; see `Client.submit`."""
        request = submit_request(
            solution, workload_uuids, priority=priority, force=force, idempotency_key=idempotency_key
        )
        return SubmissionInfo.from_json(await self._send(request))

    async def get(self, submission: str) -> SubmissionInfo:
        """A submission."""
        return SubmissionInfo.from_json(await self._send(Attempt("GET", f"/v1/submissions/{submission}")))

    async def cancel(self, submission: str) -> SubmissionInfo:
        """Cancel a submission."""
        return SubmissionInfo.from_json(await self._send(Attempt("DELETE", f"/v1/submissions/{submission}")))

    async def traces(self, submission: str) -> AsyncIterator[Trace]:
        """The traces of a submission; see `Client.traces`."""
        cursor: int | None = 0
        while cursor is not None:
            path = f"/v1/submissions/{submission}/traces?limit={PAGE}&cursor={cursor}"
            page = await self._send(Attempt("GET", path))
            for item in page["items"]:
                yield structure(item, Trace, source=self._address)
            cursor = page["next_cursor"]

    async def wait(self, submission: str, *, poll_seconds: float = 30.0) -> SubmissionInfo:
        """Wait for the end of a submission.

        Args:
            submission: Its id.
            poll_seconds: How long one request waits for the end.
        """
        while not (found := await self.get(submission)).is_final:
            await self._send(Attempt("GET", f"/tasks/{submission}?timeout={poll_seconds}"))
        return found

    async def _send(self, request: Attempt) -> Any:
        attempt = 0
        while True:
            answer: httpx.Response | None = None
            try:
                answer = await self._http.request(request.method, request.path, **request.options)
            except httpx.TransportError as error:
                if request.pause_seconds(attempt, None) is None:
                    raise ServiceUnreachable(self._address, str(error) or type(error).__name__) from error
            pause = request.pause_seconds(attempt, answer)
            if pause is None:
                assert answer is not None
                return checked(answer)
            await asyncio.sleep(pause)
            attempt += 1
