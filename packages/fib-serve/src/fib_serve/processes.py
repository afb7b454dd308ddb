"""Processes of the service: exit codes, and the bond between a process and the supervisor."""

from __future__ import annotations

import ctypes
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
