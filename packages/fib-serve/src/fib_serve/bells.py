"""Bells: datagram sockets in the state folder with which processes of the service wake each other.

A bell carries no data. A process that wakes up reads the database; a lost ring delays that until the next poll.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

WORKERS, API = "worker", "api"
_FOLDER = "bells"


class Bell:
    """A bell that this process listens to.

    Args:
        state: The state folder.
        kind: `WORKERS` or `API`.
        name: Distinguishes the bells of a kind.
    """

    def __init__(self, state: Path, kind: str, name: str) -> None:
        self._path = _folder(state) / f"{kind}-{name.replace('/', '_')}"
        self._path.unlink(missing_ok=True)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with _short(self._path.parent) as folder:
            self.socket.bind(f"{folder}/{self._path.name}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self, seconds: float) -> bool:
        """Wait for a ring; false if none came in time."""
        self.socket.settimeout(seconds)
        try:
            self.socket.recv(1)
        except TimeoutError:
            return False
        self.drain()
        return True

    def drain(self) -> None:
        """Forget rings that are waiting."""
        self.socket.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                self.socket.recv(1)

    def close(self) -> None:
        """Stop listening."""
        self.socket.close()
        self._path.unlink(missing_ok=True)


class Ringer:
    """Rings all bells of a kind, without waiting for anybody."""

    def __init__(self, state: Path, kind: str) -> None:
        self._folder = _folder(state)
        self._kind = kind
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def ring(self) -> None:
        """Ring."""
        with _short(self._folder) as folder:
            for name in (path.name for path in self._folder.iterdir()):
                if name.startswith(f"{self._kind}-"):
                    with suppress(OSError):  # nobody listens, or rings are waiting already
                        self._socket.sendto(b"!", f"{folder}/{name}")

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _folder(state: Path) -> Path:
    folder = state / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


class _short:  # noqa: N801 - used like a function
    """A short name of a folder: names of sockets have at most 107 bytes."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> str:
        return f"/proc/self/fd/{self._descriptor}"

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
