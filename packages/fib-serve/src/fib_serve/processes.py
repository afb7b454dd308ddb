"""Processes of the service: exit codes, and the bond between a process and the supervisor."""

from __future__ import annotations

import ctypes
import os
import signal

REFUSED = 3
"""The exit code of a process that cannot run with these settings on this machine: restarting does not help."""
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, however that happens."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
