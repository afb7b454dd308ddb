"""CUDA graphs: calls captured in a graph, whose tensors have values only after a replay."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .recorder import Recorder


class GraphCalls:
    """Calls captured in CUDA graphs within a scope, with their tensors, until they are cleared."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._calls: list[tuple[Recorder, tuple[Any, ...]]] = []

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Add captured calls of this thread within the scope."""
        depth = getattr(self._local, "depth", 0)
        self._local.depth = depth + 1
        try:
            yield
        finally:
            self._local.depth = depth

    def add(self, recorder: Recorder, args: tuple[Any, ...]) -> bool:
        """Add a call; False outside of a scope."""
        if not getattr(self._local, "depth", 0):
            return False
        self._calls.append((recorder, args))
        return True

    def snapshot(self) -> int:
        """Record all calls with the current values of their tensors on the current stream; returns how many."""
        calls = list(self._calls)
        for recorder, args in calls:
            recorder.record(args)
        return len(calls)

    def clear(self) -> None:
        """Drop the calls and their tensors."""
        self._calls.clear()


def is_capturing() -> bool:
    """Whether the current stream of this thread captures a graph; False before CUDA is initialized."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]
