"""Routes below ``/v1`` for maintainers: users, tokens, rejected results, the audit log."""

from __future__ import annotations

from typing import Annotated, Any

import attrs
from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from ..database.tables import LARGEST_ID
from ..errors import NotFound
from ..queue.rejecting import reject, restore
from ..users.accounts import (
    Limits,
    change_user,
    create_token,
    create_user,
    find_user,
    list_tokens,
    list_users,
    revoke_token,
)
from ..users.audit_log import add_entry, list_entries
from .access import Maintainer, OfService
from .bodies import NewToken, RejectRequest, TokenRequest, UserChange, UserRequest

router = APIRouter(prefix="/v1", tags=["administration"])
_DAY_SECONDS = 86_400.0


@router.get("/users")
async def users(service: OfService, _: Maintainer) -> list[dict[str, Any]]:
    """All accounts."""
    with service.database.read() as connection:
        return [attrs.asdict(user) for user in list_users(connection)]


@router.post("/users", status_code=201)
async def add_user(body: UserRequest, service: OfService, principal: Maintainer) -> dict[str, Any]:
    """Add an account."""

    def write() -> dict[str, Any]:
        with service.database.write() as connection:
            user = create_user(connection, body.name, body.role, service.settings)
            add_entry(connection, principal, "create user", user.name, f"role {user.role}")
            return attrs.asdict(user)

    return await run_in_threadpool(write)


@router.patch("/users/{name}")
async def edit_user(name: str, body: UserChange, service: OfService, principal: Maintainer) -> dict[str, Any]:
    """Change an account; an inactive one cannot use its tokens."""

    def write() -> dict[str, Any]:
        with service.database.write() as connection:
            user = change_user(connection, name, Limits(**body.model_dump()))
            add_entry(connection, principal, "change user", name, body.model_dump_json(exclude_none=True))
            return attrs.asdict(user)

    return await run_in_threadpool(write)


@router.get("/tokens")
async def tokens(service: OfService, _: Maintainer) -> list[dict[str, Any]]:
    """All tokens, without their texts."""
    with service.database.read() as connection:
        return [attrs.asdict(token) for token in list_tokens(connection)]


@router.post("/tokens", status_code=201)
async def add_token(body: TokenRequest, service: OfService, principal: Maintainer) -> NewToken:
    """Make a token. Its text is in the answer and nowhere else."""

    def write() -> NewToken:
        with service.database.write() as connection:
            user = find_user(connection, body.user)
            if user is None:
                raise NotFound(f"no user is named {body.user!r}")
            days = body.expires_in_days
            seconds = None if days is None else days * _DAY_SECONDS
            number, text = create_token(connection, user, body.scope, body.label, seconds)
            add_entry(connection, principal, "create token", f"{number}", f"user {user.name}, scope {body.scope}")
            return NewToken(id=number, token=text)

    return await run_in_threadpool(write)


@router.delete("/tokens/{number}", status_code=204)
async def delete_token(number: int, service: OfService, principal: Maintainer) -> None:
    """Revoke a token; a running process may accept it for another second."""

    def write() -> None:
        with service.database.write() as connection:
            revoke_token(connection, number)
            add_entry(connection, principal, "revoke token", f"{number}")

    if not 0 < number < LARGEST_ID:
        raise NotFound(f"no token has the number {number}")
    await run_in_threadpool(write)


@router.put("/submissions/{identifier}/rejection", status_code=204)
async def reject_submission(identifier: str, body: RejectRequest, service: OfService, principal: Maintainer) -> None:
    """Reject a result: it stays visible as rejected, and does not rank."""

    def write() -> None:
        with service.database.write() as connection:
            reject(connection, identifier, body.reason)
            add_entry(connection, principal, "reject", identifier, body.reason)

    await run_in_threadpool(write)
    service.changes.announce()


@router.delete("/submissions/{identifier}/rejection", status_code=204)
async def restore_submission(identifier: str, service: OfService, principal: Maintainer) -> None:
    """Undo a rejection."""

    def write() -> None:
        with service.database.write() as connection:
            restore(connection, identifier)
            add_entry(connection, principal, "restore", identifier)

    await run_in_threadpool(write)
    service.changes.announce()


@router.get("/audit")
async def audit(
    service: OfService,
    _: Maintainer,
    cursor: Annotated[int | None, Query(ge=1, le=LARGEST_ID)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> list[dict[str, Any]]:
    """The audit log, the newest entries first; `cursor` is the id of the last entry of the previous page."""
    with service.database.read() as connection:
        return [attrs.asdict(entry) for entry in list_entries(connection, cursor, limit)]
