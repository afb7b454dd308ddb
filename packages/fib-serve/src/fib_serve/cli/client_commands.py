"""Commands of the client."""

from __future__ import annotations

from .commands import Commands


def add_client(commands: Commands) -> None:
    """Add the commands."""
    del commands
