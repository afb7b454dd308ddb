"""Addresses of Ray clusters, checked without Ray, whose import takes seconds."""

from __future__ import annotations

import re
import socket

from .errors import ClusterUnreachable

ADDRESS = re.compile(r"auto|(?P<host>[\w.-]+|\[[0-9a-fA-F:.%]+\]):(?P<port>[0-9]{1,5})")
"""The addresses that are accepted. ``auto`` is the cluster that runs on this machine."""
_CONNECT_SECONDS = 5.0


def require_answer(address: str | None) -> None:
    """Check that something listens at an address; Ray itself waits for two minutes.

    Args:
        address: Of the cluster. Without a port there is nothing to check.

    Raises:
        ClusterUnreachable: Nothing listens there.
    """
    match = ADDRESS.fullmatch(address or "")
    if match is None or match["host"] is None:
        return
    try:
        socket.create_connection((match["host"].strip("[]"), int(match["port"])), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterUnreachable(str(address), getattr(error, "strerror", None) or str(error)) from error
