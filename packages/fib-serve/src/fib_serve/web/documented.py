"""Routes of the HTTP API that flashinfer-bench documents. Paths, bodies and answers are unchanged."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fib_schema import to_plain
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, RedirectResponse, Response

from .. import __version__
from ..errors import NotFound
from ..identifiers import now
from ..queue.reading import count_by_state, get_submission, list_devices, list_traces
from ..queue.submission import State, Submission
from ..users.roles import Principal, Role
from . import acceptance
from .access import Maintainer, OfService, Reader, Submitter, require
from .bodies import Name
from .state import Service

router = APIRouter(tags=["flashinfer-bench"])
_LONGEST_WAIT = 3600.0
_MAX_TASKS = 1000
_MAX_TRACES = 100_000
_STATUSES = {
    State.QUEUED: "pending",
    State.RUNNING: "running",
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "failed",
}


class EvaluateRequest(BaseModel):
    """A solution, and the workloads to run it on; without them, on all."""

    solution: dict[str, Any]
    workload_uuids: Annotated[list[Name], Field(max_length=10_000)] | None = None


class EvaluateAnswer(BaseModel):
    """The task, and the name under which traces have the solution."""

    task_id: str
    normalized_solution_name: str


class BatchRequest(BaseModel):
    """Tasks to wait for."""

    task_ids: Annotated[list[Name], Field(max_length=_MAX_TASKS)]
    timeout: Annotated[float, Field(ge=0, le=_LONGEST_WAIT)] = 0.0


class Task(BaseModel):
    """A task with the traces that it has so far."""

    task_id: str
    status: str
    definition: str
    solution: str
    traces: list[dict[str, Any]]
    error: str | None


@router.get("/", response_model=None)
async def index(request: Request) -> Response:
    """The name, the version and all paths; a browser is sent to the leaderboards."""
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse("/leaderboard", 303)
    await require(Role.READER)(request)
    paths = request.app.openapi()["paths"]
    endpoints = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    return JSONResponse({"name": "fib-serve", "version": __version__, "docs": "/docs", "endpoints": endpoints})


@router.get("/health")
async def health(service: OfService) -> dict[str, Any]:
    """Whether the service answers, its workers, and the number of queued submissions; needs no token."""
    with service.database.read() as connection:
        devices, counts = list_devices(connection), count_by_state(connection)
    oldest = now() - 3 * service.settings.lease_seconds
    workers = [{"device": device.name, "healthy": device.is_healthy(oldest)} for device in devices]
    return {"status": "ok", "workers": workers, "queue_size": counts["queued"]}


@router.get("/definitions")
async def definitions(service: OfService, _: Reader) -> list[dict[str, str | None]]:
    """The names and descriptions of all definitions."""
    return [{"name": name, "description": item.description} for name, item in service.catalog.definitions.items()]


@router.get("/definitions/{name}")
async def definition(name: str, service: OfService, _: Reader) -> dict[str, Any]:
    """A definition."""
    plain: dict[str, Any] = to_plain(_definition(service, name))
    return plain


@router.get("/definitions/{name}/workloads")
async def workloads(name: str, service: OfService, _: Reader) -> list[dict[str, Any]]:
    """The public workloads of a definition."""
    _definition(service, name)
    return [to_plain(workload) for workload in service.catalog.workloads[name]]


@router.get("/workloads/{uuid}")
async def workload(uuid: str, service: OfService, _: Reader) -> dict[str, Any]:
    """A public workload."""
    found = service.catalog.find_workload(uuid)
    if found is None:
        raise NotFound(f"Workload not found: {uuid[:200]}")
    plain: dict[str, Any] = to_plain(found)
    return plain


@router.post("/evaluate")
async def evaluate(
    body: EvaluateRequest, service: OfService, principal: Submitter, force: bool = False
) -> EvaluateAnswer:
    """Accept a solution for evaluation; `force` evaluates it again although an identical one has a result."""
    request = acceptance.Request(solution=body.solution, workload_uuids=body.workload_uuids, is_forced=force)
    submission, _ = await acceptance.accept(service, principal, request)
    return EvaluateAnswer(task_id=submission.id, normalized_solution_name=submission.solution_name)


@router.get("/tasks/{task_id}")
async def task(
    task_id: str,
    service: OfService,
    principal: Reader,
    timeout: Annotated[float, Query(ge=0, le=_LONGEST_WAIT)] = 0.0,
) -> Task:
    """A task; waits at most `timeout` seconds for its end."""
    (found,) = await _wait(service, principal, [task_id], timeout)
    return found


@router.post("/tasks/batch")
async def tasks(body: BatchRequest, service: OfService, principal: Reader) -> list[Task]:
    """Several tasks in the same order; waits at most `timeout` seconds for the end of all."""
    return await _wait(service, principal, body.task_ids, body.timeout)


@router.post("/shutdown")
async def shutdown(service: OfService, principal: Maintainer) -> dict[str, str]:
    """End the service, after the running evaluations."""
    del principal
    service.is_draining = True
    service.stop()
    return {"status": "shutting down"}


def _definition(service: Service, name: str) -> Any:
    found = service.catalog.definitions.get(name)
    if found is None:
        raise NotFound(f"Definition not found: {name[:200]}")
    return found


async def _wait(service: Service, principal: Principal, identifiers: list[str], seconds: float) -> list[Task]:
    deadline = time.monotonic() + seconds
    while True:
        change = service.changes.current()
        with service.database.read() as connection:
            found = [_find(get_submission(connection, each), each) for each in identifiers]
        left = deadline - time.monotonic()
        if left <= 0 or service.changes.is_closed or all(each.state.is_final for each in found):
            return await run_in_threadpool(_with_traces, service, principal, found)
        await service.changes.wait(change, left)


def _find(submission: Submission | None, identifier: str) -> Submission:
    if submission is None:
        raise NotFound(f"Task not found: {identifier[:200]}")
    return submission


def _with_traces(service: Service, principal: Principal, found: list[Submission]) -> list[Task]:
    """The answers; a user that may not see traces gets none."""
    answers = []
    with service.database.read() as connection:
        for submission in found:
            may_see = principal.may_see(submission.user_id)
            lines = list_traces(connection, submission.id, 0, _MAX_TRACES) if may_see else []
            answers.append(
                Task(
                    task_id=submission.id,
                    status=_STATUSES[submission.state],
                    definition=submission.definition,
                    solution=submission.solution_name,
                    traces=[json.loads(line) for _, line in lines],
                    error=submission.error if may_see else None,
                )
            )
    return answers
