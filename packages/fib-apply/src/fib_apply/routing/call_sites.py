"""Call sites: decorated functions and direct calls, and the target that these currently go to.

The wrapper of a call site calls a global of its own, ``_fib_route``: the user's function or a route of the active
runtime, with the callbacks of listeners before either. All call sites are rebound when a runtime starts or stops, or
when listeners change; a call that has begun is not affected.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from fib_compile.signatures import POSITIONAL, VARIADIC, default_values
from fib_schema import FibError

from ..errors import CannotRoute, NoKernel
from ..events import logger, warn_once
from ..hook import callbacks_for, has_listeners
from .codegen import RESERVED, compile_function, map_parameters, notifying_source, parameters_of, wrapper_source

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

Function: TypeAlias = Callable[..., Any]
Name: TypeAlias = "str | Callable[..., str]"
"""A definition's name, or a resolver: a function that returns it for a call's arguments."""

_ROUTE = "_fib_route"
_ORIGINALS = ("__script_if_tracing_wrapper", "__original_fn")
"""The attributes by which `torch.jit.script` finds the function behind a wrapper."""
TRACED_INSTEAD = "_torchdynamo_inline"
"""The attribute by which torch.compile marks its own results: Dynamo traces its value in place of the function.

The public `torch.compiler.substitute_in_graph` does the same, but cannot be undone and keeps every function alive.
"""


class Runtime(Protocol):
    """The part of a runtime that call sites use."""

    def dispatcher(self, name: str) -> Dispatcher | None:
        """The dispatcher of a definition, or None if there is no such definition."""
        ...


class Rebindable(Protocol):
    """A `CallSite`, or a function that another package patches."""

    def make_binding(self, runtime: Runtime | None) -> Callable[[], None]:
        """Return what sends calls through a runtime, or to the function itself. Nothing changes until it is called."""
        ...


class CallSite:
    """A function whose calls are routed.

    Pickling by value, as cloudpickle does with functions of ``__main__``, takes the globals of a wrapper along. Targets
    belong to this process, so they are among the names that Python looks up behind the globals, its builtins; a copy
    is connected to the runtime of the process that loads it.

    Raises:
        CannotRoute: It is a coroutine function or a generator function.
    """

    def __init__(self, name: Name, function: Function, connect: Callable[[CallSite], None]) -> None:
        _check_kind(name, function)
        self._connect = connect
        self._definition = name
        self._function = function
        self._parameters = parameters_of(function)
        self._label = _identifier(getattr(function, "__name__", "call"))
        self._targets = {**vars(builtins), _ROUTE: function}
        scope = {"__builtins__": self._targets, **default_values(self._parameters or ())}
        wrapper = compile_function(wrapper_source(self._parameters), self._label, scope)
        self.wrapper: Function = functools.update_wrapper(wrapper, function, updated=())
        attributes: dict[str, Any] = getattr(function, "__dict__", {})  # builtins have none
        vars(wrapper).update({name: value for name, value in attributes.items() if _is_copied(name)})
        vars(wrapper)["__fib_call_site__"] = self  # the call site lives as long as the wrapper
        vars(wrapper).update(dict.fromkeys(_ORIGINALS, function))
        connect(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_targets"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._targets = self.wrapper.__globals__
        self._targets[_ROUTE] = self._function
        self._connect(self)

    def make_binding(self, runtime: Runtime | None) -> Callable[[], None]:
        """Return what sends calls through a runtime, or to the function itself; it only sets one global."""
        name = self._definition
        if runtime is None and not has_listeners():
            target = self._function
        elif isinstance(name, str):
            target = self._target(name, runtime)
        else:
            target = self._resolving_target(name, runtime)
        return functools.partial(self._targets.__setitem__, _ROUTE, target)

    def _resolving_target(self, resolver: Callable[..., str], runtime: Runtime | None) -> Function:
        targets: dict[str, Function] = {}

        def resolving(*args: Any, **kwargs: Any) -> Any:
            name = definition_of(resolver, args, kwargs)
            if name is None:
                return self._function(*args, **kwargs)
            target = targets.get(name)
            if target is None:
                target = targets[name] = self._target(name, runtime)
            return target(*args, **kwargs)

        return self._hidden_from_compilers(resolving)

    def _target(self, name: str, runtime: Runtime | None) -> Function:
        """The target of calls of a definition: a route or the function, after the callbacks of listeners."""
        dispatcher = _dispatcher(name, runtime)
        route = self._function if dispatcher is None else self._route(dispatcher)
        return self._hidden_from_compilers(self._with_listeners(name, route))

    def _hidden_from_compilers(self, target: Function) -> Function:
        """Let torch.compile trace the user's function in place of a target: compiled code keeps the original."""
        if target is not self._function:
            setattr(target, TRACED_INSTEAD, self._function)
        return target

    def _with_listeners(self, name: str, target: Function) -> Function:
        parameters = self._parameters
        if parameters is None or any(p.kind in VARIADIC for p in parameters):
            return _notifying_variadic(name, target, [p.name for p in parameters or () if p.kind in POSITIONAL])
        callbacks = callbacks_for(name, tuple(parameter.name for parameter in parameters))
        if not callbacks:
            return target
        scope = {f"_fib_callback{index}": callback for index, callback in enumerate(callbacks)}
        source = notifying_source(parameters, len(callbacks))
        notifying: Function = compile_function(source, self._label, {**scope, "_fib_target": target})
        return notifying

    def _route(self, dispatcher: Dispatcher) -> Function:
        definition = dispatcher.definition
        if self._parameters is None:
            return _variadic_route(dispatcher, self._function)
        try:
            mapped = map_parameters(definition, self._parameters)
        except CannotRoute as error:
            place = place_of(self._function)
            remedy = "give it the parameters of the definition, or decorate a function that has them"
            warn_once((place, definition.name), f"{error}; {place} serves its calls itself: {remedy}")
            return self._function
        return dispatcher.route(self._label, mapped, self._function)


def _dispatcher(name: str, runtime: Runtime | None) -> Dispatcher | None:
    """The dispatcher of a definition; None if its file is damaged, because the engine must go on."""
    try:
        return None if runtime is None else runtime.dispatcher(name)
    except FibError as error:
        logger.warning("calls of %r are not routed: %s", name, error)
        return None


def _variadic_route(dispatcher: Dispatcher, function: Function) -> Function:
    """A route for a function of ``*args`` and ``**kwargs``, whose arguments are in the definition's order."""
    definition = dispatcher.definition
    count = len(definition.inputs)

    def route(*args: Any, **kwargs: Any) -> Any:
        try:
            merged = definition.merge_kwargs_to_args(args[:count], kwargs)
        except TypeError:
            merged = ()
        if not merged or len(args) > count:  # further positional arguments need not be outputs
            dispatcher.count_invalid_arguments()
            return function(*args, **kwargs)
        return dispatcher.serve(merged, lambda: function(*args, **kwargs))

    return route


def _notifying_variadic(name: str, target: Function, known: Sequence[str]) -> Function:
    if not has_listeners():
        return target

    def notifying(*args: Any, **kwargs: Any) -> Any:
        notify_listeners(name, args, kwargs, known)
        return target(*args, **kwargs)

    return notifying


def notify_listeners(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], known: Sequence[str] = ()) -> None:
    """Notify listeners of a call. Positional arguments beyond the `known` names are called ``arg0`` and so on."""
    unknown = (f"arg{index}" for index in range(len(known), len(args)))
    for callback in callbacks_for(name, (*known[: len(args)], *unknown, *kwargs)):
        callback(*args, *kwargs.values())


def definition_of(
    name_or_resolver: str | Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    """The name of a call's definition; None, with one warning for each resolver and kind of error, if there is none."""
    if isinstance(name_or_resolver, str):
        return name_or_resolver
    try:
        name = name_or_resolver(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the engine must go on
        reason, problem = type(error), f"raised {type(error).__name__}: {error}"
    else:
        if isinstance(name, str):
            return name
        reason, problem = type(name), f"returned {name!r:.80} instead of the name of a definition"
    place = place_of(name_or_resolver)
    warn_once((place, reason), f"the resolver {place} {problem}; the fallback serves such calls")
    return None


def place_of(function: Callable[..., Any]) -> str:
    """A function's module and name, and the file and line of its code if it has any; for messages."""
    kind = type(function)
    owner = function if hasattr(function, "__qualname__") else kind
    call = getattr(kind, "__call__", None)  # noqa: B004 - of an object with this method, its code is named
    code = getattr(function, "__code__", None) or getattr(call, "__code__", None)
    name = f"{getattr(owner, '__module__', '?')}.{getattr(owner, '__qualname__', '?')}"
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def _check_kind(name: Name, function: Function) -> None:
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_kind(function) for is_kind in kinds):
        problem = "a call of a coroutine or generator function returns no result; decorate the function that it calls"
        raise CannotRoute(name if isinstance(name, str) else "a function", problem)


def _is_copied(attribute: str) -> bool:
    """Whether the wrapper gets an attribute of the function; marks of torch.compile may disable tracing."""
    return not attribute.startswith(("_torch", "__fib_")) and attribute != "__wrapped__"


def _identifier(name: str) -> str:
    return name if name.isidentifier() and not name.startswith(RESERVED) else "call"


# -- direct calls ------------------------------------------------------------------------------------


def call_fallback(
    name: str, reason: str, args: Sequence[Any], kwargs: Mapping[str, Any], fallback: Callable[..., Any] | None
) -> Any:
    """Serve one call by the fallback.

    Raises:
        NoKernel: There is none; the error has the reason.
    """
    if fallback is None:
        raise NoKernel(name, reason)
    return fallback(*args, **kwargs)


# -- all call sites ----------------------------------------------------------------------------------

_lock = threading.RLock()
_sites: weakref.WeakSet[Rebindable] = weakref.WeakSet()


def add_site(site: Rebindable) -> None:
    """Add a call site to those that are bound again whenever the active runtime changes."""
    with _lock:
        _sites.add(site)


def all_sites() -> list[Rebindable]:
    """The call sites that live."""
    with _lock:
        return list(_sites)


def renew_lock() -> None:
    """Make a free lock in a forked child: a thread of the parent may have held it."""
    global _lock  # noqa: PLW0603 one lock per process
    _lock = threading.RLock()
