"""Confinement of the files of a process that a profiler starts, by that process itself, before it loads a solution.

A profiler may write below ``/proc``, for the reason that `SandboxPolicy` states, and its log. The call may do neither.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import attrs

DEFERRED = "FIB_AGENTS_DEFERRED_FILES"
"""The variable that hands the settings from the supervisor to the process that loads the solution."""


@attrs.frozen(kw_only=True)
class Deferred:
    """Settings of the confinement."""

    device: str
    folder: str
    is_enclosed: bool
    device_files: tuple[str, ...]
    """The device files of CUDA, which the process cannot list."""


def confine_own_files() -> None:
    """Confine the files of this process as the variable says.

    Raises:
        RuntimeError: There is no such variable: whatever started this process has dropped it.
        OSError: The system refuses.
    """
    from fib_bench.sandbox.model import SandboxPaths, SandboxPolicy
    from fib_bench.sandbox.policy import confine_files, limit_from_environment

    text = os.environ.get(DEFERRED)
    if text is None:
        raise RuntimeError(f"{DEFERRED} is not set, so the files of this process cannot be confined")
    found = Deferred(**json.loads(text))
    # The data set stays hidden, because this process cannot lift the restriction of its profiler.
    policy = SandboxPolicy(found.device, limit=limit_from_environment(), is_alone=True, local_sockets=True)
    devices = tuple(map(Path, found.device_files))
    paths = SandboxPaths(policy, Path(found.folder), Path(os.environ["FIB_CACHE_PATH"]), device_files=devices)
    confine_files(paths, is_enclosed=found.is_enclosed)
