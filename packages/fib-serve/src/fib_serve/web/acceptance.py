"""Acceptance of a solution from a request: author, unique name, workloads, and the checks that need no device."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from fib_schema import Solution, to_plain
from fib_schema.codec import structure
from fib_schema.display import counted
from starlette.concurrency import run_in_threadpool

from ..errors import NotFound, Refused, Unavailable, Unprocessable
from ..queue.submission import Submission
from ..queue.submitting import NewSubmission, submit
from ..users.roles import Principal
from .state import Service

_MAX_NAME_CHARACTERS = 100
_MAX_SOURCES = 200
_HASH_DIGITS = 8


@attrs.frozen(kw_only=True)
class Request:
    """The content of a request to evaluate a solution."""

    solution: Mapping[str, Any]
    workload_uuids: Sequence[str] | None
    priority: int = 0
    deadline: float | None = None
    idempotency_key: str | None = None
    is_forced: bool = False


async def accept(service: Service, principal: Principal, request: Request) -> tuple[Submission, bool]:
    """Accept a request, see `queue.submitting.submit`.

    Raises:
        Refused: It cannot be accepted.
        InvalidRecord: The solution is not valid.
    """
    if service.is_draining:
        raise Unavailable("the service is stopping and takes no submissions; try again later")
    solution = _owned(service, principal, _parse(request.solution))
    workloads = _workloads(service, solution.definition, request.workload_uuids)
    total = len(service.catalog.workloads[solution.definition])
    new = NewSubmission(
        user_id=principal.user_id,
        solution=solution,
        workloads=workloads,
        planned=total if workloads is None else len(workloads),
        priority=request.priority,
        deadline=request.deadline,
        idempotency_key=request.idempotency_key,
        is_forced=request.is_forced,
    )
    submission, is_new = await run_in_threadpool(submit, service.database, new)
    if is_new:
        service.metrics.submitted.inc()
        service.workers.ring()
        service.changes.announce()
    return submission, is_new


def _parse(plain: Mapping[str, Any]) -> Solution:
    solution = structure(dict(plain), Solution, source="the request")
    _check_encodable(solution)
    if len(solution.name) > _MAX_NAME_CHARACTERS:
        raise Unprocessable(f"solution.name: {len(solution.name)} characters, at most {_MAX_NAME_CHARACTERS}")
    if len(solution.sources) > _MAX_SOURCES:
        raise Unprocessable(f"solution.sources: {counted(len(solution.sources), 'file')}, at most {_MAX_SOURCES}")
    return solution


def _check_encodable(solution: Solution) -> None:
    """Refuse texts that no answer can contain.

    Raises:
        Unprocessable: A text has half of a surrogate pair, which JSON can escape and UTF-8 cannot encode.
    """
    try:
        json.dumps(to_plain(solution), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):x}"
        raise Unprocessable(f"solution: a text has {half}, half of a surrogate pair; send valid Unicode") from error


def _owned(service: Service, principal: Principal, solution: Solution) -> Solution:
    """The solution with its author and its unique name."""
    owned = attrs.evolve(solution, author=principal.name).with_unique_name()
    if owned.definition not in service.catalog.definitions:
        raise _UnknownDefinition(f"Definition not found: {owned.definition}")
    if owned.name in service.catalog.reserved_names and not _is_own(service, principal, owned):
        raise Unprocessable(f"solution.name: the data set has a solution {owned.name!r}; choose another name")
    return owned


def _is_own(service: Service, principal: Principal, solution: Solution) -> bool:
    """Whether an earlier submission of this user has put the solution into the data set."""
    op_type = service.catalog.definitions[solution.definition].op_type
    folder = service.catalog.root / "solutions" / principal.name / op_type / solution.definition
    return (folder / f"{solution.name}.json").exists()


def _workloads(service: Service, definition: str, uuids: Sequence[str] | None) -> tuple[str, ...] | None:
    known = {workload.uuid for workload in service.catalog.workloads[definition]}
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


@attrs.frozen
class _UnknownDefinition(Refused):
    """A solution of an unknown definition; older clients expect this status."""
