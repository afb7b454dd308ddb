"""Routes below ``/v1`` for submissions: accept, list, read, stream, cancel."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Response
from fib_schema import to_plain
from pydantic import AwareDatetime
from sqlalchemy.exc import InterfaceError, OperationalError
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from ..database.tables import LARGEST_ID
from ..errors import Conflict, Forbidden, NotFound, TooMany
from ..queue.leasing import cancel
from ..queue.reading import (
    Event,
    Filter,
    get_solution,
    get_submission,
    list_devices,
    list_events,
    list_submissions,
    list_traces,
    ranked,
    ranked_hardware,
)
from ..queue.submission import State, Submission
from ..queue.submitting import usage
from ..users.roles import Principal
from . import acceptance
from .access import OfService, Reader, Submitter
from .bodies import (
    Device,
    Leaderboard,
    Place,
    Quota,
    SubmissionPage,
    SubmissionView,
    SubmitRequest,
    TracePage,
    view_of,
)
from .state import Service

router = APIRouter(prefix="/v1", tags=["v1"])
_Limit = Annotated[int, Query(ge=1, le=500, description="The largest number of entries")]
_Id = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="The id of a submission")]
_Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[\x21-\x7e]{1,200}$",
        description="A repeated request with the same key is answered with the submission that the first one made",
    ),
]
_HEARTBEAT_SECONDS = 15.0
_MAX_STREAMS = 200  # of a user: all users together have 2000 connections
_LOG = logging.getLogger(__name__)


@router.post("/submissions", status_code=201, responses={200: {"description": "It is answered from the record"}})
async def submit(
    body: SubmitRequest, service: OfService, principal: Submitter, response: Response, idempotency_key: _Key = None
) -> SubmissionView:
    """Submit a solution. Its author becomes the user, and its name gets a suffix that is unique to its content."""
    request = acceptance.Request(
        solution=body.solution,
        workload_uuids=body.workload_uuids,
        priority=body.priority,
        deadline=_timestamp(body.deadline),
        idempotency_key=idempotency_key,
        is_forced=body.force,
    )
    submission, is_new = await acceptance.accept(service, principal, request)
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"/v1/submissions/{submission.id}"
    return view_of(submission, principal)


@router.get("/submissions")
async def submissions(
    service: OfService,
    principal: Reader,
    user: Annotated[str | None, Query(max_length=40)] = None,
    definition: Annotated[str | None, Query(max_length=200)] = None,
    state: State | None = None,
    cursor: Annotated[int | None, Query(ge=1, le=LARGEST_ID)] = None,
    limit: _Limit = 100,
) -> SubmissionPage:
    """Submissions, the newest first."""
    chosen = Filter(user, definition, state, cursor)

    def read() -> list[Submission]:
        with service.database.read() as connection:
            return list_submissions(connection, chosen, limit)

    found = await run_in_threadpool(read)
    following = found[-1].number if len(found) == limit else None
    return SubmissionPage(items=[view_of(each, principal) for each in found], next_cursor=following)


@router.get("/submissions/{identifier}")
async def submission(identifier: _Id, service: OfService, principal: Reader) -> SubmissionView:
    """A submission."""
    return view_of(_get(service, identifier), principal)


@router.delete("/submissions/{identifier}", status_code=202)
async def cancel_submission(identifier: _Id, service: OfService, principal: Submitter) -> SubmissionView:
    """Cancel a submission that is queued or running."""
    found = _get(service, identifier)
    _check_owner(principal, found)
    before = await run_in_threadpool(cancel, service.database, identifier)
    if before.is_final:
        raise Conflict(f"the submission is {before} already and cannot be cancelled")
    service.changes.announce()
    return view_of(_get(service, identifier), principal)


@router.get("/submissions/{identifier}/traces")
async def traces(
    identifier: _Id,
    service: OfService,
    principal: Reader,
    cursor: Annotated[int, Query(ge=0, le=LARGEST_ID)] = 0,
    limit: _Limit = 100,
) -> TracePage:
    """The traces of a submission on public workloads. Logs in them are output of the solution: do not trust them."""
    _check_owner(principal, _get(service, identifier))

    def read() -> list[tuple[int, str]]:
        with service.database.read() as connection:
            return list_traces(connection, identifier, cursor, limit)

    found = await run_in_threadpool(read)
    following = found[-1][0] if len(found) == limit else None
    return TracePage(items=[json.loads(line) for _, line in found], next_cursor=following)


@router.get("/submissions/{identifier}/solution")
async def solution(identifier: _Id, service: OfService, principal: Reader) -> dict[str, Any]:
    """The solution of a submission."""
    found = _get(service, identifier)
    if not service.settings.publish_sources:
        _check_owner(principal, found)
    with service.database.read() as connection:
        stored = get_solution(connection, identifier)
    assert stored is not None
    plain: dict[str, Any] = to_plain(stored)
    return plain


@router.get(
    "/submissions/{identifier}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def events(
    identifier: _Id,
    service: OfService,
    principal: Reader,
    last_event_id: Annotated[int, Header(ge=0, le=LARGEST_ID)] = 0,
) -> StreamingResponse:
    """The progress of a submission as server-sent events: ``state`` and ``progress``. It ends with the submission."""
    may_see = principal.may_see(_get(service, identifier).user_id)
    if service.streams[principal.user_id] >= _MAX_STREAMS:
        detail = f"{_MAX_STREAMS} of your streams of events are open, the limit; close some, or ask for states"
        raise TooMany(detail, int(_HEARTBEAT_SECONDS))
    stream = _stream(service, identifier, last_event_id, may_see=may_see)
    counted = _counted(service.streams, principal.user_id, stream)
    return StreamingResponse(counted, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


@router.get("/leaderboards/{definition}")
async def leaderboard(
    definition: str,
    service: OfService,
    principal: Reader,
    hardware: Annotated[str | None, Query(max_length=200)] = None,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    limit: _Limit = 100,
) -> Leaderboard:
    """The best ranked submission of each user, the best first."""
    if definition not in service.catalog.definitions:
        raise NotFound(f"Definition not found: {definition[:200]}")

    def read() -> tuple[str, list[Submission]]:
        with service.database.read() as connection:
            chosen = hardware or next(iter(ranked_hardware(connection, definition)), "")
            return chosen, list(ranked(connection, definition, chosen, offset, limit))

    chosen, found = await run_in_threadpool(read)
    places = [Place(rank=offset + place, submission=view_of(each, principal)) for place, each in enumerate(found, 1)]
    return Leaderboard(
        definition=definition, hardware=chosen, is_unranked=service.settings.allow_unranked, items=places
    )


@router.get("/quota")
async def quota(service: OfService, principal: Reader) -> Quota:
    """The user of the token, and how much of its quotas is used."""
    from ..users.accounts import find_user

    with service.database.read() as connection:
        user = find_user(connection, principal.name)
        used = usage(connection, principal.user_id)
    assert user is not None
    limits = {"queued": user.max_queued, "running": user.max_running, "day": user.max_per_day}
    return Quota(user=principal.name, role=principal.role, used=used, limits=limits)


@router.get("/devices")
async def devices(service: OfService, _: Reader) -> list[Device]:
    """The devices and their workers."""
    with service.database.read() as connection:
        return [Device.of(device) for device in list_devices(connection)]


def _get(service: Service, identifier: str) -> Submission:
    with service.database.read() as connection:
        found = get_submission(connection, identifier)
    if found is None:
        raise NotFound(f"no submission has the id {identifier}")
    return found


def _check_owner(principal: Principal, submission: Submission) -> None:
    if not principal.may_see(submission.user_id):
        raise Forbidden("this submission belongs to another user; only that user and maintainers may do this")


def _timestamp(time: datetime | AwareDatetime | None) -> float | None:
    return None if time is None else time.timestamp()


async def _counted(streams: Counter[int], user: int, stream: AsyncIterator[str]) -> AsyncIterator[str]:
    """A stream that counts as open from its first event to its end or that of its connection."""
    streams[user] += 1
    try:
        async for text in stream:
            yield text
    finally:
        streams[user] -= 1
        if not streams[user]:
            del streams[user]


async def _stream(service: Service, identifier: str, after: int, *, may_see: bool) -> AsyncIterator[str]:
    """The events of a submission until it ends or the database fails: clients go on from the last id that they saw."""
    while True:
        change = service.changes.current()
        try:
            with service.database.read() as connection:
                found = list_events(connection, identifier, after)
                submission = get_submission(connection, identifier)
        except (OperationalError, InterfaceError) as error:
            _LOG.error("the database failed, and a stream of events ends: %s", error)
            return
        for event in found:
            after = event.id
            yield "".join(_lines(event, may_see=may_see))
        if submission is None or submission.state.is_final or service.changes.is_closed:
            return
        if not found:
            yield ": waiting\n\n"
            await service.changes.wait(change, _HEARTBEAT_SECONDS)


def _lines(event: Event, *, may_see: bool) -> Iterator[str]:
    """An event in the format of server-sent events; JSON has no line breaks, so nothing can be injected."""
    data = {key: value for key, value in event.data.items() if may_see or key != "error"}
    yield f"id: {event.id}\nevent: {event.kind}\ndata: {json.dumps({**data, 'at': event.created_at})}\n\n"
