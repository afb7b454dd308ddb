"""Values of the sandbox: threats, isolation levels, and the paths and devices of a worker.

`policy` applies the measures; `processes`, `landlock` and `seccomp` implement them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import TypeAlias

import attrs

LIMIT_VARIABLE = "FIB_BENCH_ISOLATION"
"""The highest level to aim for, 0 to 3. Without it the sandbox applies every measure that the system allows."""


class Threat(StrEnum):
    """An attack that a worker can attempt."""

    PRIVILEGES = "gain privileges"
    RESOURCES = "exhaust processes, memory or files"
    FILES = "read or write files of others"
    MEMORY = "read the memory of others"
    SIGNALS = "signal processes of others"
    NETWORK = "reach a network"
    SERVICES = "talk to daemons"
    KERNEL = "use rare interfaces of the kernel"


class Level(IntEnum):
    """Isolation levels: each level stops the threats of all lower levels, and more."""

    NONE = 0
    PROCESS = 1
    CONFINED = 2
    SANDBOXED = 3


_NEEDS: Mapping[Level, frozenset[Threat]] = {
    Level.PROCESS: frozenset({Threat.PRIVILEGES, Threat.RESOURCES}),
    Level.CONFINED: frozenset({Threat.FILES, Threat.MEMORY}),
    Level.SANDBOXED: frozenset({Threat.SIGNALS, Threat.NETWORK, Threat.SERVICES, Threat.KERNEL}),
}


class NotPossible(Exception):
    """A measure that this system does not allow; the text gives the reason."""


@attrs.frozen
class Isolation:
    """The measures in force for a worker with the threats that each stops, and the missing ones with the reasons."""

    held: Mapping[str, frozenset[Threat]]
    missing: Mapping[str, str]

    @property
    def stopped(self) -> frozenset[Threat]:
        """All threats that are stopped."""
        return frozenset[Threat]().union(*self.held.values())

    @property
    def level(self) -> Level:
        """The highest level whose threats, and those of all lower levels, are stopped."""
        reached = Level.NONE
        for level, needs in _NEEDS.items():
            if not needs <= self.stopped:
                break
            reached = level
        return reached

    def to_extra(self) -> dict[str, object]:
        """The entry of a trace's ``extra``."""
        return {"level": int(self.level), "name": self.level.name.lower(), "measures": list(self.held)}

    def explain(self) -> str:
        """A line for the level and one for each measure."""
        lines = [f"level {int(self.level)}: {self.level.name.lower()}"]
        lines += [f"  {name}: stops it from trying to {_listed(threats)}" for name, threats in self.held.items()]
        lines += [f"  {name}: not possible: {reason}" for name, reason in self.missing.items()]
        return "\n".join(lines)


def _listed(threats: Iterable[Threat]) -> str:
    return ", ".join(threat for threat in Threat if threat in threats)


@attrs.frozen
class SandboxPolicy:
    """Settings that all workers of a fork server share.

    Args:
        device: The device that the workers run on.
        hidden: Folders that no worker may read, wherever they lie.
        limit: The highest level to aim for.
        uid_channel: In a worker, the socket's descriptor over which `processes.reserve_uid` hands the lock of the
            worker's uid to the fork server.
        is_alone: Whether the process shares no memory of a device with another one, and may have namespaces of its
            own on CUDA devices, too.
        local_sockets: Whether it may open local and TCP sockets, over which profilers speak to the process that they
            look into. Where it has no network namespace of its own, Landlock leaves `landlock.LOCAL_PORTS` open only.
        starts_call: Whether it is a profiler that starts the process that runs the solution, which confines its files
            further. CUDA writes the names of its threads below ``/proc``, where Landlock grants a path of a process
            only once that exists, so a profiler may write all that lies there.
    """

    device: str
    hidden: tuple[Path, ...] = ()
    limit: Level = Level.SANDBOXED
    uid_channel: int | None = None
    is_alone: bool = False
    local_sockets: bool = False
    starts_call: bool = False

    @property
    def is_cuda(self) -> bool:
        """Whether the measures must suit CUDA."""
        return self.device.startswith("cuda")

    @property
    def shares_device_memory(self) -> bool:
        """Whether the driver has to hand memory over between this process and another one."""
        return self.is_cuda and not self.is_alone


@attrs.frozen
class SandboxPaths:
    """The folders and the user of one worker.

    Args:
        policy: The settings of all workers.
        folder: Its home and temporary folder, which belongs to the user that starts the worker.
        cache: The part of the build cache that is its own.
        uid: The user that it becomes, from `processes.reserve_uid`; None keeps the current one.
        why_no_uid: The reason where `uid` is None.
        device_files: Found by `landlock.cuda_device_files` outside of the sandbox, where they can be listed.
    """

    policy: SandboxPolicy
    folder: Path
    cache: Path
    uid: int | None = None
    why_no_uid: str = "no user was reserved"
    device_files: tuple[Path, ...] | None = None


Held: TypeAlias = Mapping[str, frozenset[Threat]]
"""The measures that were applied before, on which others may depend."""


@attrs.frozen
class Measure:
    """One measure: its name in reports, the lowest level that includes it, and a function that applies it.

    That returns the threats that it stops, or raises `NotPossible` or `OSError`.
    """

    name: str
    level: Level
    apply: Callable[[SandboxPaths, Held], frozenset[Threat]]
