"""HTTP API: the routes that flashinfer-bench documents, unchanged, and those below ``/v1``, which can do more."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import attrs
from fastapi import APIRouter, Path, Query, Request
from fib_schema import Definition, Solution, to_plain
from fib_schema.codec import structure
from fib_schema.display import counted
from fib_schema.framing import framed
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, RedirectResponse, Response

from .. import __version__
from ..contest import Contest
from ..database import LARGEST_ID, iso_time
from ..errors import Refused
from ..submissions import (
    NewSubmission,
    State,
    Submission,
    cancel,
    count_by_state,
    find_submission,
    get_solution,
    list_submissions,
    list_traces,
    ranked,
    ranked_hardware,
    submit,
    usage,
)
from ..users import Principal, Role, add_entry, get_user
from .access import Maintainer, OfContest, Reader, Submitter, require

router = APIRouter()
_MAX_NAME_CHARACTERS = 100
_MAX_SOURCES = 200
_MAX_VALUES = 5000  # of all objects and lists of a solution together
_LONGEST_WAIT = 3600.0
_MIN_FREE_BYTES = 64 << 20  # for the files of some submissions
_LOG = logging.getLogger(__name__)
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


class SubmitRequest(EvaluateRequest):
    """A solution in the format of flashinfer-trace, and the public workloads to run it on; a choice does not rank."""

    model_config = ConfigDict(extra="forbid")

    force: bool = False
    """Evaluate it although an identical one has a result."""


class BatchRequest(BaseModel):
    """Tasks to wait for."""

    task_ids: Annotated[list[_Name], Field(max_length=_MAX_TASKS)]
    timeout: Annotated[float, Field(ge=0, le=_LONGEST_WAIT)] = 0.0


# -- acceptance of solutions -------------------------------------------------------------------------


def _accept(contest: Contest, principal: Principal, body: SubmitRequest) -> tuple[Submission, bool]:
    """Accept a request, see `submissions.submit`.

    Raises:
        Refused: It cannot be accepted.
        InvalidRecord: The solution is not valid.
    """
    if contest.is_draining:
        raise Refused(503, "the service is stopping and takes no submissions; try again later")
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
    submission, is_new = submit(contest.database, new, present)
    if is_new:
        contest.announce()
    return submission, is_new


def _parse(plain: Mapping[str, Any]) -> Solution:
    _refuse_bulk(plain)
    solution = structure(dict(plain), Solution, source="the request")
    try:
        json.dumps(to_plain(solution), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:  # no answer could contain it
        half = f"\\u{ord(error.object[error.start]):x}"
        raise Refused(422, f"solution: a text has {half}, half of a surrogate pair; send valid Unicode") from error
    if len(solution.name) > _MAX_NAME_CHARACTERS:
        raise Refused(422, f"solution.name: {len(solution.name)} characters, at most {_MAX_NAME_CHARACTERS}")
    if len(solution.sources) > _MAX_SOURCES:
        raise Refused(422, f"solution.sources: {counted(len(solution.sources), 'file')}, at most {_MAX_SOURCES}")
    return solution


def _refuse_bulk(plain: Mapping[str, Any]) -> None:
    """Refuse what would take seconds to validate, before it is looked at."""
    count, pending = 0, [plain]
    while pending:
        value: Any = pending.pop()
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        count += len(inner)
        if count > _MAX_VALUES:
            raise Refused(422, f"solution: has more than {_MAX_VALUES} values in its objects and lists")
        pending += inner


def _owned(contest: Contest, principal: Principal, solution: Solution) -> Solution:
    """The solution with its author, and a name that is unique to its author and content."""
    digits = hashlib.sha256(framed([principal.name, solution.hash()])).hexdigest()[:8]
    owned = attrs.evolve(solution, author=principal.name, name=f"{solution.name}_{digits}")
    if owned.definition not in contest.public.definitions:
        raise Refused(400, f"Definition not found: {owned.definition}")  # with the documented status
    if owned.name in contest.public.reserved_names and not _is_own(contest, principal, owned):
        raise Refused(422, f"solution.name: the data set has a solution {owned.name!r}; choose another name")
    return owned


def _is_own(contest: Contest, principal: Principal, solution: Solution) -> bool:
    """Whether an earlier submission of this user has put the solution into the data set."""
    definition = contest.public.definitions[solution.definition]
    return contest.public.solution_file(definition, attrs.evolve(solution, author=principal.name)).exists()


def _chosen_workloads(contest: Contest, definition: str, uuids: list[str] | None) -> tuple[str, ...] | None:
    known = {workload.uuid for workload in contest.public.workloads[definition]}
    if not known:
        raise Refused(422, f"definition {definition!r} has no workloads")
    if uuids is None:
        return None
    if not uuids:
        raise Refused(422, "workload_uuids: is empty; leave it out to run all workloads")
    unknown = [uuid for uuid in uuids if uuid not in known]
    if unknown:
        raise Refused(404, f"Workload not found: {unknown[0][:200]}")
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
def index(request: Request) -> Response:
    """The name, the version and all paths; a browser is sent to the leaderboards."""
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse("/leaderboard", 303)
    require(Role.READER)(request)
    paths = request.app.openapi()["paths"]
    endpoints = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    return JSONResponse({"name": "fib-serve", "version": __version__, "docs": "/openapi.json", "endpoints": endpoints})


@router.get("/health")
def health(contest: OfContest) -> dict[str, Any]:
    """Whether the service answers, its workers, and the number of queued submissions; needs no token."""
    with contest.database.read() as connection:
        counts = count_by_state(connection)
    workers = [{"device": device.name, "healthy": device.problem is None} for device in contest.devices.all()]
    return {"status": "ok", "workers": workers, "queue_size": counts[State.QUEUED]}


@router.get("/ready")
def ready(contest: OfContest) -> dict[str, str]:
    """Whether submissions are accepted, a device evaluates them and the disk has room; needs no token."""
    if contest.is_draining:
        raise Refused(503, "the service is stopping")
    if not contest.devices.in_use():
        raise Refused(503, "no device worker is running")
    for folder in (contest.database.path.parent, *(catalog.root for catalog in contest.catalogs)):
        if shutil.disk_usage(folder).free < _MIN_FREE_BYTES:
            raise Refused(503, f"the disk of the service has less than {_MIN_FREE_BYTES >> 20} MiB; make room")
    return {"status": "ready"}


@router.get("/definitions")
def definitions(contest: OfContest, _: Reader) -> list[dict[str, str | None]]:
    """The names and descriptions of all definitions."""
    return [{"name": name, "description": item.description} for name, item in contest.public.definitions.items()]


@router.get("/definitions/{name}")
def definition(name: str, contest: OfContest, _: Reader) -> dict[str, Any]:
    """A definition."""
    plain: dict[str, Any] = to_plain(_definition(contest, name))
    return plain


@router.get("/definitions/{name}/workloads")
def workloads(name: str, contest: OfContest, _: Reader) -> list[dict[str, Any]]:
    """The public workloads of a definition."""
    return [to_plain(workload) for workload in contest.public.workloads[_definition(contest, name).name]]


@router.get("/workloads/{uuid}")
def workload(uuid: str, contest: OfContest, _: Reader) -> dict[str, Any]:
    """A public workload."""
    found = contest.public.find_workload(uuid)
    if found is None:
        raise Refused(404, f"Workload not found: {uuid[:200]}")
    plain: dict[str, Any] = to_plain(found)
    return plain


@router.post("/evaluate")
def evaluate(body: EvaluateRequest, contest: OfContest, principal: Submitter, force: bool = False) -> dict[str, str]:
    """Accept a solution for evaluation; `force` evaluates it again although an identical one has a result."""
    request = SubmitRequest(solution=body.solution, workload_uuids=body.workload_uuids, force=force)
    submission, _ = _accept(contest, principal, request)
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
def shutdown(request: Request, contest: OfContest, principal: Maintainer) -> dict[str, str]:
    """End the contest, after the running evaluations."""
    _record(request, principal, "shutdown", "the service")
    contest.is_draining = True
    contest.stop()
    return {"status": "shutting down"}


def _record(request: Request, principal: Principal, action: str, subject: str) -> None:
    """Log an act of administration, and add it to the audit log."""
    address = request.client.host if request.client is not None else ""
    _LOG.warning("%s of %s by %s at %s", action, subject, principal.name, address)
    with request.app.state.contest.database.write() as connection:
        add_entry(connection, principal.name, address, action, subject, "")


def _definition(contest: Contest, name: str) -> Definition:
    found = contest.public.definitions.get(name)
    if found is None:
        raise Refused(404, f"Definition not found: {name[:200]}")
    return found


async def _wait(
    contest: Contest,
    principal: Principal,
    identifiers: Sequence[str],
    seconds: float,
    is_enough: Callable[[list[Submission]], bool],
) -> list[Submission]:
    """The submissions with these ids, at the latest after so many seconds, before if that is enough.

    Raises:
        Refused: As many requests of the user wait already as may; there is no such submission.
    """
    deadline, waits, user = time.monotonic() + seconds, contest.waits, principal.user_id
    if seconds and waits[user] >= _MAX_WAITS:
        raise Refused(429, f"{_MAX_WAITS} of your requests wait for submissions, the limit; ask without `timeout`", 10)
    waits[user] += 1
    try:
        while True:
            seen = contest.changes
            found = await run_in_threadpool(_find, contest, *identifiers)
            left = deadline - time.monotonic()
            if left <= 0 or contest.is_closed or is_enough(found):
                return found
            await contest.wait_for_change(seen, left)
    finally:
        waits[user] -= 1


def _find(contest: Contest, *identifiers: str) -> list[Submission]:
    with contest.database.read() as connection:
        return [find_submission(connection, identifier) for identifier in identifiers]


async def _tasks(
    contest: Contest, principal: Principal, identifiers: Sequence[str], seconds: float
) -> list[dict[str, Any]]:
    """Tasks, which have ended or are not waited for any longer."""

    def are_final(found: list[Submission]) -> bool:
        return all(each.state.is_final for each in found)

    found = await _wait(contest, principal, identifiers, seconds, are_final)
    return await run_in_threadpool(lambda: [_task(contest, principal, each) for each in found])


def _task(contest: Contest, principal: Principal, submission: Submission) -> dict[str, Any]:
    """A task with the traces that it has so far; a user that may not see traces gets none."""
    may_see, lines = principal.may_see(submission.user_id), []
    if may_see:
        with contest.database.read() as connection:
            lines = list_traces(connection, submission.id, 0, _MAX_TRACES)
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
def submit_solution(body: SubmitRequest, contest: OfContest, principal: Submitter) -> JSONResponse:
    """Submit a solution. Its author becomes the user, and its name gets a suffix that is unique to its content."""
    submission, is_new = _accept(contest, principal, body)
    headers = {"Location": f"/v1/submissions/{submission.id}"}
    return JSONResponse(view_of(submission, principal), 201 if is_new else 200, headers)


@router.get("/v1/submissions")
def submissions(
    contest: OfContest,
    principal: Reader,
    user: Annotated[str | None, Query(max_length=40)] = None,
    definition: Annotated[str | None, Query(max_length=200)] = None,
    state: State | None = None,
    cursor: Annotated[int | None, Query(ge=1, le=LARGEST_ID)] = None,
    limit: _Limit = 100,
) -> dict[str, Any]:
    """Submissions, the newest first; `next_cursor` is null on the last page."""
    with contest.database.read() as connection:
        found = list_submissions(connection, limit, before=cursor, user=user, definition=definition, state=state)
    following = found[-1].number if len(found) == limit else None
    return {"items": [view_of(each, principal) for each in found], "next_cursor": following}


@router.get("/v1/submissions/{identifier}")
async def submission(identifier: _Id, contest: OfContest, principal: Reader, timeout: _Seconds = 0.0) -> dict[str, Any]:
    """A submission; waits at most `timeout` seconds for a change of its state or of the number of results."""
    before = await run_in_threadpool(_find, contest, identifier)
    is_final = before[0].state.is_final
    (found,) = await _wait(contest, principal, [identifier], timeout, lambda found: is_final or found != before)
    return view_of(found, principal)


@router.delete("/v1/submissions/{identifier}", status_code=202)
def cancel_submission(identifier: _Id, request: Request, contest: OfContest, principal: Submitter) -> dict[str, Any]:
    """Cancel a submission that is queued or running."""
    (found,) = _find(contest, identifier)
    _check_owner(principal, found)
    before = cancel(contest.database, identifier)
    if before.is_final:
        raise Refused(409, f"the submission is {before} already and cannot be cancelled")
    if found.user_id != principal.user_id:
        _record(request, principal, "cancel submission", identifier)
    contest.announce()
    contest.interrupt(identifier)
    (cancelled,) = _find(contest, identifier)
    return view_of(cancelled, principal)


@router.get("/v1/submissions/{identifier}/traces")
def traces(
    identifier: _Id,
    contest: OfContest,
    principal: Reader,
    cursor: Annotated[int, Query(ge=0, le=LARGEST_ID)] = 0,
    limit: _Limit = 100,
) -> dict[str, Any]:
    """The traces of a submission on public workloads. Logs in them are output of the solution: do not trust them."""
    with contest.database.read() as connection:
        _check_owner(principal, find_submission(connection, identifier))
        found = list_traces(connection, identifier, cursor, limit)
    following = found[-1][0] if len(found) == limit else None
    return {"items": [json.loads(line) for _, line in found], "next_cursor": following}


@router.get("/v1/submissions/{identifier}/solution")
def solution(identifier: _Id, contest: OfContest, principal: Reader) -> dict[str, Any]:
    """The solution of a submission."""
    with contest.database.read() as connection:
        found = find_submission(connection, identifier)
        if not contest.settings.publish_sources:
            _check_owner(principal, found)
        plain: dict[str, Any] = to_plain(get_solution(connection, identifier))
    return plain


@router.get("/v1/leaderboards/{definition}")
def leaderboard(
    definition: str,
    contest: OfContest,
    principal: Reader,
    hardware: Annotated[str | None, Query(max_length=200)] = None,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    limit: _Limit = 100,
) -> dict[str, Any]:
    """The best ranked submission of each user, the best first."""
    _definition(contest, definition)
    with contest.database.read() as connection:
        chosen = hardware or next(iter(ranked_hardware(connection, definition)), "")
        found = ranked(connection, definition, chosen, offset, limit)
    items = [{"rank": place, "submission": view_of(each, principal)} for place, each in enumerate(found, offset + 1)]
    is_unranked = contest.settings.allow_unranked
    return {"definition": definition, "hardware": chosen, "is_unranked": is_unranked, "items": items}


@router.get("/v1/quota")
def quota(contest: OfContest, principal: Reader) -> dict[str, Any]:
    """The user of the token, and how much of its quotas is used."""
    with contest.database.read() as connection:
        user = get_user(connection, principal.name)
        used = usage(connection, principal.user_id)
    limits = {"queued": user.max_queued, "running": user.max_running, "day": user.max_per_day}
    return {"user": principal.name, "role": principal.role, "used": used, "limits": limits}


@router.get("/v1/devices")
def devices(contest: OfContest, _: Reader) -> list[dict[str, Any]]:
    """The devices."""
    return [attrs.asdict(device) for device in contest.devices.all()]


def _check_owner(principal: Principal, submission: Submission) -> None:
    if not principal.may_see(submission.user_id):
        raise Refused(403, "this submission belongs to another user; only that user and maintainers may do this")
