"""Messages of the fork server: requests to start and kill workers, and reports of their ends."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Spawn(msgspec.Struct, frozen=True, tag="spawn"):
    """Judge to worker server: fork a worker. With it travel its channel and its output pipe."""

    folder: str
    """Its private working folder, home and temporary folder."""


class Kill(msgspec.Struct, frozen=True, tag="kill"):
    """Judge to worker server: kill a worker and everything it started."""

    pid: int


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Judge to worker server: are you there?"""


ServerRequest: TypeAlias = Spawn | Kill | Ping


class ServerReady(msgspec.Struct, frozen=True, tag="server-ready"):
    """Worker server to judge: everything is imported."""


class Spawned(msgspec.Struct, frozen=True, tag="spawned"):
    """Worker server to judge: the worker runs."""

    pid: int


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """Worker server to judge: a worker has ended and nothing of it is left."""

    pid: int
    wait_status: int
    reason: str = ""
    """Why the server ended it, if it did so unasked."""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """Worker server to judge: the answer to `Ping`."""


ServerReply: TypeAlias = ServerReady | Spawned | Exited | Pong
