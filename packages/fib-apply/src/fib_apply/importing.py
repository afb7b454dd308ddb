"""Imports in progress. Code that runs during one must not wait for a thread that may import the same module."""

from __future__ import annotations

import sys
from types import FrameType


def is_importing() -> bool:
    """Whether the caller runs during the import of a module."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 inspect.stack reads source files
    while frame is not None:
        if frame.f_code.co_name == "_load_unlocked" and frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        frame = frame.f_back
    return False
