"""HTTP API: the routes that flashinfer-bench documents, unchanged, and those below ``/v1``, which can do more."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, TypeAlias, TypeVar

import attrs
from fastapi import APIRouter, Path, Query, Request
from fib_schema import Definition, Solution, to_plain
from fib_schema.codec import structure
from fib_schema.display import counted
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, RedirectResponse, Response

from .. import __version__
from ..contest import Contest
from ..database import LARGEST_ID, iso_time
from ..errors import Conflict, Forbidden, NotFound, Refused, TooMany, Unavailable, Unprocessable
from ..submissions import (
    Filter,
    NewSubmission,
    State,
    Submission,
    cancel,
    count_by_state,
    get_solution,
    get_submission,
    list_submissions,
    list_traces,
    ranked,
    ranked_hardware,
    submit,
    usage,
)
from ..users import Principal, Role, find_user
from .access import Maintainer, OfContest, Reader, Submitter, require

router = APIRouter()
_MAX_NAME_CHARACTERS = 100
_MAX_SOURCES = 200
_LONGEST_WAIT = 3600.0
_MAX_TASKS = 1000
_MAX_TRACES = 100_000
_MAX_WAITS = 200  # of a user: all users together have 2000 connections
_STATUSES = {
    State.QUEUED: "pending",
    State.RUNNING: "running",
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "failed",
}
_PRIVATE_FIELDS = frozenset({"number", "user_id", "solution_name", "content_hash", "workloads"})
_TIMES = ("created_at", "started_at", "finished_at")
_SOLUTION: JsonDict = {
    "name": "my_rmsnorm",
    "definition": "rmsnorm_h1024",
    "author": "ignored: the user of the token",
    "spec": {
        "language": "python",
        "target_hardware": ["cpu"],
        "entry_point": "kernel.py::run",
        "destination_passing_style": False,
    },
    "sources": [{"path": "kernel.py", "content": "def run(x, weight):\n    ...\n"}],
}
_Result = TypeVar("_Result")
_Name: TypeAlias = Annotated[str, Field(max_length=1000)]
"""An identifier in a request. The bound also refuses halves of surrogate pairs, which no answer can quote."""
_Workloads: TypeAlias = Annotated[list[_Name], Field(max_length=10_000)]
_Seconds: TypeAlias = Annotated[float, Query(ge=0, le=_LONGEST_WAIT)]
_Limit = Annotated[int, Query(ge=1, le=500, description="The largest number of entries")]
_Id = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="The id of a submission")]


class EvaluateRequest(BaseModel):
    """A solution, and the workloads to run it on; without them, on all."""

    solution: dict[str, Any]
    workload_uuids: _Workloads | None = None


class SubmitRequest(BaseModel):
    """A solution to evaluate."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"solution": _SOLUTION}]})

    solution: dict[str, Any]
    """In the format of flashinfer-trace."""
    workload_uuids: _Workloads | None = None
    """Public workloads to run on; null means all. A choice does not rank."""
    force: bool = False
    """Evaluate it although an identical one has a result."""


class BatchRequest(BaseModel):
    """Tasks to wait for."""

    task_ids: Annotated[list[_Name], Field(max_length=_MAX_TASKS)]
    timeout: Annotated[float, Field(ge=0, le=_LONGEST_WAIT)] = 0.0


# -- acceptance of solutions -------------------------------------------------------------------------


async def _accept(contest: Contest, principal: Principal, body: SubmitRequest) -> tuple[Submission, bool]:
    """Accept a request, see `submissions.submit`.

    Raises:
        Refused: It cannot be accepted.
        InvalidRecord: The solution is not valid.
    """
    if contest.is_draining:
        raise Unavailable("the service is stopping and takes no submissions; try again later")
    solution = _owned(contest, principal, _parse(body.solution))
    workloads = _chosen_workloads(contest, solution.definition, body.workload_uuids)
    total = len(contest.public.workloads[solution.definition])
    new = NewSubmission(
        user_id=principal.user_id,
        solution=solution,
        workloads=workloads,
        planned=total if workloads is None else len(workloads),
        is_forced=body.force,
    )
    present = {(device.hardware, device.harness) for device in contest.devices.in_use()}
    submission, is_new = await run_in_threadpool(submit, contest.database, new, present)
    if is_new:
        contest.changes.announce()
    return submission, is_new


def _parse(plain: Mapping[str, Any]) -> Solution:
    solution = structure(dict(plain), Solution, source="the request")
    try:
        json.dumps(to_plain(solution), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:  # no answer could contain it
        half = f"\\u{ord(error.object[error.start]):x}"
        raise Unprocessable(f"solution: a text has {half}, half of a surrogate pair; send valid Unicode") from error
    if len(solution.name) > _MAX_NAME_CHARACTERS:
        raise Unprocessable(f"solution.name: {len(solution.name)} characters, at most {_MAX_NAME_CHARACTERS}")
    if len(solution.sources) > _MAX_SOURCES:
        raise Unprocessable(f"solution.sources: {counted(len(solution.sources), 'file')}, at most {_MAX_SOURCES}")
    return solution


def _owned(contest: Contest, principal: Principal, solution: Solution) -> Solution:
    """The solution with its author and its unique name."""
    owned = attrs.evolve(solution, author=principal.name).with_unique_name()
    if owned.definition not in contest.public.definitions:
        raise Refused(f"Definition not found: {owned.definition}")  # with the documented status
    if owned.name in contest.public.reserved_names and not _is_own(contest, principal, owned):
        raise Unprocessable(f"solution.name: the data set has a solution {owned.name!r}; choose another name")
    return owned


def _is_own(contest: Contest, principal: Principal, solution: Solution) -> bool:
    """Whether an earlier submission of this user has put the solution into the data set."""
    definition = contest.public.definitions[solution.definition]
    return contest.public.solution_file(definition, attrs.evolve(solution, author=principal.name)).exists()


def _chosen_workloads(contest: Contest, definition: str, uuids: list[str] | None) -> tuple[str, ...] | None:
    known = {workload.uuid for workload in contest.public.workloads[definition]}
    if not known:
        raise Unprocessable(f"definition {definition!r} has no workloads")
    if uuids is None:
        return None
    if not uuids:
        raise Unprocessable("workload_uuids: is empty; leave it out to run all workloads")
    unknown = [uuid for uuid in uuids if uuid not in known]
    if unknown:
        raise NotFound(f"Workload not found: {unknown[0][:200]}")
    return tuple(dict.fromkeys(uuids))


def view_of(submission: Submission, principal: Principal | None) -> dict[str, Any]:
    """The parts of a submission that a user may see: texts of the solution are for its owner and for maintainers."""
    fields = {name: value for name, value in attrs.asdict(submission).items() if name not in _PRIVATE_FIELDS}
    fields |= {"solution": submission.solution_name, **{name: iso_time(fields[name]) for name in _TIMES}}
    if principal is None or not principal.may_see(submission.user_id):
        fields["error"] = None
        summary = fields["summary"]
        if summary is not None and summary.get("public"):
            public = {key: value for key, value in summary["public"].items() if key != "problem"}
            fields["summary"] = {**summary, "public": public}
    return fields


# -- the documented routes ---------------------------------------------------------------------------


@router.get("/", response_model=None)
async def index(request: Request) -> Response:
    """The name, the version and all paths; a browser is sent to the leaderboards."""
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse("/leaderboard", 303)
    await require(Role.READER)(request)
    paths = request.app.openapi()["paths"]
    endpoints = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    return JSONResponse({"name": "fib-serve", "version": __version__, "docs": "/openapi.json", "endpoints": endpoints})


@router.get("/health")
async def health(contest: OfContest) -> dict[str, Any]:
    """Whether the service answers, its workers, and the number of queued submissions; needs no token."""
    with contest.database.read() as connection:
        counts = count_by_state(connection)
    workers = [{"device": device.name, "healthy": device.problem is None} for device in contest.devices.all()]
    return {"status": "ok", "workers": workers, "queue_size": counts[State.QUEUED]}


@router.get("/ready")
async def ready(contest: OfContest) -> dict[str, str]:
    """Whether the service accepts submissions and a device is there to evaluate them; needs no token."""
    if contest.is_draining:
        raise Unavailable("the service is stopping")
    if not contest.devices.in_use():
        raise Unavailable("no device worker is running")
    return {"status": "ready"}


@router.get("/definitions")
async def definitions(contest: OfContest, _: Reader) -> list[dict[str, str | None]]:
    """The names and descriptions of all definitions."""
    return [{"name": name, "description": item.description} for name, item in contest.public.definitions.items()]


@router.get("/definitions/{name}")
async def definition(name: str, contest: OfContest, _: Reader) -> dict[str, Any]:
    """A definition."""
    plain: dict[str, Any] = to_plain(_definition(contest, name))
    return plain


@router.get("/definitions/{name}/workloads")
async def workloads(name: str, contest: OfContest, _: Reader) -> list[dict[str, Any]]:
    """The public workloads of a definition."""
    _definition(contest, name)
    return [to_plain(workload) for workload in contest.public.workloads[name]]


@router.get("/workloads/{uuid}")
async def workload(uuid: str, contest: OfContest, _: Reader) -> dict[str, Any]:
    """A public workload."""
    found = contest.public.find_workload(uuid)
    if found is None:
        raise NotFound(f"Workload not found: {uuid[:200]}")
    plain: dict[str, Any] = to_plain(found)
    return plain


@router.post("/evaluate")
async def evaluate(
    body: EvaluateRequest, contest: OfContest, principal: Submitter, force: bool = False
) -> dict[str, str]:
    """Accept a solution for evaluation; `force` evaluates it again although an identical one has a result."""
    request = SubmitRequest(solution=body.solution, workload_uuids=body.workload_uuids, force=force)
    submission, _ = await _accept(contest, principal, request)
    return {"task_id": submission.id, "normalized_solution_name": submission.solution_name}


@router.get("/tasks/{task_id}")
async def task(task_id: str, contest: OfContest, principal: Reader, timeout: _Seconds = 0.0) -> dict[str, Any]:
    """A task; waits at most `timeout` seconds for its end."""
    (found,) = await _tasks(contest, principal, [task_id], timeout)
    return found


@router.post("/tasks/batch")
async def tasks(body: BatchRequest, contest: OfContest, principal: Reader) -> list[dict[str, Any]]:
    """Several tasks in the same order; waits at most `timeout` seconds for the end of all."""
    return await _tasks(contest, principal, body.task_ids, body.timeout)


@router.post("/shutdown")
async def shutdown(contest: OfContest, _: Maintainer) -> dict[str, str]:
    """End the contest, after the running evaluations."""
    contest.is_draining = True
    contest.stop()
    return {"status": "shutting down"}


def _definition(contest: Contest, name: str) -> Definition:
    found = contest.public.definitions.get(name)
    if found is None:
        raise NotFound(f"Definition not found: {name[:200]}")
    return found


async def _wait(
    contest: Contest,
    principal: Principal,
    identifiers: list[str],
    seconds: float,
    is_enough: Callable[[list[Submission]], bool],
) -> list[Submission]:
    """The submissions with these ids, at the latest after so many seconds, before if that is enough."""
    deadline = time.monotonic() + seconds
    with _counted_wait(contest.waits, principal.user_id, seconds):
        while True:
            change = contest.changes.current()
            found = await _read(contest, lambda connection: [_find(connection, each) for each in identifiers])
            left = deadline - time.monotonic()
            if left <= 0 or contest.changes.is_closed or is_enough(found):
                return found
            await contest.changes.wait(change, left)


@contextmanager
def _counted_wait(waits: Counter[int], user: int, seconds: float) -> Iterator[None]:
    """Count a request that waits.

    Raises:
        TooMany: As many of the user wait already as may.
    """
    if seconds == 0:
        yield
        return
    if waits[user] >= _MAX_WAITS:
        raise TooMany(f"{_MAX_WAITS} of your requests wait for submissions, the limit; ask without `timeout`", 10)
    waits[user] += 1
    try:
        yield
    finally:
        waits[user] -= 1
        if not waits[user]:
            del waits[user]


async def _tasks(
    contest: Contest, principal: Principal, identifiers: list[str], seconds: float
) -> list[dict[str, Any]]:
    """Tasks, which have ended or are not waited for any longer."""
    found = await _wait(contest, principal, identifiers, seconds, _are_final)
    return await _read(contest, lambda connection: [_task(connection, principal, each) for each in found])


def _are_final(found: list[Submission]) -> bool:
    return all(each.state.is_final for each in found)


def _find(connection: Connection, identifier: str) -> Submission:
    found = get_submission(connection, identifier)
    if found is None:
        raise NotFound(f"no submission has the id {identifier[:200]!r}")
    return found


def _task(connection: Connection, principal: Principal, submission: Submission) -> dict[str, Any]:
    """A task with the traces that it has so far; a user that may not see traces gets none."""
    may_see = principal.may_see(submission.user_id)
    lines = list_traces(connection, submission.id, 0, _MAX_TRACES) if may_see else []
    return {
        "task_id": submission.id,
        "status": _STATUSES[submission.state],
        "definition": submission.definition,
        "solution": submission.solution_name,
        "traces": [json.loads(line) for _, line in lines],
        "error": submission.error if may_see else None,
    }


# -- the routes below /v1 ----------------------------------------------------------------------------


@router.post("/v1/submissions", status_code=201, responses={200: {"description": "It is answered from the record"}})
async def submit_solution(body: SubmitRequest, contest: OfContest, principal: Submitter) -> JSONResponse:
    """Submit a solution. Its author becomes the user, and its name gets a suffix that is unique to its content."""
    submission, is_new = await _accept(contest, principal, body)
    headers = {"Location": f"/v1/submissions/{submission.id}"}
    return JSONResponse(view_of(submission, principal), 201 if is_new else 200, headers)


@router.get("/v1/submissions")
async def submissions(
    contest: OfContest,
    principal: Reader,
    user: Annotated[str | None, Query(max_length=40)] = None,
    definition: Annotated[str | None, Query(max_length=200)] = None,
    state: State | None = None,
    cursor: Annotated[int | None, Query(ge=1, le=LARGEST_ID)] = None,
    limit: _Limit = 100,
) -> dict[str, Any]:
    """Submissions, the newest first; `next_cursor` is null on the last page."""
    chosen = Filter(user, definition, state, cursor)
    found = await _read(contest, lambda connection: list_submissions(connection, chosen, limit))
    following = found[-1].number if len(found) == limit else None
    return {"items": [view_of(each, principal) for each in found], "next_cursor": following}


@router.get("/v1/submissions/{identifier}")
async def submission(identifier: _Id, contest: OfContest, principal: Reader, timeout: _Seconds = 0.0) -> dict[str, Any]:
    """A submission; waits at most `timeout` seconds for a change of its state or of the number of results."""
    before = _get(contest, identifier)

    def is_changed(found: list[Submission]) -> bool:
        return found[0].state.is_final or found[0] != before

    (found,) = await _wait(contest, principal, [identifier], timeout, is_changed)
    return view_of(found, principal)


@router.delete("/v1/submissions/{identifier}", status_code=202)
async def cancel_submission(identifier: _Id, contest: OfContest, principal: Submitter) -> dict[str, Any]:
    """Cancel a submission that is queued or running."""
    _check_owner(principal, _get(contest, identifier))
    before = await run_in_threadpool(cancel, contest.database, identifier)
    if before.is_final:
        raise Conflict(f"the submission is {before} already and cannot be cancelled")
    contest.changes.announce()
    return view_of(_get(contest, identifier), principal)


@router.get("/v1/submissions/{identifier}/traces")
async def traces(
    identifier: _Id,
    contest: OfContest,
    principal: Reader,
    cursor: Annotated[int, Query(ge=0, le=LARGEST_ID)] = 0,
    limit: _Limit = 100,
) -> dict[str, Any]:
    """The traces of a submission on public workloads. Logs in them are output of the solution: do not trust them."""
    _check_owner(principal, _get(contest, identifier))
    found = await _read(contest, lambda connection: list_traces(connection, identifier, cursor, limit))
    following = found[-1][0] if len(found) == limit else None
    return {"items": [json.loads(line) for _, line in found], "next_cursor": following}


@router.get("/v1/submissions/{identifier}/solution")
async def solution(identifier: _Id, contest: OfContest, principal: Reader) -> dict[str, Any]:
    """The solution of a submission."""
    found = _get(contest, identifier)
    if not contest.settings.publish_sources:
        _check_owner(principal, found)
    with contest.database.read() as connection:
        plain: dict[str, Any] = to_plain(get_solution(connection, identifier))
    return plain


@router.get("/v1/leaderboards/{definition}")
async def leaderboard(
    definition: str,
    contest: OfContest,
    principal: Reader,
    hardware: Annotated[str | None, Query(max_length=200)] = None,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    limit: _Limit = 100,
) -> dict[str, Any]:
    """The best ranked submission of each user, the best first."""
    _definition(contest, definition)

    def read(connection: Connection) -> dict[str, Any]:
        chosen = hardware or next(iter(ranked_hardware(connection, definition)), "")
        found = ranked(connection, definition, chosen, offset, limit)
        items = [
            {"rank": place, "submission": view_of(each, principal)} for place, each in enumerate(found, offset + 1)
        ]
        return {
            "definition": definition,
            "hardware": chosen,
            "is_unranked": contest.settings.allow_unranked,
            "items": items,
        }

    return await _read(contest, read)


@router.get("/v1/quota")
async def quota(contest: OfContest, principal: Reader) -> dict[str, Any]:
    """The user of the token, and how much of its quotas is used."""
    with contest.database.read() as connection:
        user = find_user(connection, principal.name)
        used = usage(connection, principal.user_id)
    assert user is not None
    limits = {"queued": user.max_queued, "running": user.max_running, "day": user.max_per_day}
    return {"user": principal.name, "role": principal.role, "used": used, "limits": limits}


@router.get("/v1/devices")
async def devices(contest: OfContest, _: Reader) -> list[dict[str, Any]]:
    """The devices."""
    return [attrs.asdict(device) for device in contest.devices.all()]


async def _read(contest: Contest, query: Callable[[Connection], _Result]) -> _Result:
    """The result of a query on a consistent view of the database, outside of the event loop."""

    def read() -> _Result:
        with contest.database.read() as connection:
            return query(connection)

    return await run_in_threadpool(read)


def _get(contest: Contest, identifier: str) -> Submission:
    with contest.database.read() as connection:
        return _find(connection, identifier)


def _check_owner(principal: Principal, submission: Submission) -> None:
    if not principal.may_see(submission.user_id):
        raise Forbidden("this submission belongs to another user; only that user and maintainers may do this")
