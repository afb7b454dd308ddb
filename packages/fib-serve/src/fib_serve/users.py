"""Users: accounts, roles, tokens, and the audit log of changes.

Each role allows what the earlier ones allow; a token has the role of its scope, at most that of its user. The database
has only hashes of tokens, and a token is shown once, when it is made. Entries of the audit log are added in the
transaction of the change.
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
from .settings import Settings

LOCAL_USER = "local"
"""The user of all requests to a service without tokens."""
LIMITS = ("max_running", "max_queued", "max_per_day")
"""The limits of an account."""
_LARGEST_LIMIT = 1_000_000
_NEWEST = 100
_USER_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,38}", re.ASCII)
"""Names of users: they become folder names of the data set."""
_TOKEN = re.compile(r"fib_[A-Za-z0-9_-]{43}", re.ASCII)
_RESERVED = ("workloads",)
"""No user has these names: they are folders of older data sets."""


class Role(StrEnum):
    """Role of a user, or scope of a token."""

    READER = "reader"
    """Read leaderboards and the public parts of submissions."""
    SUBMITTER = "submitter"
    """Submit, and see its own sources, logs and traces."""
    MAINTAINER = "maintainer"
    """Manage users, see everything but hidden workloads, reject results, stop the service."""

    @property
    def rank(self) -> int:
        """Its place, the weakest first."""
        return list(Role).index(self)


@attrs.frozen
class Principal:
    """The user of a request, with the role that its token gives."""

    user_id: int
    name: str
    role: Role

    def require(self, role: Role) -> None:
        """Reject a weaker role.

        Raises:
            Refused: The role is weaker.
        """
        if self.role.rank < role.rank:
            raise Refused(403, f"this needs the role {role}, and your token has {self.role}; ask a maintainer")

    def may_see(self, owner_id: int) -> bool:
        """Whether sources, logs and traces of a user's submissions may be seen."""
        return self.role is Role.MAINTAINER or (self.role is Role.SUBMITTER and self.user_id == owner_id)


@attrs.frozen
class User:
    """One account."""

    id: int
    name: str
    role: Role
    is_active: bool
    max_running: int
    max_queued: int
    max_per_day: int


_USERS = select(*(users.c[field.name] for field in attrs.fields(User)))


def create_user(connection: Connection, name: str, role: Role, settings: Settings) -> User:
    """Add an account.

    Raises:
        Refused: The name is not a name of a user; it exists.
    """
    if not _USER_NAME.fullmatch(name) or name in _RESERVED:
        raise Refused(422, f"user name {name!r}: use 1 to 39 lower-case letters, digits and '-', such as 'team-7'")
    if find_user(connection, name) is not None:
        raise Refused(409, f"user {name!r} exists already")
    limits = {limit: getattr(settings, limit) for limit in LIMITS}
    connection.execute(insert(users).values(name=name, role=role, is_active=True, created_at=now(), **limits))
    return change_user(connection, name)


def change_user(connection: Connection, name: str, **values: Any) -> User:
    """Change an account: its `role`, `is_active`, or `LIMITS`.

    Raises:
        Refused: There is no such user; a limit is out of bounds.
    """
    for limit in LIMITS:
        if not 0 <= values.get(limit, 0) <= _LARGEST_LIMIT:
            raise Refused(422, f"{limit}: must be from 0 to {_LARGEST_LIMIT}, got {values[limit]}")
    if values:
        connection.execute(update(users).where(users.c.name == name).values(**values))
    return get_user(connection, name)


def get_user(connection: Connection, name: str) -> User:
    """The account of that name.

    Raises:
        Refused: There is none.
    """
    user = find_user(connection, name)
    if user is None:
        raise Refused(404, f"no user is named {name!r}")
    return user


def find_user(connection: Connection, name: str) -> User | None:
    """The account of that name."""
    row = connection.execute(_USERS.where(users.c.name == name)).mappings().first()
    return None if row is None else User(**{**row, "role": Role(row["role"])})


def list_users(connection: Connection) -> list[dict[str, Any]]:
    """All accounts by name."""
    return [dict(row) for row in connection.execute(_USERS.order_by(users.c.name)).mappings()]


def local_principal(database: Database, settings: Settings) -> Principal:
    """The only user of a service without tokens, who may do everything."""
    with database.write() as connection:
        user = find_user(connection, LOCAL_USER)
        if user is None:
            create_user(connection, LOCAL_USER, Role.MAINTAINER, settings)
            user = change_user(connection, LOCAL_USER, **dict.fromkeys(LIMITS, _LARGEST_LIMIT))
    return Principal(user.id, user.name, Role.MAINTAINER)


# -- tokens ------------------------------------------------------------------------------------------


def create_token(
    connection: Connection, user: User, scope: Role, label: str, expires_in_seconds: float | None = None
) -> tuple[int, str]:
    """Make a token; returns its number and its text, which cannot be read again.

    Raises:
        Refused: The scope is more than the user's role.
    """
    if scope.rank > user.role.rank:
        raise Refused(422, f"scope {scope}: user {user.name!r} has only the role {user.role}")
    text = "fib_" + secrets.token_urlsafe(32)
    time = now()
    key = connection.execute(
        insert(tokens).values(
            user_id=user.id,
            label=label[:100],
            scope=scope,
            hash=_hash(text),
            created_at=time,
            expires_at=None if expires_in_seconds is None else time + expires_in_seconds,
        )
    ).inserted_primary_key
    assert key is not None
    return int(key[0]), text


def list_tokens(connection: Connection) -> list[dict[str, Any]]:
    """All tokens, without their texts."""
    columns = (tokens.c.id, users.c.name.label("user"), tokens.c.scope, tokens.c.label)
    times = (tokens.c.created_at, tokens.c.expires_at, tokens.c.revoked_at)
    query = select(*columns, *times).join(users, users.c.id == tokens.c.user_id).order_by(tokens.c.id)
    found = connection.execute(query).mappings()
    return [{**row, **{column.name: iso_time(row[column]) for column in times}} for row in found]


def revoke_token(connection: Connection, number: int) -> None:
    """Make a token invalid.

    Raises:
        Refused: There is no such token.
    """
    revoked = func.coalesce(tokens.c.revoked_at, now())
    done = connection.execute(update(tokens).where(tokens.c.id == number).values(revoked_at=revoked))
    if not done.rowcount:
        raise Refused(404, f"no token has the number {number}")


def authenticate(connection: Connection, text: str) -> Principal | None:
    """The user of a valid token."""
    if not _TOKEN.fullmatch(text):
        return None
    query = (
        select(users.c.id, users.c.name, users.c.role, tokens.c.scope, tokens.c.expires_at)
        .join(users, users.c.id == tokens.c.user_id)
        .where(tokens.c.hash == _hash(text), tokens.c.revoked_at.is_(None), users.c.is_active)
    )
    row = connection.execute(query).first()
    if row is None or (row.expires_at is not None and row.expires_at < now()):
        return None
    role = min(Role(row.role), Role(row.scope), key=lambda role: role.rank)
    return Principal(row.id, row.name, role)


def _hash(token: str) -> str:
    """The hash of a token, which has 256 random bits: no slow hash is needed."""
    return hashlib.sha256(token.encode()).hexdigest()


# -- the audit log -----------------------------------------------------------------------------------


def add_entry(connection: Connection, user: str, address: str, action: str, subject: str, detail: str) -> None:
    """Add an entry to the audit log."""
    who = {"user": user, "address": address[:100]}
    what = {"action": action, "subject": subject[:200], "detail": detail[:2000]}
    connection.execute(insert(audit).values(at=now(), **who, **what))


def list_entries(connection: Connection) -> list[dict[str, Any]]:
    """The newest entries of the audit log first."""
    query = select(audit).order_by(audit.c.id.desc()).limit(_NEWEST)
    return [{**row, "at": iso_time(row["at"])} for row in connection.execute(query).mappings()]
