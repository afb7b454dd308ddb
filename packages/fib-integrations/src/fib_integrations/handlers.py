"""Call handlers: what serves the calls of one key; and recorded plans, which have those of an object's runs.

A handler takes the definition's inputs (followed by its outputs, if the caller passed buffers for them) and the
call's original ``args`` and ``kwargs``. It notifies the listeners, then calls fib-apply's route, a planned solution
or the original. Where the original serves all calls, the handler is a `PassedOn` instead of a function: the generated
code then calls the original itself.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import torch
from fib_apply.hook import callbacks_for
from fib_apply.routing.call_sites import Runtime
from fib_apply.routing.codegen import ParameterMap
from fib_apply.routing.dispatcher import ServedByFallback
from fib_schema import FibError
from fib_schema.padded_indices import padded_indices_of

from .adapter import Call, DefinitionRef
from .baselines import may_win

if TYPE_CHECKING:
    from fib_apply.routing.dispatcher import Dispatcher

_logger = logging.getLogger(__name__)
_CALL_ARGUMENTS = ("fib_call_args", "fib_call_kwargs")
_REPLAYED = "a CUDA graph may replay it after a later plan"
_NOT_PLANNED: Any = object()
"""The result of a planned solution's fallback."""


@attrs.frozen
class OriginalResult:
    """A result of the original function, which the caller gets unchanged."""

    value: Any


@attrs.define  # not frozen: one is made for each plan
class PassedOn:
    """All calls of a key go to the original."""

    count: Callable[[], object] | None = None
    """Counts one call."""
    callbacks: tuple[Callable[..., object], ...] = ()
    """Take the inputs of each call."""
    arity: int = 0
    """The number of inputs."""


Handler: TypeAlias = Callable[..., Any] | PassedOn


@attrs.frozen
class HandlerFactory:
    """Makes the handlers of one patched function."""

    target: Call
    original: Callable[..., Any]
    fall_through: Callable[[str, tuple[Any, ...], dict[str, Any]], Any]
    """Calls the original for a reason, which may be counted; takes the reason and the call's arguments."""
    routes: dict[tuple[str, str], Callable[..., Any]] = attrs.field(factory=dict)
    """Generated routes by definition and function name; engines plan at each step, and generating one takes 1 ms."""

    def make(
        self,
        definition: DefinitionRef,
        dispatcher: Dispatcher | None,
        values: Sequence[Any],
        *,
        is_dps: bool,
        baselines: frozenset[str] = frozenset(),
        plan: Any = None,
    ) -> Handler:
        """The handler of calls with one key."""
        handler: Handler = PassedOn()
        if dispatcher is not None and plan is None and not (dispatcher.is_counted or may_win(dispatcher, baselines)):
            return _with_listeners(definition, handler)
        if dispatcher is not None and (plan is None or plan.is_routable):
            inputs = values[: len(definition.inputs)]
            planned = None if plan is None else self._planned(dispatcher, inputs, baselines)
            handler = planned or self._routed(dispatcher, definition, baselines, is_dps=is_dps)
        elif dispatcher is not None:
            handler = self._padded(dispatcher, definition, baselines, getattr(plan, "buffers", {}), is_dps=is_dps)
        return _with_listeners(definition, handler)

    def _call_original(self, *values: Any) -> OriginalResult:
        *_, args, kwargs = values
        return OriginalResult(self.original(*args, **kwargs))

    def _padded(
        self,
        dispatcher: Dispatcher,
        definition: DefinitionRef,
        baselines: frozenset[str],
        buffers: Mapping[str, torch.Tensor],
        *,
        is_dps: bool,
    ) -> Handler:
        """A handler of runs that a CUDA graph may replay after later plans: solutions get the whole buffers."""
        padded = padded_indices_of(dispatcher.definition)
        if padded is None or set(padded.inputs) != set(buffers):

            def unrouted(*values: Any) -> OriginalResult:
                *_, args, kwargs = values
                return OriginalResult(self.fall_through(_REPLAYED, args, kwargs))

            return unrouted
        route = self._routed(dispatcher, definition, baselines, is_dps=is_dps, is_padded=True)
        if isinstance(route, PassedOn):
            return route
        places = [(definition.inputs.index(name), buffer) for name, buffer in buffers.items()]

        def with_buffers(*values: Any) -> Any:
            given = list(values)
            for place, buffer in places:
                given[place] = buffer
            return route(*given)

        return with_buffers

    def _routed(
        self,
        dispatcher: Dispatcher,
        definition: DefinitionRef,
        baselines: frozenset[str],
        *,
        is_dps: bool,
        is_padded: bool = False,
    ) -> Handler:
        is_compared = dispatcher.config.shadow_ratio > 0
        if is_compared and not self.target.is_deterministic:
            return PassedOn()
        label = f"{self.target.path.rpartition('.')[2]}_{'dps' if is_dps else 'value_returning'}"
        label += "_padded" if is_padded else ""
        if (definition.name, label) not in self.routes:
            outputs = definition.outputs if is_dps else ()
            names = (*definition.inputs, *outputs, *_CALL_ARGUMENTS)
            parameters = tuple(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names)
            self.routes[definition.name, label] = dispatcher.route(
                label,
                ParameterMap(parameters, definition.inputs, outputs),
                self._shadow if is_compared else self._call_original,
                fallback_equivalents=baselines,
                is_padded=is_padded,
            )
        return self.routes[definition.name, label]

    def _shadow(self, *values: Any) -> Any:
        """The definition's outputs as the original computes them, for a comparison with a solution's."""
        *converted, args, kwargs = values
        if self.target.shadow is None:
            return self.original(*args, **kwargs)
        return self.target.shadow(self.original, args, kwargs, converted)

    def _planned(self, dispatcher: Dispatcher, inputs: Sequence[Any], baselines: frozenset[str]) -> Handler | None:
        """A handler for the best solution, whose ``setup`` runs now; None if calls can be routed without a plan."""
        if _is_capturing(inputs):
            return None
        run = dispatcher.plan_setup(*inputs, fallback=_return_not_planned, fallback_equivalents=baselines)
        if run is None:
            return None
        if isinstance(run, ServedByFallback):
            return PassedOn(run.count)
        original = self.original

        def planned(*values: Any) -> Any:
            *converted, args, kwargs = values
            result = run(*converted)
            return OriginalResult(original(*args, **kwargs)) if result is _NOT_PLANNED else result

        return planned


def _return_not_planned(*values: Any) -> Any:
    del values
    return _NOT_PLANNED


def _is_capturing(values: Sequence[Any]) -> bool:
    """Whether a CUDA graph is being captured: a setup must not run then."""
    for value in values:  # a generator costs more
        if isinstance(value, torch.Tensor) and value.is_cuda:
            return torch.cuda.is_current_stream_capturing()
    return False


def find_dispatcher(name: str, runtime: Runtime | None) -> Dispatcher | None:
    """The dispatcher of a definition; None if there is none, or its files are damaged: the engine must go on."""
    try:
        return None if runtime is None else runtime.dispatcher(name)
    except FibError as error:
        _logger.warning("calls of %r go to the original: %s", name, error)
        return None


def _with_listeners(definition: DefinitionRef, handler: Handler) -> Handler:
    """A handler that first notifies the definition's listeners of its inputs."""
    callbacks = callbacks_for(definition.name, definition.inputs)
    if not callbacks:
        return handler
    count = len(definition.inputs)
    if isinstance(handler, PassedOn):
        return PassedOn(handler.count, callbacks, count)
    call = handler

    def notified(*values: Any) -> Any:
        for callback in callbacks:
            callback(*values[:count])
        return call(*values)

    return notified


Renew: TypeAlias = "Callable[[RecordedPlan, Any, Any], bool]"
"""A function that brings a recorded plan up to date with an object's new state, and says whether it could."""


class RecordedPlan:
    """State that one call of a `Plan` method set up; replaced by the next one."""

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
