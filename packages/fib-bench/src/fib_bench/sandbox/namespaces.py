"""Namespaces of a worker: a network without devices, and no shared memory of others."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache

from . import syscalls as kernel
from .environment import unreadable_path
from .model import NotPossible, SandboxState, Threat


def enter(state: SandboxState) -> frozenset[Threat]:
    """Enter new network and IPC namespaces; an ordinary user does so within a user namespace."""
    if state.policy.shares_device_memory:
        raise NotPossible("CUDA hands memory over within one network namespace only")
    flags = wanted_namespaces()
    is_user = bool(flags & kernel.CLONE_NEWUSER)
    if is_user and (closed := unreadable_path(os.getuid())):
        raise NotPossible(f"{closed} is not readable in a user namespace; make it readable for others")
    if reason := why_not(flags):
        raise NotPossible(reason)
    kernel.enter_namespaces(flags)
    if state.policy.local_sockets:
        kernel.enable_loopback()
    with suppress(OSError):  # no threat depends on it
        kernel.mount_empty_memory("/dev/shm")
    return frozenset({Threat.NETWORK, Threat.MEMORY} if is_user else {Threat.NETWORK})


def wanted_namespaces() -> int:
    """The ``CLONE_`` flags of the namespaces that this process would enter."""
    flags = kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC
    return flags if kernel.has_capability(kernel.CAP_SYS_ADMIN) else flags | kernel.CLONE_NEWUSER


@cache
def why_not(flags: int) -> str:
    """Reason that namespaces cannot be entered; empty if they can. A child process tries: it can fail half way."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # as in a worker
            kernel.enter_namespaces(flags)
        except OSError as error:
            os.write(write_end, str(error).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(pid, 0)
    with os.fdopen(read_end, "rb") as answer:
        return answer.read().decode()
