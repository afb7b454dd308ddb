"""The command ``run``: options, and their conversion to settings."""

from __future__ import annotations

import argparse
from pathlib import Path

import attrs
from fib_bench.cli.options import default_device, names_of
from fib_bench.config.benchmark import with_device_numbers
from fib_schema import DataSetNotFound

from ..database import open_database
from ..errors import InvalidSetting
from ..logs import LEVELS
from ..operation.supervisor import Supervisor
from ..settings import EXECUTORS, OIDC_SECRET_VARIABLE, STRONGEST, Settings
from ..users.roles import Role
from .commands import Commands, add_state_option, state_of
from .printing import say

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


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a service on a Ray cluster."""
    parser.add_argument("--executor", choices=EXECUTORS, help=f"where the workers run (default: {EXECUTORS[0]})")
    parser.add_argument("--address", help="address of the Ray cluster (default: a new one on this machine)")


def add_run(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("run", help="start the service: API, queue, workers and pages")
    parser.add_argument("dataset", metavar="DATASET", help="the data set; its workloads are public")
    add_state_option(parser)
    parser.add_argument("--hidden", metavar="DIR", help="a data set of hidden workloads, on which submissions rank")
    parser.add_argument(
        "--devices",
        nargs="+",
        metavar="NAME",
        help="such as cpu or cuda:0,cuda:1 (default: the first); with Ray the kind of all devices: cpu or cuda:0",
    )
    add_cluster_options(parser)
    parser.add_argument(
        "--concurrency",
        type=int,
        metavar="N",
        help="submissions in evaluation on each GPU, one of which times a pass (default: by the number of cores)",
    )
    parser.add_argument("--host", help=f"the address to listen on (default: {_DEFAULTS['host']})")
    parser.add_argument("--port", type=int, help=f"0 for any free one (default: {_DEFAULTS['port']})")
    parser.add_argument("--no-auth", action="store_true", help="no tokens: everybody on this machine may do everything")
    parser.add_argument("--public-pages", action="store_true", help="let everybody read leaderboards")
    parser.add_argument("--publish-sources", action="store_true", help="let all readers see all sources")
    parser.add_argument("--allow-unranked", action="store_true", help="rank latencies without trusted timing (CPU) too")
    parser.add_argument("--allow-isolation", type=int, choices=range(STRONGEST + 1), metavar="LEVEL",
                        help=f"accept a weaker sandbox than level {STRONGEST}")  # fmt: skip
    parser.add_argument("--submission-seconds", type=float, help="bound on one submission")
    parser.add_argument("--drain-seconds", type=float, help="wait for running evaluations at the end")
    parser.add_argument("--max-body-bytes", type=int, help="the largest request")
    parser.add_argument("--max-running", type=int, help="submissions of one user that run at a time")
    parser.add_argument("--max-queued", type=int, help="submissions of one user that wait")
    parser.add_argument("--max-per-day", type=int, help="submissions of one user in 24 hours")
    parser.add_argument("--requests-per-second", type=float, help="requests of one user")
    parser.add_argument("--log-level", choices=LEVELS)
    login = parser.add_argument_group("login to the pages through an OpenID Connect provider (off by default)")
    login.add_argument(
        "--oidc-issuer", metavar="URL", help=f"the provider; the client's secret is {OIDC_SECRET_VARIABLE}"
    )
    login.add_argument("--oidc-client-id", metavar="ID", help="the service's name at the provider")
    login.add_argument("--oidc-role", choices=[role.value for role in Role], help="of new accounts (default: reader)")
    login.add_argument("--public-url", metavar="URL", help="address of the pages, called at login/oidc/callback")
    group = parser.add_argument_group("settings of all evaluations, above those of the data set")
    for option, name, kind, text in _EVALUATION:
        group.add_argument(option, dest=name, type=kind, metavar="N", help=text)
    parser.set_defaults(command=_run)


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The settings that the options give.

    Raises:
        InvalidSetting: Options are wrong or contradict each other.
    """
    given = {name: getattr(arguments, name, None) for name in _DEFAULTS}
    fields = {name: value for name, value in given.items() if value is not None}
    fields["dataset"] = str(Path(arguments.dataset).resolve())
    fields["state"] = str(state_of(arguments))
    if arguments.hidden is not None:
        fields["hidden"] = str(Path(arguments.hidden).resolve())
    fields["devices"] = with_device_numbers(names_of(arguments.devices)) or (default_device(),)
    fields["has_auth"] = not arguments.no_auth
    fields["has_public_pages"] = arguments.public_pages
    if arguments.allow_isolation is not None:
        fields["required_isolation"] = arguments.allow_isolation
    evaluation = {name: getattr(arguments, name) for _, name, *_ in _EVALUATION}
    fields["evaluation"] = {name: value for name, value in evaluation.items() if value is not None}
    _check_numbers(fields)
    return Settings(**fields)


def _check_numbers(fields: dict[str, object]) -> None:
    for name, value in fields.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and name not in {"port", "required_isolation"} and not 0 < value < 1e12:  # type: ignore[operator]
            raise InvalidSetting(f"--{name.replace('_', '-')}", f"must be greater than 0 and finite, got {value}")
    if not 0 <= int(str(fields.get("port", 0))) < 1 << 16:
        raise InvalidSetting("--port", f"must be from 0 to 65535, got {fields['port']}")


def _run(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    if not Path(settings.dataset).is_dir():
        raise DataSetNotFound(settings.dataset)
    if not settings.has_auth:
        say("no tokens: every program on this machine may submit, read and stop the service (--no-auth)")
    elif not has_users(settings):
        say("nobody has a token yet; make the first one with")
        say(f"  fib-serve token create {arguments.dataset} --user NAME --scope maintainer")
    return Supervisor(settings).run()


def has_users(settings: Settings) -> bool:
    """Whether the database has an account."""
    if not settings.has_database:
        return False
    from sqlalchemy import inspect, select

    from ..database.tables import users

    database = open_database(settings)
    try:
        with database.read() as connection:
            return inspect(connection).has_table("users") and connection.execute(select(users.c.id)).first() is not None
    finally:
        database.close()
