"""CUDA graphs: calls that are recorded in a graph, whose tensors have values only when it is replayed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .intake import Intake


class CapturedCalls:
    """Remembers captured calls, with the tensors themselves, for as long as it is wanted."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._calls: list[tuple[Intake, tuple[Any, ...]]] = []

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Within it, calls of this thread that are captured are remembered."""
        depth = getattr(self._local, "depth", 0)
        self._local.depth = depth + 1
        try:
            yield
        finally:
            self._local.depth = depth

    def remember(self, intake: Intake, args: tuple[Any, ...]) -> bool:
        """Remember a call; False outside of a scope."""
        if not getattr(self._local, "depth", 0):
            return False
        self._calls.append((intake, args))
        return True

    def snapshot(self) -> int:
        """Take all remembered calls in with the values that their tensors have by now on the current stream.

        Returns:
            How many there are.
        """
        calls = list(self._calls)
        for intake, args in calls:
            intake.count()
            intake.take(args)
        return len(calls)

    def forget(self) -> None:
        """Let go of the tensors."""
        self._calls.clear()


def is_capturing() -> bool:
    """Whether the current stream of this thread records a graph; False before CUDA is in use."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]
