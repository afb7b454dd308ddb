"""Installs adapters: `install_flashinfer_integrations`, and what is installed.

Nothing is decided when this is called in a process that the environment asks to route or trace
(``FIB_ENABLE_APPLY``, ``FIB_ENABLE_TRACING``): a runtime starts at the first call of a patched function, because
an engine loads plugins in processes that never compute, and before it forks those that do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import attrs
from fib_apply import runtime as apply_runtime
from fib_compile.forking import ForkSafeLock

from .adapter import Adapter, Target
from .adapters import chosen
from .errors import NotAdapted
from .owning import own_solutions
from .patching import PatchManager, PatchSpec, State, get_manager
from .plans import Plans
from .sites import Covered, Site, Uncovered
from .startup import is_asked_for


@attrs.frozen
class TargetStatus:
    """What became of one target of an adapter."""

    adapter: str
    path: str
    state: State
    detail: str = ""
    aliases: tuple[str, ...] = ()
    """Other names of the function that were rebound."""
    holders: tuple[str, ...] = ()
    """What still refers to the function itself: calls through these are not seen."""
    refused: tuple[tuple[str, int], ...] = ()
    """Why calls were not covered, and how many, if calls are counted."""


_lock = ForkSafeLock()
_adapters: dict[str, Adapter] = {}
_plans: dict[str, Plans] = {}
_counted: set[str] = set()
_has_asked = False


def install_flashinfer_integrations(
    adapters: Iterable[str] | None = None, *, also: Iterable[str] = (), count_calls: bool = False
) -> None:
    """Have calls of FlashInfer go through apply and tracing, now and when it is imported later; once.

    Targets that are absent in the version at hand are skipped; `status` tells.

    Args:
        adapters: Names of adapters; None means all that are installed by default.
        also: More of them, such as ``torch_linear``.
        count_calls: Whether calls that are not covered are counted, by reason; it costs them 0.2 us.

    Raises:
        UnknownAdapter: There is none of a name.
        ClashingAdapters: Two have the same name.
    """
    manager = get_manager()
    with _lock:
        for adapter in chosen(adapters, also):
            _adapters[adapter.name] = adapter
            if count_calls:
                _counted.add(adapter.name)
            for target in adapter.targets:
                manager.patch(spec_of(adapter, target), _wrap_for(adapter, target))
        manager.rebind_aliases()
        for site in _sites(manager):
            _connect(site)


def uninstall_flashinfer_integrations() -> None:
    """Put everything back; whoever still holds a patched function calls the original through it."""
    with _lock:
        get_manager().unpatch_all()
        _adapters.clear()
        _counted.clear()
        for plans in _plans.values():  # objects may be planned from now on without our knowing
            plans.forget_all()


def status() -> tuple[TargetStatus, ...]:
    """What became of each target."""
    with _lock:
        wrappers = get_manager().wrappers()
        owners = {target.path: adapter.name for adapter in _adapters.values() for target in adapter.targets}
        found = []
        for patch in get_manager().status():
            site = getattr(wrappers.get(patch.path), "__fib_site__", None)
            refused = tuple(Counter.most_common(site.refused)) if site is not None else ()
            found.append(
                TargetStatus(
                    owners.get(patch.path, "") if site is None else site.adapter.name,
                    patch.path,
                    patch.state,
                    patch.detail,
                    patch.aliases,
                    patch.holders,
                    refused,
                )
            )
        return tuple(found)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Covered | Uncovered:
    """What a call of a patched function computes, or why no definition describes it; the call is not made.

    Raises:
        NotAdapted: The function is not patched.
    """
    site = getattr(function, "__fib_site__", None)
    if site is None:
        raise NotAdapted(getattr(function, "__qualname__", repr(function)), tuple(sorted(get_manager().wrappers())))
    owner = getattr(function, "__self__", None)
    found: Covered | Uncovered = site.look_at(args if owner is None else (owner, *args), kwargs)
    return found


def spec_of(adapter: Adapter, target: Target) -> PatchSpec:
    """The patch of a target: of a method where the path names a class, by its capital."""
    owner = target.path.split(".")[-2]
    return PatchSpec(target.path, "method" if owner[:1].isupper() else "function", ctx_key=adapter.name)


def _wrap_for(adapter: Adapter, target: Target) -> Callable[[PatchSpec, Any], Callable[..., Any]]:
    plans = _plans.setdefault(adapter.name, Plans())

    def wrap(spec: PatchSpec, original: Callable[..., Any]) -> Callable[..., Any]:
        del spec
        site = Site(adapter, target, original, plans=plans, own_solutions=own_solutions)
        _connect(site)
        return site.wrapper

    return wrap


def _sites(manager: PatchManager) -> Iterable[Site]:
    found = (getattr(wrapper, "__fib_site__", None) for wrapper in manager.wrappers().values())
    return [site for site in found if site is not None]


# -- who routes and listens --------------------------------------------------------------------------


def _connect(site: Site) -> None:
    """Have a site pointed whenever something changes; the environment is asked at the first call."""
    if site.adapter.name in _counted:
        site.count()
    if _has_asked or not is_asked_for():
        apply_runtime.connect(site)
    else:
        site.ask_first(_ask)


def _ask() -> None:
    """Have fib-apply start what the environment asks for, and point all sites."""
    global _has_asked  # noqa: PLW0603 asked once in a process
    with _lock:
        _has_asked = True
        for site in _sites(get_manager()):
            apply_runtime.connect(site)
