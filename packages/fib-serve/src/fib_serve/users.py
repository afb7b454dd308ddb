"""Users: roles, tokens, and the audit log of changes.

A token has the role of its scope. The database has only hashes of tokens, and a token is shown once, when it is made.
Entries of the audit log are added in the transaction of the change.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from enum import StrEnum
from typing import Any

import attrs
from sqlalchemy import Connection, func, insert, select, update

from .database import Database, audit, iso_time, now, tokens, users
from .errors import Refused

LOCAL_USER = "local"
"""The user of all requests to a service without tokens."""
_USER_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,38}", re.ASCII)
"""Names of users: they become folder names of the data set."""
_TOKEN = re.compile(r"fib_[A-Za-z0-9_-]{43}", re.ASCII)
_RESERVED = ("workloads",)
"""No user has these names: they are folders of older data sets."""


class Role(StrEnum):
    """Role of a token, its scope."""

    SUBMITTER = "submitter"
    """Submit, read leaderboards, and see its own sources, logs and traces."""
    MAINTAINER = "maintainer"
    """See everything but hidden workloads, stop the service."""


@attrs.frozen
class Principal:
    """The user of a request, with the role that its token gives."""

    user_id: int
    name: str
    role: Role
    token_id: int | None = None  # None without tokens

    def may_see(self, owner_id: int) -> bool:
        """Whether sources, logs and traces of a user's submissions may be seen."""
        return self.role is Role.MAINTAINER or self.user_id == owner_id


def get_or_add_user(connection: Connection, name: str) -> int:
    """The number of the user of that name, who is added if there is none."""
    found: int | None = connection.execute(select(users.c.id).where(users.c.name == name)).scalar()
    if found is not None:
        return found
    if not _USER_NAME.fullmatch(name) or name in _RESERVED:
        raise Refused(422, f"user name {name!r}: use 1 to 39 lower-case letters, digits and '-', such as 'team-7'")
    return connection.execute(insert(users).values(name=name)).lastrowid


def local_principal(database: Database) -> Principal:
    """The only user of a service without tokens, who may do everything."""
    with database.write() as connection:
        return Principal(get_or_add_user(connection, LOCAL_USER), LOCAL_USER, Role.MAINTAINER)


# -- tokens ------------------------------------------------------------------------------------------


def create_token(connection: Connection, user: str, scope: Role) -> tuple[int, str]:
    """Make a token of a user, who is added if unknown; returns its number and its text, which cannot be read again."""
    text = "fib_" + secrets.token_urlsafe(32)
    values = {"user_id": get_or_add_user(connection, user), "scope": scope, "hash": _hash(text), "created_at": now()}
    return connection.execute(insert(tokens).values(values)).lastrowid, text


def list_tokens(connection: Connection) -> list[dict[str, Any]]:
    """All tokens, without their texts."""
    columns = (tokens.c.id, users.c.name.label("user"), tokens.c.scope)
    times = (tokens.c.created_at, tokens.c.revoked_at)
    query = select(*columns, *times).join(users, users.c.id == tokens.c.user_id).order_by(tokens.c.id)
    found = connection.execute(query).mappings()
    return [{**row, **{column.name: iso_time(row[column]) for column in times}} for row in found]


def revoke_token(connection: Connection, number: int) -> None:
    """Make a token invalid."""
    revoked = func.coalesce(tokens.c.revoked_at, now())
    done = connection.execute(update(tokens).where(tokens.c.id == number).values(revoked_at=revoked))
    if not done.rowcount:
        raise Refused(404, f"no token has the number {number}")


def authenticate(connection: Connection, text: str) -> Principal | None:
    """The user of a valid token."""
    if not _TOKEN.fullmatch(text):
        return None
    query = (
        select(users.c.id, users.c.name, tokens.c.scope, tokens.c.id.label("token_id"))
        .join(users, users.c.id == tokens.c.user_id)
        .where(tokens.c.hash == _hash(text), tokens.c.revoked_at.is_(None))
    )
    row = connection.execute(query).first()
    return None if row is None else Principal(row.id, row.name, Role(row.scope), row.token_id)


def check_token(connection: Connection, token_id: int | None) -> None:
    """Refuse a request whose token was revoked while its body arrived, or while it waited."""
    is_valid = (tokens.c.id == token_id) & tokens.c.revoked_at.is_(None)
    if token_id is not None and connection.execute(select(tokens.c.id).where(is_valid)).first() is None:
        raise Refused(401, "the token was revoked meanwhile; ask a maintainer for one")


def _hash(token: str) -> str:
    """The hash of a token, which has 256 random bits: no slow hash is needed."""
    return hashlib.sha256(token.encode()).hexdigest()


# -- the audit log -----------------------------------------------------------------------------------


def add_entry(connection: Connection, user: str, address: str, action: str, subject: str, detail: str) -> None:
    """Add an entry to the audit log."""
    who = {"user": user, "address": address[:100]}
    what = {"action": action, "subject": subject[:200], "detail": detail[:2000]}
    connection.execute(insert(audit).values(at=now(), **who, **what))
