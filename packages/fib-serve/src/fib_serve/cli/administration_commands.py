"""Commands for maintainers: users, tokens, rejected results, the audit log. They write to the database directly."""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
from sqlalchemy import Connection

from ..database import migrate, open_database
from ..errors import InvalidSetting
from ..queue.rejecting import reject, restore
from ..settings import Settings, make_state
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
from ..users.roles import Principal, Role
from .commands import Commands, add_command, state_of
from .printing import print_json, print_table, say

_DAY_SECONDS = 86_400.0


def add_administration(commands: Commands) -> None:
    """Add the commands."""
    users = commands.add_parser("user", help="list and change accounts").add_subparsers(required=True)
    listing = add_command(users, "list", _list_users, "all accounts")
    listing.add_argument("--json", action="store_true")
    change = add_command(users, "change", _change_user, "change an account")
    change.add_argument("--user", required=True)
    change.add_argument("--role", type=Role, choices=list(Role))
    change.add_argument("--active", dest="is_active", action=argparse.BooleanOptionalAction, default=None)
    change.add_argument("--weight", type=float, help="share of turns; 1 is normal")
    for option in ("--max-running", "--max-queued", "--max-per-day"):
        change.add_argument(option, type=int)
    tokens = commands.add_parser("token", help="create, list and revoke tokens").add_subparsers(required=True)
    create = add_command(tokens, "create", _create_token, "make a token, and the account if there is none")
    create.add_argument("--user", required=True)
    create.add_argument("--scope", choices=[role.value for role in Role], default=Role.SUBMITTER.value)
    create.add_argument("--label", default="", help="a note")
    create.add_argument("--days", type=float, help="days after which it expires")
    add_command(tokens, "list", _list_tokens, "all tokens, without their texts").add_argument(
        "--json", action="store_true"
    )
    add_command(tokens, "revoke", _revoke_token, "make a token invalid").add_argument("number", type=int)
    rejecting = add_command(commands, "reject", _reject, "reject a result: it stays visible, and does not rank")
    rejecting.add_argument("submission")
    rejecting.add_argument("--reason", required=True)
    add_command(commands, "unreject", _restore, "undo a rejection").add_argument("submission")
    add_command(commands, "audit", _audit, "the newest entries of the audit log").add_argument(
        "--json", action="store_true"
    )


@contextmanager
def opened(arguments: argparse.Namespace, *, make: bool = False) -> Iterator[Connection]:
    """A write transaction on the database of a service.

    Raises:
        InvalidSetting: There is no database, and none is to be made.
    """
    settings = _settings(arguments)
    if settings.database is not None:
        make_state(Path(settings.state))  # with the file that writers lock
    elif not settings.has_database:
        if not make:
            raise InvalidSetting("DATASET", f"no database at {settings.database_path}; start the service first")
        if not Path(arguments.dataset).is_dir():
            raise InvalidSetting("DATASET", f"there is no folder {arguments.dataset}")
        make_state(Path(settings.state))
    database = open_database(settings)
    try:
        migrate(database)
        with database.write() as connection:
            yield connection
    finally:
        database.close()


def _settings(arguments: argparse.Namespace) -> Settings:
    dataset, state = str(Path(arguments.dataset).resolve()), str(state_of(arguments))
    return Settings(dataset=dataset, state=state, database=arguments.database)


def _operator() -> Principal:
    """The principal of commands: an account that may write to the database."""
    return Principal(0, "(command line)", Role.MAINTAINER, getpass.getuser())


def _list_users(arguments: argparse.Namespace) -> int:
    with opened(arguments) as connection:
        rows = [attrs.asdict(user) for user in list_users(connection)]
    if arguments.json:
        print_json(rows)
    else:
        print_table(("name", "role", "is_active", "weight", "max_running", "max_queued", "max_per_day"), rows)
    return 0


def _change_user(arguments: argparse.Namespace) -> int:
    limits = Limits(**{field.name: getattr(arguments, field.name) for field in attrs.fields(Limits)})
    changed = {name: value for name, value in attrs.asdict(limits).items() if value is not None}
    if not changed:
        raise InvalidSetting("OPTIONS", "nothing to change; pass one, such as --role reader or --no-active")
    with opened(arguments) as connection:
        change_user(connection, arguments.user, limits)
        add_entry(connection, _operator(), "change user", arguments.user, str(changed))
    say(f"changed {arguments.user}: {', '.join(f'{name} {value}' for name, value in changed.items())}")
    return 0


def _create_token(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    with opened(arguments, make=True) as connection:
        user = find_user(connection, arguments.user)
        if user is None:
            user = create_user(connection, arguments.user, Role(arguments.scope), settings)
            add_entry(connection, _operator(), "create user", user.name, f"role {user.role}")
        seconds = None if arguments.days is None else arguments.days * _DAY_SECONDS
        number, text = create_token(connection, user, Role(arguments.scope), arguments.label, seconds)
        add_entry(connection, _operator(), "create token", str(number), f"user {user.name}, scope {arguments.scope}")
    say(f"token {number} of {user.name}, scope {arguments.scope}; it is shown only now:")
    print(text)
    return 0


def _list_tokens(arguments: argparse.Namespace) -> int:
    with opened(arguments) as connection:
        rows = [attrs.asdict(token) for token in list_tokens(connection)]
    if arguments.json:
        print_json(rows)
    else:
        print_table(("id", "user", "scope", "label", "created_at", "expires_at", "revoked_at"), rows)
    return 0


def _revoke_token(arguments: argparse.Namespace) -> int:
    with opened(arguments) as connection:
        revoke_token(connection, arguments.number)
        add_entry(connection, _operator(), "revoke token", str(arguments.number))
    return 0


def _reject(arguments: argparse.Namespace) -> int:
    with opened(arguments) as connection:
        reject(connection, arguments.submission, arguments.reason)
        add_entry(connection, _operator(), "reject", arguments.submission, arguments.reason)
    return 0


def _restore(arguments: argparse.Namespace) -> int:
    with opened(arguments) as connection:
        restore(connection, arguments.submission)
        add_entry(connection, _operator(), "restore", arguments.submission)
    return 0


def _audit(arguments: argparse.Namespace) -> int:
    with opened(arguments) as connection:
        rows = [attrs.asdict(entry) for entry in list_entries(connection, None, 100)]
    if arguments.json:
        print_json(rows)
    else:
        print_table(("at", "user", "address", "action", "subject", "detail"), rows)
    return 0
