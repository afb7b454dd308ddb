"""Capture context: the state that all recorders of a runtime share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from ..stats import ErrorLog
from .call_counts import KeyLimit
from .copies import ByteBudget, Copier


@attrs.frozen
class CaptureContext:
    """State that all recorders of a runtime share."""

    enqueue: Callable[[Any], None]
    """Passes a `PendingEntry` to the storage thread."""
    request_flush: Callable[[], None]
    """Tells the storage thread not to wait for more entries: memory is needed."""
    start_storage: Callable[[], object]
    """Starts the storage thread, if there is none, which saves the counts of calls from time to time."""
    budget: ByteBudget
    copier: Copier
    errors: ErrorLog
    is_capturing: Callable[[], bool]
    """Whether the current CUDA stream captures a graph."""
    on_graph_call: Callable[[Any, tuple[Any, ...]], bool]
    """Receives the recorder and the arguments of a call that a graph captures; False if it is not wanted."""
    key_limit: KeyLimit = attrs.field(factory=KeyLimit)
    """Number of combinations of sizes that may still be counted."""
    probes_all: bool = False
    """Whether policies that need values are asked about every call, also after many refusals."""
    wait_seconds: float = 0.0
    """Longest wait of a call for memory in the budget; 0 drops it immediately."""
