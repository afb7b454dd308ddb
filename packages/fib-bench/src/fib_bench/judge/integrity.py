"""Worker integrity. Checks from outside that a worker's code is that of its files, before and after it is timed.

What the worker's libraries look like is compared with a worker that has never run code of a solution, so that a
library which patches itself accuses nobody.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fib_schema import EvaluationStatus

from ..timing.handshake.native import TABLE_BYTES
from ..worker.client import Worker
from ..worker.outside_checks import (
    NotPermitted,
    memory_digest,
    modified_text,
    open_memory_files,
    seccomp_filters,
)
from .rpc import Rejected


def table_digest(worker: Worker, table: int) -> str:
    """The digest of the native module's table; empty without one, or where the system refuses."""
    try:
        return memory_digest(worker.pid, table, TABLE_BYTES) if table else ""
    except (NotPermitted, ProcessLookupError):
        return ""


def filter_counts(worker: Worker) -> Mapping[int, int]:
    """The number of system call filters of each thread of a worker; empty where the system does not report it."""
    try:
        return seccomp_filters(worker.pid)
    except (NotPermitted, ProcessLookupError):
        return {}


def is_filtered(worker: Worker, before: Mapping[int, int]) -> bool:
    """Whether every thread of a worker has a filter more than before: the worker's own word for it is a claim."""
    after = filter_counts(worker)
    return bool(after) and min(after.values()) > max(before.values(), default=0)


def check_code(worker: Worker, trusted: Worker | None, table: int, digest: str) -> str:
    """Check that nobody has changed the code of a worker.

    Args:
        worker: It holds a solution.
        trusted: It has never run code of a solution.
        table: Where the native module's table lies.
        digest: Of the table, before a solution was there.

    Returns:
        Why that could not be checked; empty if it was.

    Raises:
        Rejected: Somebody has.
    """
    try:
        found = open_memory_files(worker.pid)
        if (changed := modified_text(worker.pid)) and trusted is not None:
            expected = {_place(line) for line in modified_text(trusted.pid)}
            changed = [line for line in changed if _place(line) not in expected]
        found += changed
        if digest and memory_digest(worker.pid, table, TABLE_BYTES) != digest:
            found.append("the table of driver functions differs from what it was")
    except NotPermitted as error:
        return str(error)
    except ProcessLookupError:
        return "the worker has ended"
    if found:
        problem = f"the worker's code was changed: {'; '.join(found[:5])}"
        raise Rejected(EvaluationStatus.REWARD_HACK, problem)
    return "" if digest else "the table of driver functions could not be read before the solution was loaded"


def _place(line: str) -> str:
    """The file in a line of `modified_text`."""
    return os.path.basename(line.partition(" at ")[0])  # noqa: PTH119 a name in a sentence
