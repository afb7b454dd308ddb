"""Commands for the operation of a service."""

from __future__ import annotations

from .commands import Commands


def add_operation(commands: Commands) -> None:
    """Add the commands."""
    del commands
