"""Commands of operators: run a service, make tokens, reject submissions. All but `run` write to the database."""

from __future__ import annotations

import argparse
import getpass
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
from fib_bench.cli.options import default_device, names_of
from fib_bench.config.model import with_device_numbers
from fib_schema.command import CommandParser
from sqlalchemy import Connection

from ..database import Database
from ..errors import InvalidSetting
from ..settings import EXECUTORS, LOG_LEVELS, STRONGEST, Settings, default_state, make_state
from ..submissions import reject, remove_user, unreject
from ..users import Role, add_entry, create_token, list_tokens, revoke_token
from .client_commands import Commands, print_table, say

_EVALUATION = (
    ("--timeout", "timeout_seconds", float, "bound on one build and on each step of an evaluation, in seconds"),
    ("--warmup-runs", "warmup_runs", int, "calls before timing"),
    ("--iterations", "iterations", int, "calls to time at least"),
    ("--num-trials", "num_trials", int, "input sets with different values"),
    ("--measure-seconds", "measure_seconds", float, "cap on timing one function on one workload, in seconds"),
    ("--cpu-processes", "cpu_processes", int, "processes that time a function on the CPU, one after the other"),
    ("--rtol", "rtol", float, "relative error that an element may have, and"),
    ("--atol", "atol", float, "absolute error: it is wrong beyond both"),
)
_FIELDS = {field.name: field for field in attrs.fields(Settings)}
_OF_FOLDERS = frozenset({"dataset", "state", "hidden"})
_UNLIMITED = dict.fromkeys(("max_running", "max_per_day"), 1_000_000)


def declare_token(token: CommandParser) -> None:
    """Declare the commands about tokens."""
    tokens = token.add_subparsers(required=True)
    create = _add(tokens, "create", _create_token, "make a token of a user, who may be new")
    create.add_argument("--user", required=True)
    create.add_argument("--scope", choices=[role.value for role in Role], default=Role.SUBMITTER.value)
    _add(tokens, "list", _list_tokens, "all tokens, without their texts")
    _add(tokens, "revoke", _revoke_token, "make a token invalid").add_argument("number", type=int)


def declare_reject(parser: CommandParser) -> None:
    """Declare the command ``reject``."""
    _declare_change(parser, "reject", reject, "ID", "its page and `fib-serve leaderboard` show the id")


def declare_unreject(parser: CommandParser) -> None:
    """Declare the command ``unreject``."""
    _declare_change(parser, "unreject", lambda connection, done, _: unreject(connection, done), "ID", "of a result")


def declare_remove(parser: CommandParser) -> None:
    """Declare the command ``remove``."""
    _declare_change(parser, "remove user", remove_user, "USER", "the name of the user")


def _declare_change(
    parser: CommandParser, action: str, change: Callable[[Connection, str, str], None], subject: str, text: str
) -> None:
    """Declare a command that changes a submission or a user for a reason, and adds it to the audit log."""

    def run(arguments: argparse.Namespace) -> int:
        with _opened(arguments) as connection:
            change(connection, arguments.subject, arguments.reason)
            _log(connection, action, arguments.subject, arguments.reason)
        return 0

    _declare(parser, run).add_argument("subject", metavar=subject, help=text)
    parser.add_argument("--reason", metavar="TEXT", required=True, help="that of a rejection is shown to everybody")


def _add(commands: Commands, name: str, run: Callable[[argparse.Namespace], int], text: str) -> CommandParser:
    return _declare(commands.add_parser(name, help=text), run)


def _declare(parser: CommandParser, run: Callable[[argparse.Namespace], int]) -> CommandParser:
    """Declare a command on the data set of a service; options that are not given have no values."""
    parser.argument_default = argparse.SUPPRESS
    parser.add_argument("dataset", metavar="DATASET", help="the data set of the service; its workloads are public")
    parser.add_argument("--state", metavar="DIR", help="the folder of the service (default: DATASET.fib-serve)")
    parser.set_defaults(command=run)
    return parser


def _settings(arguments: argparse.Namespace, **more: Any) -> Settings:
    """The settings of a service, with paths that do not depend on the current folder."""
    given = {name: str(Path(path).resolve()) for name, path in vars(arguments).items() if name in _OF_FOLDERS}
    for name in given.keys() - {"state"}:
        if not Path(given[name]).is_dir():
            raise InvalidSetting(name, f"there is no folder {given[name]}; `fib-bench new definition` makes a data set")
    return Settings(**{"state": str(default_state(Path(given["dataset"]))), **given, **more})


# -- run ---------------------------------------------------------------------------------------------


def declare_run(parser: CommandParser) -> None:
    """Declare the command ``run``, whose options have the names of the settings."""
    _declare(parser, _run)
    _add_devices(parser)
    parser.add_argument("--host", help=f"the address to listen on (default: {_FIELDS['host'].default})")
    parser.add_argument("--port", type=int, help=f"0 for any free one (default: {_FIELDS['port'].default})")
    parser.add_argument("--proxy", metavar="ADDRESS", help="trust X-Forwarded-For and -Proto of this reverse proxy")
    parser.add_argument(
        "--no-auth",
        dest="has_auth",
        action="store_false",
        help="no tokens: everybody on this machine may do everything",
    )
    parser.add_argument(
        "--public-pages", dest="has_public_pages", action="store_true", help="let everybody read leaderboards"
    )
    parser.add_argument("--publish-sources", action="store_true", help="let all readers see all sources")
    parser.add_argument("--allow-unranked", action="store_true", help="rank latencies without trusted timing (CPU) too")
    parser.add_argument("--title", help="the title of the page of the contest")
    parser.add_argument("--rules", metavar="FILE", type=_text_of, help="a text file: the rules on that page")
    parser.add_argument(
        "--deadline", metavar="TIME", type=_time_of, help="takes nothing after it, such as 2026-12-31T18:00Z"
    )
    parser.add_argument("--submission-seconds", type=float, help="bound on one submission")
    parser.add_argument("--max-running", type=int, help="submissions of one user that run at a time")
    parser.add_argument("--max-per-day", type=int, help="submissions of one user in 24 hours")
    parser.add_argument("--log-level", choices=LOG_LEVELS)
    group = parser.add_argument_group("settings of all evaluations, above those of the data set")
    for option, name, kind, text in _EVALUATION:
        group.add_argument(option, dest=name, type=kind, metavar="N", help=text)


def _add_devices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hidden", metavar="DIR", help="a data set of hidden workloads, on which submissions rank")
    parser.add_argument(
        "--devices",
        nargs="+",
        metavar="NAME",
        help="such as cpu or cuda:0,cuda:1 (default: the first); with Ray the kind of all devices: cpu or cuda:0",
    )
    parser.add_argument("--executor", choices=EXECUTORS, help=f"where the devices are (default: {EXECUTORS[0]})")
    parser.add_argument("--address", help="address of the Ray cluster (default: a new one on this machine)")
    parser.add_argument(
        "--allow-isolation",
        type=int,
        dest="required_isolation",
        choices=range(STRONGEST + 1),
        metavar="LEVEL",
        help=f"accept a weaker sandbox than level {STRONGEST}",
    )


def _time_of(text: str) -> datetime:
    with suppress(ValueError):
        if (found := datetime.fromisoformat(text)).tzinfo is not None:
            return found
    raise argparse.ArgumentTypeError(f"{text!r} is no time with a zone; write one such as 2026-12-31T18:00Z")


def _text_of(path: str) -> str:
    return Path(path).read_text("utf-8")


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The settings that the options give.

    Raises:
        InvalidSetting: Options are wrong or contradict each other.
    """
    given = vars(arguments)
    fields = {} if given.get("has_auth", True) else dict[str, Any](_UNLIMITED)
    fields |= {name: value for name, value in given.items() if name in _FIELDS and name not in _OF_FOLDERS}
    fields["devices"] = with_device_numbers(names_of(given.get("devices"))) or (default_device(),)
    fields["evaluation"] = {name: given[name] for _, name, *_ in _EVALUATION if name in given}
    return _settings(arguments, **fields)


def _run(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    if not settings.has_auth:
        say("no tokens: every program on this machine may submit, read and stop the service (--no-auth)")
    elif not settings.database_path.exists():
        state = f" --state {arguments.state}" if "state" in arguments else ""
        say("nobody has a token yet; make the first one with")
        say(f"  fib-serve token create {arguments.dataset} --user NAME --scope maintainer{state}")
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.create_server((settings.host, settings.port), family=family, backlog=2048) as listener:
        from ..service import run  # clients can connect while it is imported

        return run(settings, listener)


# -- the database ------------------------------------------------------------------------------------


@contextmanager
def _opened(arguments: argparse.Namespace, *, may_make: bool = False) -> Iterator[Connection]:
    """A write transaction on a service's database; `InvalidSetting` if there is none, and none is to be made."""
    settings = _settings(arguments)
    if not settings.database_path.exists():
        if not may_make:
            raise InvalidSetting("DATASET", f"no database at {settings.database_path}; start the service first")
        make_state(Path(settings.state))
    with closing(Database(settings.database_path)) as database, database.write() as connection:
        yield connection


def _log(connection: Connection, action: str, subject: str, detail: str = "") -> None:
    """Add an entry to the audit log for an account that may write to the database."""
    add_entry(connection, "(command line)", getpass.getuser(), action, subject, detail)


def _create_token(arguments: argparse.Namespace) -> int:
    scope = Role(arguments.scope)
    with _opened(arguments, may_make=True) as connection:
        number, text = create_token(connection, arguments.user, scope)
        _log(connection, "create token", str(number), f"user {arguments.user}, scope {scope}")
    say(f"token {number} of {arguments.user}, scope {scope}; it is shown only now:")
    print(text)
    return 0


def _list_tokens(arguments: argparse.Namespace) -> int:
    with _opened(arguments) as connection:
        print_table(("id", "user", "scope", "created_at", "revoked_at"), list_tokens(connection))
    return 0


def _revoke_token(arguments: argparse.Namespace) -> int:
    with _opened(arguments) as connection:
        revoke_token(connection, arguments.number)
        _log(connection, "revoke token", str(arguments.number))
    return 0
