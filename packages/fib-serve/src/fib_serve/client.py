"""Client of the service.

Requests are repeated after failures of the network and after answers that ask for it (429, 503): the service answers a
submission that it has accepted already with that one.
"""

from __future__ import annotations

import http.client
import itertools
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Self
from urllib.parse import quote

import attrs
from fib_schema import Definition, FibError, Solution, Trace, to_plain
from fib_schema.codec import structure

_ATTEMPTS = 6
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 30.0
_TIMEOUT_SECONDS = 60.0
_WAIT_SECONDS = 10  # without a change
_REPEATED = frozenset({429, 503})
_FINAL = frozenset({"completed", "failed"})


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
    """``queued``, ``running``, ``completed`` or ``failed``."""
    verdict: str | None
    """The most serious status of all workloads, once it is completed."""
    is_ranked: bool
    score: float | None
    passed: int
    evaluated: int
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


class Client:
    """Client for programs that wait for each answer.

    Args:
        address: Such as ``http://127.0.0.1:8000``.
        token: As a maintainer gave it to you; None for a service without tokens.
        sleep: Waits between attempts.
    """

    def __init__(self, address: str, token: str | None = None, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._address = address
        self._sleep = sleep
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = urllib.request.build_opener(_NoRedirects)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the client."""
        self._http.close()

    def submit(
        self, solution: Solution, workload_uuids: Sequence[str] | None = None, *, force: bool = False
    ) -> SubmissionInfo:
        """Submit a solution.

        Args:
            solution: Its author becomes the user of the token.
            workload_uuids: Public workloads to run on; None means all. A choice does not rank.
            force: Evaluate it although an identical one has a result.

        Raises:
            ServiceError: The service refuses it.
            ServiceUnreachable: The service does not answer.
        """
        uuids = None if workload_uuids is None else list(workload_uuids)
        body = {"solution": to_plain(solution), "workload_uuids": uuids, "force": force}
        return SubmissionInfo.from_json(self._send("POST", "/v1/submissions", body))

    def get(self, submission: str) -> SubmissionInfo:
        """A submission."""
        return SubmissionInfo.from_json(self._send("GET", f"/v1/submissions/{submission}"))

    def follow(self, submission: str) -> Iterator[SubmissionInfo]:
        """A submission as it is now, and after each change that is seen or 10 s, until its end."""
        found = self.get(submission)
        yield found
        while not found.is_final:
            path = f"/v1/submissions/{submission}?timeout={_WAIT_SECONDS}"
            found = SubmissionInfo.from_json(self._send("GET", path))
            yield found

    def wait(self, submission: str) -> SubmissionInfo:
        """Wait for the end of a submission."""
        *_, last = self.follow(submission)
        return last

    def definitions(self) -> list[Mapping[str, Any]]:
        """The names and descriptions of all definitions."""
        found: list[Mapping[str, Any]] = self._send("GET", "/definitions")
        return found

    def definition(self, name: str) -> Definition:
        """A definition."""
        return structure(self._send("GET", f"/definitions/{quote(name, safe='')}"), Definition, source=self._address)

    def traces(self, submission: str) -> Iterator[Trace]:
        """The traces of a submission on public workloads. Their logs are output of the solution: do not trust them."""
        cursor: int | None = 0
        while cursor is not None:
            page = self._send("GET", f"/v1/submissions/{submission}/traces?cursor={cursor}")
            yield from (structure(item, Trace, source=self._address) for item in page["items"])
            cursor = page["next_cursor"]

    def leaderboard(self, definition: str) -> list[SubmissionInfo]:
        """The best submission of each user, the best first, up to 500."""
        found = self._send("GET", f"/v1/leaderboards/{quote(definition, safe='')}")
        return [SubmissionInfo.from_json(item["submission"]) for item in found["items"]]

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The content of the answer to a request, which is repeated after failures."""
        headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address.rstrip("/") + path, content, headers, method=method)
        for attempt in itertools.count():
            pause = _FIRST_PAUSE_SECONDS * 2**attempt
            try:
                with self._http.open(request, timeout=_TIMEOUT_SECONDS) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code not in _REPEATED or attempt == _ATTEMPTS:
                    _raise(error)
                given = error.headers.get("retry-after", "")
                pause = float(given) if given.isdecimal() else pause
            except (OSError, http.client.HTTPException) as error:
                if attempt == _ATTEMPTS:
                    problem = getattr(error, "reason", error)
                    raise ServiceUnreachable(self._address, str(problem) or type(error).__name__) from error
            self._sleep(min(pause, _LONGEST_PAUSE_SECONDS))
        raise AssertionError("the loop has no end")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes redirects as errors: the token is for one address only."""

    def redirect_request(self, *_: Any) -> None:
        """No request."""


def _raise(error: urllib.error.HTTPError) -> NoReturn:
    """Raise the problem that an answer describes."""
    text = error.read()
    try:
        problem = json.loads(text)
        raise ServiceError(error.code, str(problem["title"]), str(problem["detail"])) from None
    except (ValueError, KeyError, TypeError):
        raise ServiceError(error.code, str(error.reason), text.decode(errors="replace")[:500]) from None
