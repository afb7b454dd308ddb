"""Recorded plans: what the last ``plan`` of each object set up for its runs, and the handlers of these runs."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

from .handlers import Handler, PassedOn

_logger = logging.getLogger(__name__)
Renew: TypeAlias = "Callable[[RecordedPlan, Any, Any], bool]"
"""A function that brings a recorded plan up to date with an object's new state, and says whether it could."""


class RecordedPlan:
    """State that one call of a `Plan` method set up; replaced by the next one.

    Args:
        owner: The object.
        value: What `Plan.convert` returned: the shared state of runs, or the reason why they are unsupported.
        state: The object's `Plan.state_attribute`, to detect a plan that bypassed the patched method.
    """

    __slots__ = (
        "dps_handlers", "generation", "handlers", "owner", "passed_key", "passed_on", "renewal", "state", "value"
    )  # fmt: skip

    def __init__(self, owner: weakref.ref[Any], value: Any, state: Any) -> None:
        self.owner = owner
        self.replace(value, state)

    def replace(self, value: Any, state: Any) -> None:
        """Record another plan of the same object."""
        self.value, self.state = value, state
        self.renewal: Renew | None = None
        """The function that is asked when a plan has bypassed the patched method."""
        self.discard_handlers(None)

    def renew(self, owner: Any, state: Any) -> bool:
        """Whether the recorded plan could be brought up to date with an object's new state."""
        return self.renewal is not None and self.renewal(self, owner, state)

    def detached(self) -> RecordedPlan:
        """A copy for explanations: conversions that use it change no object."""
        detach = getattr(self.value, "detached", None)
        return RecordedPlan(self.owner, self.value if detach is None else detach(), self.state)

    def discard_handlers(self, generation: object) -> None:
        """Forget handlers that were made before the runtime or the listeners changed."""
        self.generation = generation
        self.handlers: dict[Any, Handler] = {}
        self.dps_handlers: dict[Any, Handler] = {}
        self.passed_key: Any = None
        self.passed_on: PassedOn | None = None
        """The handler of all runs while the value has `passed_key` as its `current` one: none is converted."""

    def pass_on(self, key: Any, handler: PassedOn) -> Any:
        """Convert no more runs of a key: the original serves them all. Returns the value's sizes, if it has any."""
        if getattr(self.value, "current", None) is key:
            self.passed_key, self.passed_on = key, handler
            return getattr(self.value, "sizes", None)
        return None


class PlanStore:
    """Recorded plans by object, held weakly. Each write is one dictionary operation, so no locks are needed.

    The key is the object's id, because looking up a weak reference costs 0.2 us more. An entry is removed with its
    object, before another object can have the same id.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, RecordedPlan] = {}

    def record(self, owner: Any, value: Any, state: Any, previous: RecordedPlan | None = None) -> None:
        """Replace the plan of an object; `previous` may be its last one, which is used again."""
        key = id(owner)
        if previous is not None and previous.owner() is owner:
            previous.replace(value, state)
            self.by_id[key] = previous
            return
        try:
            reference = weakref.ref(owner, lambda _: self.by_id.pop(key, None))
        except TypeError:
            _logger.warning("%s: its objects have no weak references; their runs are unsupported", type(owner).__name__)
            return
        self.by_id[key] = RecordedPlan(reference, value, state)

    def invalidate(self, owner: Any = None) -> RecordedPlan | None:
        """Remove the plan of an object, and return it: its runs are unsupported until the next plan."""
        return self.by_id.pop(id(owner), None)
