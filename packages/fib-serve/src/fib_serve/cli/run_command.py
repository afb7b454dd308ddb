"""Command that runs a service."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
from fib_bench.cli.options import default_device, names_of
from fib_bench.config.benchmark import with_device_numbers
from fib_schema import DataSetNotFound
from sqlalchemy import select

from ..database import Database, make_tables, users
from ..errors import InvalidSetting
from ..settings import EXECUTORS, LOG_LEVELS, STRONGEST, Settings, listening
from .commands import Commands, add_command, base_settings, say

_EVALUATION = (
    ("--timeout", "timeout_seconds", float, "bound on one build and on each step of an evaluation, in seconds"),
    ("--warmup-runs", "warmup_runs", int, "calls before timing"),
    ("--iterations", "iterations", int, "calls to time at least"),
    ("--num-trials", "num_trials", int, "input sets with different values"),
    ("--measure-seconds", "measure_seconds", float, "cap on timing one function on one workload, in seconds"),
    ("--rtol", "rtol", float, "relative error that an element may have, and"),
    ("--atol", "atol", float, "absolute error: it is wrong beyond both"),
)
_DEFAULTS = {field.name: field.default for field in attrs.fields(Settings)}
_OF_PATHS = frozenset({"dataset", "state", "hidden"})


def add_run(commands: Commands) -> None:
    """Add the command ``run``."""
    parser = add_command(commands, "run", _run, "start the service: API, queue, devices and pages")
    _add_devices(parser)
    parser.add_argument(
        "--concurrency",
        type=int,
        metavar="N",
        help="submissions in evaluation on each GPU, one of which times a pass (default: by the number of cores)",
    )
    parser.add_argument("--host", help=f"the address to listen on (default: {_DEFAULTS['host']})")
    parser.add_argument("--port", type=int, help=f"0 for any free one (default: {_DEFAULTS['port']})")
    parser.add_argument("--proxy", metavar="ADDRESS", help="trust X-Forwarded-For and -Proto of this reverse proxy")
    parser.add_argument("--no-auth", action="store_true", help="no tokens: everybody on this machine may do everything")
    parser.add_argument("--public-pages", action="store_true", help="let everybody read leaderboards")
    parser.add_argument("--publish-sources", action="store_true", help="let all readers see all sources")
    parser.add_argument("--allow-unranked", action="store_true", help="rank latencies without trusted timing (CPU) too")
    parser.add_argument("--submission-seconds", type=float, help="bound on one submission")
    parser.add_argument("--max-body-bytes", type=int, help="the largest request")
    parser.add_argument("--max-running", type=int, help="submissions of one user that run at a time")
    parser.add_argument("--max-queued", type=int, help="submissions of one user that wait")
    parser.add_argument("--max-per-day", type=int, help="submissions of one user in 24 hours")
    parser.add_argument("--requests-per-second", type=float, help="requests of one user")
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


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The settings that the options give.

    Raises:
        InvalidSetting: Options are wrong or contradict each other.
    """
    given = {name: getattr(arguments, name, None) for name in _DEFAULTS if name not in _OF_PATHS}
    fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    fields["devices"] = with_device_numbers(names_of(arguments.devices)) or (default_device(),)
    fields["has_auth"] = not getattr(arguments, "no_auth", False)
    fields["has_public_pages"] = getattr(arguments, "public_pages", False)
    evaluation = {name: getattr(arguments, name, None) for _, name, *_ in _EVALUATION}
    fields["evaluation"] = {name: value for name, value in evaluation.items() if value is not None}
    for name, value in fields.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and name not in {"port", "required_isolation"} and not 0 < value < 1e12:
            raise InvalidSetting(f"--{name.replace('_', '-')}", f"must be greater than 0 and finite, got {value}")
    if not 0 <= fields.get("port", 0) < 1 << 16:
        raise InvalidSetting("--port", f"must be from 0 to 65535, got {fields['port']}")
    return base_settings(arguments, **fields)


def _run(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    if not Path(settings.dataset).is_dir():
        raise DataSetNotFound(settings.dataset)
    if not settings.has_auth:
        say("no tokens: every program on this machine may submit, read and stop the service (--no-auth)")
    elif not _has_users(settings):
        say("nobody has a token yet; make the first one with")
        say(f"  fib-serve token create {arguments.dataset} --user NAME --scope maintainer")
    with listening(settings) as listener:  # clients can connect while the rest is imported
        from ..service import run

        return run(settings, listener)


def _has_users(settings: Settings) -> bool:
    """Whether the database has an account."""
    if not settings.database_path.exists():
        return False
    with closing(Database(settings.database_path)) as database:
        make_tables(database)
        with database.read() as connection:
            return connection.execute(select(users.c.id)).first() is not None
