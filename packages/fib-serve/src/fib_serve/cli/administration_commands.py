"""Commands for maintainers: users, tokens, rejected results, the audit log. They write to the database directly."""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from ..database import Database, make_tables
from ..errors import InvalidSetting
from ..settings import Settings, make_state
from ..submissions import reject
from ..users import (
    LIMITS,
    Role,
    add_entry,
    change_user,
    create_token,
    create_user,
    find_user,
    list_entries,
    list_tokens,
    list_users,
    revoke_token,
)
from .commands import Commands, add_command, base_settings, print_json, print_table, say

_DAY_SECONDS = 86_400.0


def add_administration(commands: Commands) -> None:
    """Add the commands."""
    users = commands.add_parser("user", help="list and change accounts").add_subparsers(required=True)
    _add_list(users, "list", list_users, "all accounts", ("name", "role", "is_active", *LIMITS))
    change = add_command(users, "change", _change_user, "change an account")
    change.add_argument("--user", required=True)
    change.add_argument("--role", type=Role, choices=list(Role))
    change.add_argument("--active", dest="is_active", action=argparse.BooleanOptionalAction, default=None)
    for limit in LIMITS:
        change.add_argument(f"--{limit.replace('_', '-')}", type=int)
    tokens = commands.add_parser("token", help="create, list and revoke tokens").add_subparsers(required=True)
    create = add_command(tokens, "create", _create_token, "make a token, and the account if there is none")
    create.add_argument("--user", required=True)
    create.add_argument("--scope", choices=[role.value for role in Role], default=Role.SUBMITTER.value)
    create.add_argument("--label", default="", help="a note")
    create.add_argument("--days", type=float, help="days after which it expires")
    of_tokens = ("id", "user", "scope", "label", "created_at", "expires_at", "revoked_at")
    _add_list(tokens, "list", list_tokens, "all tokens, without their texts", of_tokens)
    add_command(tokens, "revoke", _revoke_token, "make a token invalid").add_argument("number", type=int)
    rejecting = add_command(commands, "reject", _reject, "reject a result: it stays visible, and does not rank")
    rejecting.add_argument("submission")
    rejecting.add_argument("--reason", required=True)
    add_command(commands, "unreject", _restore, "undo a rejection").add_argument("submission")
    columns = ("at", "user", "address", "action", "subject", "detail")
    _add_list(commands, "audit", list_entries, "the newest entries of the audit log", columns)


def _add_list(
    commands: Commands,
    name: str,
    read: Callable[[Connection], Sequence[dict[str, Any]]],
    text: str,
    columns: tuple[str, ...],
) -> None:
    """Add a command that prints rows of the database."""

    def run(arguments: argparse.Namespace) -> int:
        with _opened(arguments) as connection:
            rows = read(connection)
        if arguments.json:
            print_json(rows)
        else:
            print_table(columns, rows)
        return 0

    add_command(commands, name, run, text).add_argument("--json", action="store_true")


@contextmanager
def _writing(settings: Settings, *, may_make: bool = False) -> Iterator[Connection]:
    """A write transaction on the database of a service.

    Raises:
        InvalidSetting: There is no database, and none is to be made.
    """
    if not settings.database_path.exists():
        if not may_make:
            raise InvalidSetting("DATASET", f"no database at {settings.database_path}; start the service first")
        if not Path(settings.dataset).is_dir():
            raise InvalidSetting("DATASET", f"there is no folder {settings.dataset}")
        make_state(Path(settings.state))
    with closing(Database(settings.database_path)) as database:
        make_tables(database)
        with database.write() as connection:
            yield connection


@contextmanager
def _opened(arguments: argparse.Namespace) -> Iterator[Connection]:
    with _writing(base_settings(arguments)) as connection:
        yield connection


def _log(connection: Connection, action: str, subject: str, detail: str = "") -> None:
    """Add an entry to the audit log for an account that may write to the database."""
    add_entry(connection, "(command line)", getpass.getuser(), action, subject, detail)


def _change_user(arguments: argparse.Namespace) -> int:
    given = {name: getattr(arguments, name) for name in ("role", "is_active", *LIMITS)}
    changed = {name: value for name, value in given.items() if value is not None}
    if not changed:
        raise InvalidSetting("OPTIONS", "nothing to change; pass one, such as --role reader or --no-active")
    with _opened(arguments) as connection:
        change_user(connection, arguments.user, **changed)
        _log(connection, "change user", arguments.user, str(changed))
    say(f"changed {arguments.user}: {', '.join(f'{name} {value}' for name, value in changed.items())}")
    return 0


def _create_token(arguments: argparse.Namespace) -> int:
    settings, scope = base_settings(arguments), Role(arguments.scope)
    with _writing(settings, may_make=True) as connection:
        user = find_user(connection, arguments.user)
        if user is None:
            user = create_user(connection, arguments.user, scope, settings)
            _log(connection, "create user", user.name, f"role {user.role}")
        seconds = None if arguments.days is None else arguments.days * _DAY_SECONDS
        number, text = create_token(connection, user, scope, arguments.label, seconds)
        _log(connection, "create token", str(number), f"user {user.name}, scope {scope}")
    say(f"token {number} of {user.name}, scope {scope}; it is shown only now:")
    print(text)
    return 0


def _revoke_token(arguments: argparse.Namespace) -> int:
    with _opened(arguments) as connection:
        revoke_token(connection, arguments.number)
        _log(connection, "revoke token", str(arguments.number))
    return 0


def _reject(arguments: argparse.Namespace) -> int:
    with _opened(arguments) as connection:
        reject(connection, arguments.submission, arguments.reason)
        _log(connection, "reject", arguments.submission, arguments.reason)
    return 0


def _restore(arguments: argparse.Namespace) -> int:
    with _opened(arguments) as connection:
        reject(connection, arguments.submission, None)
        _log(connection, "restore", arguments.submission)
    return 0
