"""Doctor: checks of the machine, the files and the settings, each with its remedy."""

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

from ..catalog import Catalog, check_hidden
from ..database import open_database
from ..database.migrate import problem_of_tables
from ..settings import Settings

_MIN_FREE_BYTES = 1 << 30


@attrs.frozen
class Finding:
    """The result of one check."""

    check: str
    is_good: bool
    text: str
    """The finding, and the remedy if it is not good."""


def examine(settings: Settings) -> Iterator[Finding]:
    """Run all checks; a check that fails does not stop the others."""
    checks: dict[str, Callable[[Settings], Finding]] = {
        "data set": _data_set,
        "hidden workloads": _hidden,
        "state folder": _state,
        "database": _database,
        "disk": _disk,
        "cluster": _cluster,
        "sandbox": _sandbox,
    }
    unused = "sandbox" if settings.executor == "ray" else "cluster"  # the service tries the sandbox of each node
    checks.pop(unused)
    for name, check in checks.items():
        try:
            yield check(settings)
        except (FibError, OSError, sqlite3.Error) as error:
            yield Finding(name, is_good=False, text=str(error))


def _data_set(settings: Settings) -> Finding:
    catalog = Catalog.read(Path(settings.dataset))
    if catalog.problems:
        text = f"{counted(len(catalog.problems), 'problem')}; run `fib-bench validate {settings.dataset}`"
        return Finding("data set", is_good=False, text=text)
    empty = [name for name, workloads in catalog.workloads.items() if not workloads]
    if empty or not catalog.definitions:
        text = f"definitions without workloads: {', '.join(empty[:5])}" if empty else "it has no definitions"
        return Finding("data set", is_good=False, text=f"{text}; nothing can be submitted for them")
    return Finding(
        "data set", is_good=True, text=f"{counted(len(catalog.definitions), 'definition')}, none without workloads"
    )


def _hidden(settings: Settings) -> Finding:
    if settings.hidden is None:
        return Finding("hidden workloads", is_good=True, text="none: submissions rank by public workloads")
    hidden = Catalog.read(Path(settings.hidden))
    check_hidden(Catalog.read(Path(settings.dataset)), hidden)
    count = sum(map(len, hidden.workloads.values()))
    return Finding("hidden workloads", is_good=count > 0, text=f"{counted(count, 'workload')}")


def _state(settings: Settings) -> Finding:
    state = Path(settings.state)
    if not state.exists():
        return Finding("state folder", is_good=True, text=f"{state} will be made by the first start")
    mode = state.stat().st_mode & 0o777
    text = f"{state} has the mode {mode:o}" + ("" if mode == 0o700 else f"; run `chmod 700 {state}`")
    return Finding("state folder", is_good=mode == 0o700, text=text)


def _database(settings: Settings) -> Finding:
    if settings.database is not None:
        with closing(open_database(settings)) as database, database.read() as connection:
            version = connection.exec_driver_sql("SHOW server_version").scalar()
        return Finding("database", is_good=True, text=f"PostgreSQL {version} answers")
    path = settings.database_path
    if not path.exists():
        return Finding("database", is_good=True, text="it will be made by the first start")
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        found = connection.execute("PRAGMA quick_check").fetchone()[0]
        problem = problem_of_tables(connection) if found == "ok" else found
    text = f"{problem}; restore a backup" if problem else "consistent"
    return Finding("database", is_good=not problem, text=text)


def _disk(settings: Settings) -> Finding:
    place = next(path for path in (Path(settings.state), *Path(settings.state).parents) if path.exists())
    free = shutil.disk_usage(place).free
    text = f"{free / 1e9:.1f} GB free at {place}" + ("" if free > _MIN_FREE_BYTES else "; make room")
    return Finding("disk", is_good=free > _MIN_FREE_BYTES, text=text)


def _cluster(settings: Settings) -> Finding:
    if settings.address is None:
        return Finding("cluster", is_good=True, text="the service starts one on this machine")
    from fib_bench.execution.ray_scheduler import device_slots, ray  # imports Ray, which takes seconds

    from ..worker.cluster_workers import connect_to

    kind = "GPU" if settings.devices[0].startswith("cuda") else "CPU"
    try:
        connect_to(settings.address)
        slots = device_slots(ray.nodes(), kind)
    finally:
        ray.shutdown()
    nodes = counted(len({slot.node for slot in slots}), "node")
    text = f"{counted(len(slots), f'{kind} device')} on {nodes}" + ("" if slots else "; add one with `ray start`")
    return Finding("cluster", is_good=bool(slots), text=text)


def _sandbox(settings: Settings) -> Finding:
    private = [path for path in settings.private_paths if path.exists()]
    for device in settings.devices:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
            report = probe_isolation(device, private or [Path(other)], Path(folder))  # an empty folder, as a service's
        if report.level < settings.required_isolation or report.exposed:
            exposed = "".join(f"\nworkers could open {path}: move it" for path in report.exposed)
            return Finding("sandbox", is_good=False, text=f"{device}: {report.text}{exposed}")
    return Finding(
        "sandbox", is_good=True, text=f"level {settings.required_isolation} on {', '.join(settings.devices)}"
    )
