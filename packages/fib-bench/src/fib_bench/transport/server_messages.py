"""Messages of the fork server: requests to start and kill workers, and reports of their ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec


class Spawn(msgspec.Struct, frozen=True, tag="spawn"):
    """Request: fork a worker. The descriptors of its channel and of its output pipe travel with the message."""

    folder: str
    """Its private working folder, home and temporary folder."""


class Kill(msgspec.Struct, frozen=True, tag="kill"):
    """Request: kill a worker and all processes that it started."""

    pid: int


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Request: reply with `Pong`, as a sign of life."""


ServerRequest: TypeAlias = Spawn | Kill | Ping


class ServerReady(msgspec.Struct, frozen=True, tag="server-ready"):
    """Report: the server has imported everything."""

    seconds: Mapping[str, float]
    """The seconds of each step of its start."""


class Spawned(msgspec.Struct, frozen=True, tag="spawned"):
    """Reply to `Spawn`: the worker runs."""

    pid: int


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """Report: a worker has ended, and so have all processes that it started."""

    pid: int
    wait_status: int
    reason: str = ""
    """Reason that the server ended it without a request; empty otherwise."""


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """Reply to `Ping`."""


ServerReply: TypeAlias = ServerReady | Spawned | Exited | Pong
