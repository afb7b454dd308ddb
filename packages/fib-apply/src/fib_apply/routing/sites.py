"""Sites: functions whose calls are routed, and what their calls go to at the moment.

A site's wrapper calls whatever stands in one global of its own: the user's function, a route of the
runtime in force, or either behind those who listen. Whenever a runtime starts or stops, or somebody
else listens, all sites are pointed anew; a call that is under way finishes where it began.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fib_compile.forking import ForkSafeLock
from fib_compile.signatures import POSITIONAL, VARIADIC, default_values
from fib_schema import FibError

from ..errors import CannotRoute
from ..hook import is_listened, notes_for
from ..log import logger
from .codegen import compiled, listened_source, wrapper_source
from .compiling import StandIn, make_stand_in
from .matching import RESERVED, match, parameters_of

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

Function: TypeAlias = Callable[..., Any]
Name: TypeAlias = "str | Callable[..., str]"
"""A definition's name, or what makes one of a call's arguments."""

_ROUTE = "_fib_route"


class Runtime(Protocol):
    """What a site needs of a runtime."""

    def dispatcher(self, name: str) -> Dispatcher | None:
        """The dispatcher of a definition, or None if there is no such definition."""
        ...


class Pointed(Protocol):
    """Has calls go elsewhere when something changes: a `Site`, or what another package patches."""

    def point(self, runtime: Runtime | None) -> None:
        """Have calls go through a runtime, or past all of them."""
        ...


class Site:
    """A function whose calls are routed.

    Args:
        name: The definition that its calls are of, or what tells for each call.
        function: The user's function, which is the fallback.
    """

    def __init__(self, name: Name, function: Function) -> None:
        _check_kind(name, function)
        self._definition = name
        self._function = function
        self._parameters = parameters_of(function)
        self._label = _identifier(getattr(function, "__name__", "call"))
        self._scope: dict[str, Any] = {_ROUTE: function}
        wrapper = compiled(self._wrapper_source(), self._label, self._scope)
        self.wrapper: Function = functools.update_wrapper(wrapper, function, updated=())
        kept = {name: value for name, value in getattr(function, "__dict__", {}).items() if _is_kept(name)}
        vars(wrapper).update(kept)
        vars(wrapper)["__fib_site__"] = self  # the two live as long as each other

    def _wrapper_source(self) -> str:
        if self._parameters is None:
            return f"def {self._label}(*args, **kwargs):\n    return {_ROUTE}(*args, **kwargs)\n"
        self._scope.update(default_values(self._parameters))
        return wrapper_source(self._label, self._parameters)

    def point(self, runtime: Runtime | None) -> None:
        """Have calls go through a runtime, or straight to the function."""
        name = self._definition
        if runtime is None and not is_listened():
            target = self._function
        elif isinstance(name, str):
            target = self._target(name, runtime)
        else:
            target = self._resolving(name, runtime)
        self._scope[_ROUTE] = target

    def _resolving(self, name_of: Callable[..., str], runtime: Runtime | None) -> Function:
        targets: dict[str, Function] = {}

        def resolving(*args: Any, **kwargs: Any) -> Any:
            name = name_of(*args, **kwargs)
            target = targets.get(name)
            if target is None:
                target = targets[name] = self._target(name, runtime)
            return target(*args, **kwargs)

        StandIn(self._function, None, "its definition is known at the call").attach(resolving)
        return resolving

    def _target(self, name: str, runtime: Runtime | None) -> Function:
        """What calls of a definition go to: a route or the function, behind those who listen."""
        dispatcher = _dispatcher(name, runtime)
        if dispatcher is None:
            route, stand_in = self._function, StandIn(self._function, None, "no runtime serves its calls")
        else:
            route, stand_in = self._route(dispatcher)
        target = self._behind_listeners(name, route)
        if target is not self._function:
            stand_in.attach(target)
        return target

    def _behind_listeners(self, name: str, target: Function) -> Function:
        if self._parameters is None or any(p.kind in VARIADIC for p in self._parameters):
            return listened_in_general(name, target, [p.name for p in self._parameters or () if p.kind in POSITIONAL])
        return _listened(name, self._label, self._parameters, target)

    def _route(self, dispatcher: Dispatcher) -> tuple[Function, StandIn]:
        definition = dispatcher.definition
        if self._parameters is None:
            reason = "its function takes anything"
            return general_route(dispatcher, self._function), StandIn(self._function, None, reason)
        try:
            form = match(definition, self._parameters)
        except CannotRoute as error:
            logger.warning("%s; the function itself serves them all", error)
            return self._function, StandIn(self._function, None, str(error))
        stand_in = make_stand_in(self.wrapper, definition, function=self._function, arguments=form.by_name(definition))
        return dispatcher.route(self._label, form, self._function), stand_in


def _dispatcher(name: str, runtime: Runtime | None) -> Dispatcher | None:
    """The dispatcher of a definition; a damaged one has none, for the engine must go on."""
    try:
        return None if runtime is None else runtime.dispatcher(name)
    except FibError as error:
        logger.warning("calls of %r go to their functions: %s", name, error)
        return None


def general_route(dispatcher: Dispatcher, function: Function) -> Function:
    """Routes calls of a function that takes anything, as the definition orders it."""
    definition = dispatcher.definition
    count = len(definition.inputs)

    def route(*args: Any, **kwargs: Any) -> Any:
        try:
            merged = definition.merge_kwargs_to_args(args[:count], kwargs)
        except TypeError:
            merged = ()
        if not merged or len(args) > count:  # what stands behind the inputs may be something else than outputs
            dispatcher.count_arguments()
            return function(*args, **kwargs)
        return dispatcher.serve(merged, lambda: function(*args, **kwargs))

    return route


def listened_in_general(name: str, target: Function, known: Sequence[str] = ()) -> Function:
    """A target behind those who listen; further arguments by position than are known are called ``arg0`` and so on."""
    if not is_listened():
        return target

    def listened(*args: Any, **kwargs: Any) -> Any:
        note_general(name, args, kwargs, known)
        return target(*args, **kwargs)

    return listened


def note_general(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], known: Sequence[str] = ()) -> None:
    """Tell those who listen of a call; positional arguments have names as far as these are known."""
    unknown = (f"arg{index}" for index in range(len(known), len(args)))
    names = (*known[: len(args)], *unknown, *kwargs)
    for note in notes_for(name, names):
        note(*args, *kwargs.values())


def _listened(name: str, label: str, parameters: Sequence[inspect.Parameter], target: Function) -> Function:
    """A target behind those who listen, of the same parameters, all of them to be passed."""
    notes = notes_for(name, tuple(parameter.name for parameter in parameters))
    if not notes:
        return target
    scope = {f"_fib_note{index}": note for index, note in enumerate(notes)}
    return compiled(listened_source(label, parameters, len(notes)), label, {**scope, "_fib_target": target})


def _check_kind(name: Name, function: Function) -> None:
    """Refuse functions whose calls do not give results.

    Raises:
        CannotRoute: It is a coroutine function or a generator function.
    """
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_kind(function) for is_kind in kinds):
        problem = "a coroutine or generator function gives no result when it is called; decorate what it calls"
        raise CannotRoute(name if isinstance(name, str) else "a function", problem)


def _is_kept(attribute: str) -> bool:
    """Not what torch.compile has left there: it may say not to look at the function."""
    return not attribute.startswith(("_torch", "__fib_")) and attribute != "__wrapped__"


def _identifier(name: str) -> str:
    return name if name.isidentifier() and not name.startswith(RESERVED) else "call"


_lock = ForkSafeLock()
_sites: weakref.WeakSet[Pointed] = weakref.WeakSet()


def add_site(site: Pointed, runtime: Runtime | None) -> None:
    """Have a site pointed now and whenever something changes; `runtime` is the one in force, and stays so meanwhile."""
    with _lock:
        _sites.add(site)
        site.point(runtime)


def point_all(runtime: Runtime | None) -> None:
    """Point all sites."""
    with _lock:
        for site in list(_sites):
            site.point(runtime)
