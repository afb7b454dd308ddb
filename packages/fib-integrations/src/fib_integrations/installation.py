"""Installation of adapters: `install_flashinfer_integrations`, and their status.

If the environment enables routing or tracing (``FIB_ENABLE_APPLY``, ``FIB_ENABLE_TRACING``), the runtime starts at
the first call of a patched function, not at installation: engines load plugins in processes that never compute, and
before they fork.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import attrs
from fib_apply import runtime as apply_runtime

from .adapter import Adapter, NotPatched, Target
from .adapters import select_adapters
from .environment import is_enabled
from .handlers import PlanStore
from .patched_function import ConvertedCall, PatchedFunction, UnsupportedCall
from .patching import PatchSpec, PatchState, PatchStatus, get_manager


@attrs.frozen
class TargetStatus(PatchStatus):
    """The status of one target of an adapter."""

    adapter: str = ""
    unsupported_calls: tuple[tuple[str, int], ...] = ()
    """The number of unsupported calls by reason, most frequent first, if calls are counted."""


_lock = threading.RLock()
_adapters: dict[str, Adapter] = {}
_plans: dict[str, PlanStore] = {}
_is_counting = False
_provided: dict[str, PatchedFunction] = {}
"""Functions that engines call as providers, by path."""
_PROVIDED = "a provider, which the engine must select"
_is_started = False
"""Whether fib-apply has read the environment."""


def install_flashinfer_integrations(
    adapters: Iterable[str] | None = None, *, also: Iterable[str] = (), count_calls: bool = False
) -> None:
    """Patch FlashInfer, now or when it is imported, so that its calls go through apply and tracing.

    Targets that the installed version lacks are skipped; see `status`. A second installation changes nothing.

    Args:
        adapters: Names of adapters; None selects the default ones.
        also: Further adapters, such as ``torch_linear``.
        count_calls: Whether to count unsupported calls by reason, which costs each of them 0.2 us. Those
            with a key of which no solution can win are not looked at.

    Raises:
        UnknownName: No adapter has a given name.
        CannotAdapt: The adapter of another package cannot be used.
    """
    global _is_counting  # noqa: PLW0603 the adapters of a process are counted together
    manager = get_manager()
    with _lock:
        _is_counting = _is_counting or count_calls
        for adapter in select_adapters(adapters, also):
            _adapters[adapter.name] = adapter
            for target in adapter.targets:
                manager.patch(patch_spec(adapter, target), wrapper_factory(adapter, target))
        manager.rebind_aliases()
        for function in _patched_functions().values():
            _connect(function)


def uninstall_flashinfer_integrations() -> None:
    """Restore all originals; a wrapper that is still referenced calls its original."""
    global _is_counting  # noqa: PLW0603 likewise
    with _lock:
        get_manager().unpatch_all()
        for function in _provided.values():
            function.deactivate()
        _adapters.clear()
        _is_counting = False
        for plans in _plans.values():  # later plans are not recorded
            plans.by_id.clear()


def provide(adapter: Adapter, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is routed and traced like a patched one, for an engine that calls it as one of its providers.

    A second call returns the same function, and connects it again after `uninstall_flashinfer_integrations`.

    Raises:
        CannotAdapt: The target differs from what the adapter was written for.
    """
    with _lock:
        function = _provided.get(target.path)
        if function is None:
            function = _provided[target.path] = PatchedFunction(adapter, target, original, plans=PlanStore())
        function.is_active = True
        _connect(function)
        return function.wrapper


def status() -> tuple[TargetStatus, ...]:
    """The status of each target."""
    with _lock:
        owners = {target.path: adapter.name for adapter in _adapters.values() for target in adapter.targets}
        functions = {**_patched_functions(), **_provided}
        states = {True: PatchState.INSTALLED, False: PatchState.INACTIVE}
        provided = [PatchStatus(path, states[one.is_active], _PROVIDED) for path, one in _provided.items()]
        found = []
        for patch in (*get_manager().status(), *provided):
            function = functions.get(patch.path)
            adapter = owners.get(patch.path, "") if function is None else function.adapter.name
            counts = () if function is None else tuple(function.unsupported_counts.most_common())
            fields = attrs.asdict(patch, recurse=False)
            found.append(TargetStatus(**fields, adapter=adapter, unsupported_calls=counts))
        return tuple(found)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> ConvertedCall | UnsupportedCall:
    """The definition that describes a call of a patched function, or the reason why none does; the call is not made.

    Raises:
        NotPatched: The function is not patched.
    """
    patched: PatchedFunction | None = getattr(function, "__fib_patched__", None)
    if patched is None:
        raise NotPatched(getattr(function, "__qualname__", repr(function)), tuple(sorted(_patched_functions())))
    owner = getattr(function, "__self__", None)
    return patched.explain(args if owner is None else (owner, *args), kwargs)


def patch_spec(adapter: Adapter, target: Target) -> PatchSpec:
    """The patch of a target; a capitalised parent in its path is a class."""
    owner = target.path.split(".")[-2]
    return PatchSpec(target.path, "method" if owner[:1].isupper() else "function", ctx_key=adapter.name)


def wrapper_factory(adapter: Adapter, target: Target) -> Callable[[PatchSpec, Any], Callable[..., Any]]:
    """Makes the replacement of a target's function, connected to the runtime and listeners of fib-apply."""
    plans = _plans.setdefault(adapter.name, PlanStore())

    def make(spec: PatchSpec, original: Callable[..., Any]) -> Callable[..., Any]:
        del spec
        if adapter.engine is not None:
            adapter.engine.check(target.path, original)
        function = PatchedFunction(adapter, target, original, plans=plans)
        _connect(function)
        return function.wrapper

    return make


def _patched_functions() -> dict[str, PatchedFunction]:
    """The functions that are patched now, by path."""
    found = ((path, getattr(wrapper, "__fib_patched__", None)) for path, wrapper in get_manager().wrappers().items())
    patched = {path: function for path, function in found if function is not None}
    return patched | {path: function for path, function in _provided.items() if function.is_active}


def _connect(function: PatchedFunction) -> None:
    """Connect a function to the runtime and listeners of fib-apply, now or at its first call."""
    if _is_counting:
        function.enable_counting()
    if _is_started or not is_enabled():
        apply_runtime.connect(function)
    else:
        function.start_at_first_call(start)


def start() -> None:
    """Let fib-apply start what the environment enables, and connect all functions."""
    global _is_started  # noqa: PLW0603 one start per process
    with _lock:
        _is_started = True
        functions = _patched_functions().values()
    for function in functions:  # without the lock: listeners of other packages start here
        apply_runtime.connect(function)
