"""Processes of the service: exit codes, the bond between a process and the supervisor, garbage collection."""

from __future__ import annotations

import ctypes
import gc
import os
import signal

REFUSED = 3
"""The exit code of a process that cannot run with these settings on this machine: restarting does not help."""
SUPERVISOR_VARIABLE = "FIB_SERVE_SUPERVISOR"
"""The process id of the supervisor, which may have died before its child asks for it."""
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Let the kernel kill this process when the supervisor ends, however that happens; end now if it has ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ[SUPERVISOR_VARIABLE]):
        os._exit(1)


def freeze_objects() -> None:
    """Exempt the objects that a process has after its start from garbage collection.

    A full collection waits until a quarter as many objects have survived younger ones. With the 84,000 objects of a
    worker that takes about 3,000 submissions, each of which leaves 0.5 KiB of cyclic garbage of database statements.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # counts the objects that remain, of which a quarter is little
