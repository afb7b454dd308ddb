"""HTTP API: the routes that flashinfer-bench documents, unchanged, and those below ``/v1``, which can do more."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

import attrs
from fastapi import APIRouter, Depends, Path, Query, Request
from fib_schema import Definition, Solution, to_plain
from fib_schema.codec import structure
from fib_schema.solution import framed
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, RedirectResponse, Response

from .. import __version__
from .. import submissions as store
from ..contest import Contest
from ..database import LARGEST_ID, State, iso_time
from ..errors import Refused
from ..submissions import NewSubmission, Submission
from ..users import Principal, add_entry, check_token
from .access import Maintainer, OfContest, User, require_user

router = APIRouter()
_MAX_CHARACTERS = {"name": 100, "path": 200, "entry_point": 400, "content": sys.maxsize}
_NAME_DIGITS = 16  # so many that nobody makes a solution with the name of another one
_MAX_TEXT = 10_000  # of other texts
_MAX_ENTRIES = 200  # of a list
_MAX_VALUES = 5000  # of all objects and lists of a solution together
_LONGEST_WAIT = 3600.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 1.0
_MIN_FREE_BYTES = 5 << 30  # or 5 % of a smaller disk: what is accepted still writes its files and traces
_LOG = logging.getLogger(__name__)
_MAX_TASKS = 1000
_MAX_TRACES = 100_000
_PAGE = 200  # traces
_MAX_ANSWER = 16 << 20  # characters of the traces of an answer
_TASKS_PER_REQUEST = 20  # tasks of a batch weigh as much as a request
_PRIVATE_FIELDS = frozenset({"number", "user_id", "solution_name", "content_hash", "workloads"})
_TIMES = ("created_at", "finished_at")
_Name: TypeAlias = Annotated[str, Field(max_length=1000)]
"""An identifier in a request. The bound also refuses halves of surrogate pairs, which no answer can quote."""
_Workloads: TypeAlias = Annotated[list[_Name], Field(max_length=10_000, fail_fast=True)]
_IsEnough: TypeAlias = Callable[[list[Submission]], bool]
_Seconds: TypeAlias = Annotated[float, Query(ge=0, le=_LONGEST_WAIT)]
_Id = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="The id of a submission")]


class SubmitRequest(BaseModel):
    """A solution in the format of flashinfer-trace, and the public workloads to run it on; a choice does not rank."""

    model_config = ConfigDict(extra="forbid")

    solution: dict[str, Any]
    workload_uuids: _Workloads | None = None
    force: bool = False
    """Evaluate it although an identical one has a result."""


class BatchRequest(BaseModel):
    """Tasks to wait for."""

    model_config = ConfigDict(extra="forbid")

    task_ids: Annotated[list[_Name], Field(max_length=_MAX_TASKS, fail_fast=True)]
    timeout: Annotated[float, Field(ge=0, le=_LONGEST_WAIT)] = 0.0


_Model = TypeVar("_Model", bound=BaseModel)
_OBJECT = TypeAdapter(dict[str, Any])


def _body_of(model: type[_Model]) -> Callable[[Request], _Model]:
    """The dependency of a route that reads a body: threads parse it, as it would stop the event loop."""

    def read(request: Request) -> _Model:
        sent = request.headers.get("content-type") or "none"
        if sent.partition(";")[0].strip().lower() != "application/json":
            needed = "the body is read only with the header 'Content-Type: application/json'"
            raise Refused(422, f"{needed}, sent was {sent[:200]}")
        fields = _OBJECT.validate_json(request.state.body)
        if surplus := fields.keys() - model.model_fields:
            raise Refused(422, f"the request has a field {min(surplus)[:200]!r}; leave it out")
        return model.model_validate(fields)

    return read


def _reads(model: type[BaseModel]) -> dict[str, Any]:
    """The part of the OpenAPI document for the body of a route."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": model.model_json_schema()}}}}


_Submission: TypeAlias = Annotated[SubmitRequest, Depends(_body_of(SubmitRequest))]
_Batch: TypeAlias = Annotated[BatchRequest, Depends(_body_of(BatchRequest))]


# -- acceptance of solutions -------------------------------------------------------------------------


def accept(contest: Contest, principal: Principal, body: SubmitRequest) -> tuple[Submission, bool]:
    """Accept a request, see `submissions.submit`."""
    if contest.is_draining:
        raise Refused(503, "the service is stopping and takes no submissions; try again later")
    if contest.settings.is_over:
        raise Refused(403, f"the contest ended at {contest.settings.deadline}; nothing is accepted any more")
    _check_size(body.solution)
    solution = _owned(contest, principal, structure(body.solution, Solution, source="the request"))
    workloads = _chosen_workloads(contest, solution.definition, body.workload_uuids)
    total = len(contest.public.workloads[solution.definition])
    new = NewSubmission(
        user_id=principal.user_id,
        token_id=principal.token_id,
        solution=solution,
        workloads=workloads,
        planned=total if workloads is None else len(workloads),
        is_forced=body.force,
    )
    return store.submit(contest.database, contest.settings, new)


def _check_size(plain: Mapping[str, Any]) -> None:
    """Refuse what would take seconds to validate, before it is looked at; contents are as long as a body may be."""
    count = 0
    pending: list[tuple[str, Any]] = [("solution", plain)]
    while pending:
        name, value = pending.pop()
        inner: list[Any] = []
        if isinstance(value, str):
            _check_length(name, value, "characters", _MAX_CHARACTERS.get(name, _MAX_TEXT))
        elif isinstance(value, list):
            _check_length(name, value, "entries", _MAX_ENTRIES)
            inner = [(name, each) for each in value]
        elif isinstance(value, dict):
            inner = list(value.items())
        pending += inner
        count += len(inner)
        if count > _MAX_VALUES:
            raise Refused(422, f"solution: has more than {_MAX_VALUES} values in its objects and lists")


def _check_length(name: str, value: str | list[Any], noun: str, most: int) -> None:
    if len(value) > most:
        raise Refused(422, f"solution, {name[:100]}: {len(value)} {noun}, at most {most}")


def _owned(contest: Contest, principal: Principal, solution: Solution) -> Solution:
    """The solution with its author, and a name that is unique to its author and content."""
    digits = hashlib.sha256(framed([principal.name, solution.hash()])).hexdigest()[:_NAME_DIGITS]
    owned = attrs.evolve(solution, author=principal.name, name=f"{solution.name}_{digits}")
    if owned.definition not in contest.public.definitions:
        raise Refused(400, f"Definition not found: {owned.definition}")  # with the documented status
    return owned


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
    fields = {name: value for name, value in submission._asdict().items() if name not in _PRIVATE_FIELDS}
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
    require_user(request)
    paths = request.app.openapi()["paths"]
    endpoints = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    return JSONResponse({"name": "fib-serve", "version": __version__, "docs": "/openapi.json", "endpoints": endpoints})


@router.get("/health")
def health(contest: OfContest) -> dict[str, Any]:
    """Whether the service answers, its workers, and the number of queued submissions; needs no token."""
    with contest.database.read() as connection:
        counts = store.count_by_state(connection)
    workers = [{"device": device.name, "healthy": device.problem is None} for device in contest.devices.all()]
    return {"status": "ok", "workers": workers, "queue_size": counts[State.QUEUED]}


@router.get("/ready")
def ready(contest: OfContest) -> dict[str, str]:
    """Whether submissions are accepted, a device evaluates them and the disk has room; needs no token."""
    if contest.is_draining:
        raise Refused(503, "the service is stopping")
    if not contest.devices.in_use():
        raise Refused(503, "no device worker is running")
    check_room(contest, 503)
    return {"status": "ready"}


def check_room(contest: Contest, status: int) -> None:
    """Refuse a request, with this status, while a disk of the state or the data sets is almost full."""
    for folder in (contest.database.path.parent, *(catalog.root for catalog in contest.catalogs)):
        usage = shutil.disk_usage(folder)
        if usage.free < (least := min(usage.total // 20, _MIN_FREE_BYTES)):
            problem = f"the disk of the service has less than {least >> 20} MiB free, and it takes no submissions"
            raise Refused(status, f"{problem}; ask its operator to make room, then submit again")


@router.get("/definitions")
def definitions(contest: OfContest, _: User) -> list[dict[str, str | None]]:
    """The names and descriptions of all definitions."""
    return [{"name": name, "description": item.description} for name, item in contest.public.definitions.items()]


@router.get("/definitions/{name}")
def definition(name: str, contest: OfContest, _: User) -> dict[str, Any]:
    """A definition."""
    plain: dict[str, Any] = to_plain(definition_of(contest, name))
    return plain


@router.get("/definitions/{name}/workloads")
def workloads(name: str, contest: OfContest, _: User) -> list[dict[str, Any]]:
    """The public workloads of a definition."""
    return [to_plain(workload) for workload in contest.public.workloads[definition_of(contest, name).name]]


@router.get("/workloads/{uuid}")
def workload(uuid: str, contest: OfContest, _: User) -> dict[str, Any]:
    """A public workload."""
    found = contest.public.find_workload(uuid)
    if found is None:
        raise Refused(404, f"Workload not found: {uuid[:200]}")
    plain: dict[str, Any] = to_plain(found)
    return plain


@router.post("/evaluate", openapi_extra=_reads(SubmitRequest))
def evaluate(contest: OfContest, principal: User, body: _Submission) -> dict[str, str]:
    """Accept a solution for evaluation."""
    submission, _ = accept(contest, principal, body)
    return {"task_id": submission.id, "normalized_solution_name": submission.solution_name}


@router.get("/tasks/{task_id}")
async def task(task_id: str, contest: OfContest, principal: User, timeout: _Seconds = 0.0) -> dict[str, Any]:
    """A task; waits at most `timeout` seconds for its end."""
    (found,) = await _tasks(contest, principal, [task_id], timeout)
    return found


@router.post("/tasks/batch", openapi_extra=_reads(BatchRequest))
async def tasks(request: Request, contest: OfContest, principal: User, body: _Batch) -> list[dict[str, Any]]:
    """Several tasks in the same order; waits at most `timeout` seconds for the end of all."""
    if contest.local is None:
        request.app.state.gate.count(principal, 1 + len(body.task_ids) // _TASKS_PER_REQUEST)
    return await _tasks(contest, principal, body.task_ids, body.timeout)


@router.post("/shutdown")
def shutdown(request: Request, contest: OfContest, principal: Maintainer) -> dict[str, str]:
    """End the contest, after the running evaluations."""
    address = request.client.host if request.client is not None else ""
    with contest.database.write() as connection:
        check_token(connection, principal.token_id)
        add_entry(connection, principal.name, address, "shutdown", "the service", "")
    _LOG.warning("shutdown of the service by %s at %s", principal.name, address)
    contest.is_draining = True
    contest.stop()
    return {"status": "shutting down"}


def definition_of(contest: Contest, name: str) -> Definition:
    """The definition of that name."""
    found = contest.public.definitions.get(name)
    if found is None:
        raise Refused(404, f"Definition not found: {name[:200]}")
    return found


async def _wait(
    contest: Contest, principal: Principal, identifiers: Sequence[str], seconds: float, is_enough: _IsEnough
) -> list[Submission]:
    """The submissions with these ids, at the latest after so many seconds, before if that is enough."""
    deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE_SECONDS
    while True:
        found = await run_in_threadpool(_find, contest, principal, identifiers)
        left = deadline - time.monotonic()
        if left <= 0 or contest.is_closed or is_enough(found):
            return found
        await asyncio.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _find(contest: Contest, principal: Principal, identifiers: Sequence[str]) -> list[Submission]:
    with contest.database.read() as connection:
        check_token(connection, principal.token_id)
        return store.find_submissions(connection, identifiers)


async def _tasks(
    contest: Contest, principal: Principal, identifiers: Sequence[str], seconds: float
) -> list[dict[str, Any]]:
    """Tasks, which have ended or are not waited for any longer; one that is named again is not read again."""

    def are_final(found: list[Submission]) -> bool:
        return all(each.state.is_final for each in found)

    found = await _wait(contest, principal, list(dict.fromkeys(identifiers)), seconds, are_final)
    return await run_in_threadpool(_read_tasks, contest, principal, found, identifiers)


def _read_tasks(
    contest: Contest, principal: Principal, found: list[Submission], identifiers: Sequence[str]
) -> list[dict[str, Any]]:
    """Tasks with the traces that they have so far; a user that may not see traces gets none."""
    tasks, size, times = {}, 0, Counter(identifiers)
    for submission in found:
        may_see = principal.may_see(submission.user_id)
        with contest.database.read() as connection:
            lines, _ = store.list_traces(connection, submission.id, 0, _MAX_TRACES if may_see else 0, _MAX_ANSWER)
        size += times[submission.id] * sum(map(len, lines))
        if size >= _MAX_ANSWER:
            problem = f"traces of these tasks have more than {_MAX_ANSWER} characters, the limit of an answer"
            raise Refused(413, f"{problem}; name fewer tasks, or read pages of /v1/submissions/ID/traces")
        tasks[submission.id] = {
            "task_id": submission.id,
            "status": "pending" if submission.state is State.QUEUED else submission.state,
            "definition": submission.definition,
            "solution": submission.solution_name,
            "traces": [json.loads(line) for line in lines],
            "error": submission.error if may_see else None,
        }
    return [tasks[identifier] for identifier in identifiers]


# -- the routes below /v1 ----------------------------------------------------------------------------


@router.post(
    "/v1/submissions",
    status_code=201,
    responses={200: {"description": "It is answered from the record"}},
    openapi_extra=_reads(SubmitRequest),
)
def submit_solution(contest: OfContest, principal: User, body: _Submission) -> JSONResponse:
    """Submit a solution. Its author becomes the user, and its name gets a suffix that is unique to its content."""
    submission, is_new = accept(contest, principal, body)
    headers = {"Location": f"/v1/submissions/{submission.id}"}
    return JSONResponse(view_of(submission, principal), 201 if is_new else 200, headers)


@router.get("/v1/submissions/{identifier}")
async def submission(identifier: _Id, contest: OfContest, principal: User, timeout: _Seconds = 0.0) -> dict[str, Any]:
    """A submission; waits at most `timeout` seconds for a change of its state or of the number of results."""
    before = await run_in_threadpool(_find, contest, principal, [identifier])
    is_final = before[0].state.is_final
    (found,) = await _wait(contest, principal, [identifier], timeout, lambda found: is_final or found != before)
    return view_of(found, principal)


@router.get("/v1/submissions/{identifier}/traces")
def traces(
    identifier: _Id, contest: OfContest, principal: User, cursor: Annotated[int, Query(ge=0, le=LARGEST_ID)] = 0
) -> dict[str, Any]:
    """The traces of a submission on public workloads. Logs in them are output of the solution: do not trust them."""
    with contest.database.read() as connection:
        if not principal.may_see(store.find_submission(connection, identifier).user_id):
            raise Refused(403, "this submission belongs to another user; only that user and maintainers read traces")
        found, following = store.list_traces(connection, identifier, cursor, _PAGE)
    return {"items": [json.loads(line) for line in found], "next_cursor": following}


@router.get("/v1/leaderboards/{definition}")
def leaderboard(
    definition: str, contest: OfContest, principal: User, hardware: Annotated[str | None, Query(max_length=200)] = None
) -> dict[str, Any]:
    """The best ranked submission of each user, the best first, up to 500."""
    definition_of(contest, definition)
    with contest.database.read() as connection:
        chosen = hardware or next(iter(store.ranked_hardware(connection, definition)), "")
        found = store.ranked(connection, definition, chosen)
    items = [{"rank": place, "submission": view_of(each, principal)} for place, each in enumerate(found, 1)]
    return {"definition": definition, "hardware": chosen, "items": items}


@router.get("/v1/devices")
def devices(contest: OfContest, _: User) -> list[dict[str, Any]]:
    """The devices."""
    return [attrs.asdict(device) for device in contest.devices.all()]
