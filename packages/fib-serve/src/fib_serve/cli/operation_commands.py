"""Commands for the operation of a service: backup, restore, retention, doctor."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import attrs
from fib_bench.cli.options import default_device, names_of
from fib_bench.config.benchmark import with_device_numbers

from ..database import migrate, open_database
from ..errors import InvalidSetting
from ..operation.backup import back_up, restore
from ..operation.doctor import examine
from ..operation.retention import prune
from ..operation.supervisor import locked
from ..settings import EXECUTORS, STRONGEST, Settings, make_state
from .commands import Commands, add_command, state_of
from .printing import print_json, say
from .run_command import add_cluster_options


def add_operation(commands: Commands) -> None:
    """Add the commands."""
    backup = add_command(commands, "backup", _back_up, "copy the database, also of a running service")
    backup.add_argument("target", type=Path, metavar="BACKUP", help="a new file")
    restoring = add_command(commands, "restore", _restore, "replace the database by a backup; the old one is kept")
    restoring.add_argument("backup", type=Path, metavar="BACKUP")
    pruning = add_command(commands, "prune", _prune, "remove old events and audit entries; submissions and traces stay")
    pruning.add_argument("--days", type=float, default=90.0, help="older than this (default: %(default)g)")
    doctor = add_command(commands, "doctor", _doctor, "check the machine, the files and the settings")
    doctor.add_argument("--hidden", metavar="DIR", help="the data set of hidden workloads")
    doctor.add_argument("--devices", nargs="+", metavar="NAME", help="such as cpu or cuda:0")
    add_cluster_options(doctor)
    doctor.add_argument("--allow-isolation", type=int, choices=range(STRONGEST + 1), default=STRONGEST, metavar="LEVEL")
    doctor.add_argument("--json", action="store_true")


def _settings(arguments: argparse.Namespace, **more: Any) -> Settings:
    dataset, state = str(Path(arguments.dataset).resolve()), str(state_of(arguments))
    return Settings(dataset=dataset, state=state, database=arguments.database, **more)


def _back_up(arguments: argparse.Namespace) -> int:
    size = back_up(_settings(arguments), arguments.target)
    say(f"wrote {arguments.target}, {size} bytes; copy the data set too: its traces are the results")
    return 0


def _restore(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    make_state(Path(settings.state))
    with locked(Path(settings.state)):
        kept = restore(settings, arguments.backup)
    say(f"restored {arguments.backup}" + (f"; the replaced database is {kept}" if kept else ""))
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    if not arguments.days >= 1:
        raise InvalidSetting("--days", f"must be at least 1, got {arguments.days:g}")
    if not settings.has_database:
        raise InvalidSetting("DATASET", f"no database at {settings.database_path}")
    database = open_database(settings)
    try:
        migrate(database)
        removed = prune(database, arguments.days)
    finally:
        database.close()
    say(f"removed {removed['events']} events and {removed['audit']} audit entries")
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    settings = _settings(
        arguments,
        hidden=None if arguments.hidden is None else str(Path(arguments.hidden).resolve()),
        devices=with_device_numbers(names_of(arguments.devices)) or (default_device(),),
        required_isolation=arguments.allow_isolation,
        executor=arguments.executor or EXECUTORS[0],
        address=arguments.address,
    )
    findings = list(examine(settings))
    if arguments.json:
        print_json([attrs.asdict(finding) for finding in findings])
    else:
        for finding in findings:
            print(f"{'ok ' if finding.is_good else 'BAD'} {finding.check}: {finding.text}")
    return 0 if all(finding.is_good for finding in findings) else 1
