"""Checks of the machine, the files and the settings, each with its remedy, and the backup of the database."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import attrs
from fib_bench import probe_isolation
from fib_schema import FibError
from fib_schema.display import counted
from fib_schema.files import staged

from .contest import read_catalogs
from .database import VERSION, version_problem
from .errors import DatabaseUnusable, InvalidSetting
from .settings import Settings

_MIN_FREE_BYTES = 1 << 30


@attrs.frozen
class Diagnosis:
    """The result of one check."""

    check: str
    is_good: bool
    text: str
    """The finding, and the remedy if it is not good."""


def examine(settings: Settings) -> Iterator[Diagnosis]:
    """Run all checks; a check that fails does not stop the others."""
    checks: dict[str, Callable[[Settings], tuple[bool, str]]] = {
        "data sets": _check_data_sets,
        "state folder": _check_state,
        "database": _check_database,
        "disk": _check_disk,
        "sandbox": _check_sandbox,
    }
    for name, check in checks.items():
        try:
            yield Diagnosis(name, *check(settings))
        except (FibError, OSError, sqlite3.Error) as error:
            yield Diagnosis(name, is_good=False, text=str(error))


def _check_data_sets(settings: Settings) -> tuple[bool, str]:
    public, *hidden = read_catalogs(settings)
    if public.problems:
        return False, f"{counted(len(public.problems), 'problem')}; run `fib-bench validate {settings.dataset}`"
    empty = [name for name, workloads in public.workloads.items() if not workloads]
    if empty or not public.definitions:
        text = f"definitions without workloads: {', '.join(empty[:5])}" if empty else "there are no definitions"
        return False, f"{text}; nothing can be submitted for them"
    count = sum(len(group) for catalog in hidden for group in catalog.workloads.values())
    ranks = f"ranks by {counted(count, 'hidden workload')}" if hidden else "ranks by public workloads"
    return count > 0 or not hidden, f"{counted(len(public.definitions), 'definition')}; {ranks}"


def _check_state(settings: Settings) -> tuple[bool, str]:
    state = Path(settings.state)
    if not state.exists():
        return True, f"{state} will be made by the first start"
    mode = state.stat().st_mode & 0o777
    return mode == 0o700, f"{state} has the mode {mode:o}" + ("" if mode == 0o700 else f"; run `chmod 700 {state}`")


def _check_database(settings: Settings) -> tuple[bool, str]:
    if not settings.database_path.exists():
        return True, "it will be made by the first start"
    problem = _problem_of(settings.database_path)
    return not problem, f"{problem}" if problem else "consistent"


def _check_disk(settings: Settings) -> tuple[bool, str]:
    place = next(path for path in (Path(settings.state), *Path(settings.state).parents) if path.exists())
    free = shutil.disk_usage(place).free
    is_good = free > _MIN_FREE_BYTES
    return is_good, f"{free / 1e9:.1f} GB free at {place}" + ("" if is_good else "; make room")


def _check_sandbox(settings: Settings) -> tuple[bool, str]:
    if settings.executor == "ray":
        return True, "the service tries that of each node when it starts"
    private = [path for path in settings.private_paths if path.exists()]
    for device in settings.devices:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
            report = probe_isolation(device, private or [Path(other)], Path(folder))  # an empty folder, as a service's
        if report.level < settings.required_isolation or report.exposed:
            exposed = "".join(f"\nworkers could open {path}: move it" for path in report.exposed)
            return False, f"{device}: {report.text}{exposed}"
    return True, f"level {settings.required_isolation} on {', '.join(settings.devices)}"


def back_up(settings: Settings, target: Path) -> int:
    """Copy the database of a service, which may be running; returns the size in bytes.

    Raises:
        InvalidSetting: The target exists, or there is no database.
        DatabaseUnusable: The database is damaged.
    """
    if target.exists():
        raise InvalidSetting("BACKUP", f"{target} exists; name a new file")
    if not settings.database_path.exists():
        raise InvalidSetting("DATASET", f"no database at {settings.database_path}; start the service first")
    with staged(target) as copy:
        copy.touch(0o600)
        with closing(_open(settings.database_path)) as source, closing(sqlite3.connect(copy)) as destination:
            source.backup(destination)
        if problem := _problem_of(copy):
            raise DatabaseUnusable(str(settings.database_path), f"{problem}; use an earlier backup")
    return target.stat().st_size


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def _problem_of(path: Path) -> str:
    """The reason why a file is not a database that this service can use; empty if it is."""
    with closing(_open(path)) as connection:
        try:
            found = str(connection.execute("PRAGMA integrity_check").fetchone()[0])
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = connection.execute("SELECT name FROM sqlite_master WHERE name = 'submissions'").fetchall()
        except sqlite3.DatabaseError as error:
            return f"it is damaged: {error}; restore a backup"
    if found != "ok":
        return f"it is damaged: {found}; restore a backup"
    if not tables:
        return "it is not a database of fib-serve: it has no submissions"
    return "" if version == VERSION else version_problem(version)
