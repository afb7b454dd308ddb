"""Routes: what the calls of one kind go through, made when the first of them comes.

A route takes the definition's inputs (with its outputs behind them, where the caller passed them) and the
call's own arguments, which only the original sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import torch
from fib_apply.hook import notes_for
from fib_apply.routing.matching import Form
from fib_apply.routing.sites import Runtime
from fib_schema import Definition, FibError

from .adapter import Adapter, Call, Described
from .log import logger
from .references import small_constant

if TYPE_CHECKING:
    from fib_apply.routing.dispatcher import Dispatcher

Route: TypeAlias = Callable[..., Any]
OwnSolutions: TypeAlias = "Callable[[Adapter, Runtime, Definition], frozenset[str]]"
"""Says which solutions of a definition are the original in another form."""
_CARRIED = ("fib_call_args", "fib_call_kwargs")
_MISSED: Any = object()


@attrs.frozen
class Served:
    """What the original returned: the caller gets it as it is."""

    value: Any


@attrs.frozen
class Maker:
    """Makes the routes of one patched function."""

    adapter: Adapter
    target: Call
    original: Callable[..., Any]
    own_solutions: OwnSolutions

    def make(
        self,
        described: Described,
        runtime: Runtime | None,
        values: Sequence[Any],
        *,
        is_passing: bool,
        plan: Any = None,
    ) -> Route:
        """The route of a kind of calls: behind those who listen, to solutions or to the original.

        Args:
            described: The definition.
            runtime: In force, or None.
            values: Of the first call.
            is_passing: Whether outputs are among them.
            plan: What the adapter made of the call's plan, if there is one.
        """
        count = len(described.inputs)
        dispatcher = dispatcher_of(described.name, runtime)
        route: Route = self._unrouted
        if runtime is not None and dispatcher is not None and (plan is None or plan.is_routable):
            own = self.own_solutions(self.adapter, runtime, dispatcher.definition)
            planned = None if plan is None else self._planned(dispatcher, values[:count], own)
            route = planned or self._routed(dispatcher, described, own, is_passing=is_passing)
        return _behind_listeners(described, route)

    def _unrouted(self, *values: Any) -> Served:
        *_, args, kwargs = values
        return Served(self.original(*args, **kwargs))

    def _routed(self, dispatcher: Dispatcher, described: Described, own: frozenset[str], *, is_passing: bool) -> Route:
        outputs = described.outputs if is_passing else ()
        parameters = tuple(
            Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in (*described.inputs, *outputs, *_CARRIED)
        )
        is_compared = dispatcher.config.shadow_ratio > 0
        if is_compared and not self.target.is_comparable:
            return self._unrouted
        label = f"{self.target.path.rpartition('.')[2]}_{'passing' if is_passing else 'returning'}"
        form = Form(parameters, described.inputs, outputs)
        return dispatcher.route(label, form, self._shadowed if is_compared else self._unrouted, own=own)

    def _shadowed(self, *values: Any) -> Any:
        """The definition's outputs as the original computes them, to be compared with a solution's."""
        *given, args, kwargs = values
        if self.target.shadow is None:
            return self.original(*args, **kwargs)
        return self.target.shadow(self.original, args, kwargs, given)

    def _planned(self, dispatcher: Dispatcher, inputs: Sequence[Any], own: frozenset[str]) -> Route | None:
        """A route to a solution with ``setup``, which runs now; None where none is the best, or nothing may run."""
        if _is_capturing(inputs):
            return None
        run = dispatcher.plan_setup(*inputs, fallback=_miss, own=own)
        if run is None:
            return None
        original = self.original

        def planned(*values: Any) -> Any:
            *given, args, kwargs = values
            result = run(*given)
            return Served(original(*args, **kwargs)) if result is _MISSED else result

        return planned


def problem(adapter: Adapter, described: Described, definition: Definition | None) -> str | None:
    """Why calls of a definition are not covered; None if they are.

    Without a definition nothing is routed, and who listens may make one of the call.

    Args:
        adapter: Who describes them.
        described: What it says of the definition.
        definition: The one at hand, if there is any.
    """
    if definition is not None:
        theirs = tuple(definition.inputs), tuple(definition.outputs)
        if theirs != (described.inputs, described.outputs):
            return f"{described.name!r} at hand takes {theirs[0]} and gives {theirs[1]}"
    for parameter, value in described.baked.items():
        known = _baked(adapter, described.name, parameter, definition)
        if known is None and definition is not None:
            return f"the {parameter} of {described.name!r} cannot be read from its reference, and nobody declared it"
        if known is not None and known != value:
            return f"{parameter} is {value!r}, and the reference of {described.name!r} has {known!r}"
    return None


def _baked(adapter: Adapter, name: str, parameter: str, definition: Definition | None) -> float | None:
    """What a reference has built in: what the one at hand says, else what the adapter declares."""
    read = None if definition is None else small_constant(definition.reference)
    return adapter.declared.get(name, {}).get(parameter) if read is None else read


def _miss(*values: Any) -> Any:
    del values
    return _MISSED


def _is_capturing(values: Sequence[Any]) -> bool:
    is_cuda = any(isinstance(value, torch.Tensor) and value.is_cuda for value in values)
    return is_cuda and torch.cuda.is_current_stream_capturing()


def dispatcher_of(name: str, runtime: Runtime | None) -> Dispatcher | None:
    """The dispatcher of a definition; a damaged one has none, for the engine must go on."""
    try:
        return None if runtime is None else runtime.dispatcher(name)
    except FibError as error:
        logger.warning("calls of %r go to the library: %s", name, error)
        return None


def _behind_listeners(described: Described, route: Route) -> Route:
    """A route behind those who listen to a definition's calls: they get the inputs alone."""
    notes = notes_for(described.name, described.inputs)
    if not notes:
        return route
    count = len(described.inputs)

    def noted(*values: Any) -> Any:
        for note in notes:
            note(*values[:count])
        return route(*values)

    return noted
