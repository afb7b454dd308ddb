"""Confinement of a worker: its cache, its user and its sandbox, before any code of a solution is loaded."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from fib_schema.files import explain_os_error

from ..sandbox.landlock import forget_kernel_files
from ..sandbox.model import NotPossible, SandboxPaths, SandboxPolicy
from ..sandbox.policy import isolate
from ..sandbox.processes import reserve_uid
from ..transport.messages import Settled
from .caches import BUILDS_NOTHING, CacheOwner, own_cache


def confine_worker(policy: SandboxPolicy, folder: Path, request: object) -> Settled:
    """Apply the sandbox to this process.

    Args:
        policy: The settings of all workers.
        folder: The worker's home and temporary folder.
        request: The judge's first request, which decides the cache.

    Returns:
        The message that reports the measures to the judge.
    """
    owner = CacheOwner.of(request)
    uid, why_no_uid = _reserve(policy, owner.name)
    cache = folder
    if owner.name != BUILDS_NOTHING:
        try:
            cache = own_cache(owner, os.getuid() if uid is None else uid)
        except OSError as error:
            print(f"builds of this run are not kept: {explain_os_error(error)} (FIB_CACHE_PATH names it)")
    os.environ["FIB_CACHE_PATH"] = str(cache)
    isolation = isolate(SandboxPaths(policy, folder, cache, uid, why_no_uid))
    forget_kernel_files()  # the solution gets no descriptors
    return Settled(dict(isolation.held), dict(isolation.missing))


def _reserve(policy: SandboxPolicy, name: str) -> tuple[int | None, str]:
    """A uid of its own, or None with the reason; the solution does not get the descriptor of the channel."""
    if policy.uid_channel is None:
        return None, "no process holds the lock of its uid"
    with socket.socket(fileno=policy.uid_channel) as channel:
        try:
            return reserve_uid(policy, name, channel), ""
        except (NotPossible, OSError) as error:
            return None, str(error)
