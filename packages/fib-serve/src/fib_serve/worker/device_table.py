"""Table of devices, as the pages and the API show it."""

from __future__ import annotations

from collections.abc import Container

from fib_bench import IsolationReport
from sqlalchemy import delete, insert, select, update

from ..database.engine import Database
from ..database.tables import devices
from ..errors import InvalidSetting
from ..identifiers import now
from ..queue.leasing import expire_of

_KEPT_SECONDS = 86_400.0


def register_device(database: Database, name: str, hardware: str, harness: str, report: IsolationReport) -> None:
    """Add a device in place of an earlier one of that name, whose leases end.

    Raises:
        InvalidSetting: A device in use has other hardware.
    """
    with database.write() as connection:
        connection.execute(delete(devices).where(devices.c.name == name))
        expire_of(connection, name)
        used = select(devices.c.name, devices.c.hardware).where(devices.c.problem.is_(None))
        for other in connection.execute(used):
            if other.hardware != hardware:
                problem = f"{name} is {hardware!r} and {other.name} is {other.hardware!r}; run a service for each"
                raise InvalidSetting("--devices", problem)
        connection.execute(
            insert(devices).values(
                name=name,
                hardware=hardware,
                harness=harness,
                isolation=report.level,
                isolation_text=report.text,
                seen_at=now(),
            )
        )


def report_device(database: Database, name: str, submission: str | None) -> None:
    """Report that a device's worker is alive, and what it evaluates."""
    with database.write() as connection:
        connection.execute(
            update(devices).where(devices.c.name == name).values(submission_id=submission, seen_at=now())
        )


def exclude_device(database: Database, name: str, problem: str) -> None:
    """Show why a device is not used, until it is registered again."""
    values = {"problem": problem, "submission_id": None, "seen_at": now()}
    with database.write() as connection:
        expire_of(connection, name)
        changed = connection.execute(update(devices).where(devices.c.name == name).values(values))
        if not changed.rowcount:
            unknown = {"hardware": "", "harness": "", "isolation": 0, "isolation_text": ""}
            connection.execute(insert(devices).values(name=name, **unknown, **values))


def forget_devices(database: Database, present: Container[str]) -> None:
    """Remove devices that were excluded a day ago and are no longer in the cluster."""
    with database.write() as connection:
        is_old = devices.c.problem.is_not(None) & (devices.c.seen_at < now() - _KEPT_SECONDS)
        for name in connection.execute(select(devices.c.name).where(is_old)).scalars().all():
            if name not in present:
                connection.execute(delete(devices).where(devices.c.name == name))
