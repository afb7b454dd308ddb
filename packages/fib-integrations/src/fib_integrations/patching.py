"""Patches: functions of modules that are imported now or later, replaced and put back.

A module that is not imported yet is patched right after its code has run, before whoever imports it can take names
from it; `importing` sees to that. wrapt's wrappers are not used: they add 0.6 us to a call, a
generated function 0.15 us (``benchmarks/bench_adapters.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import FunctionType
from typing import Any, Literal, TypeAlias

import attrs
from fib_compile.forking import ForkSafeLock

from . import aliases, importing
from .aliases import Alias
from .log import logger

Kind = Literal["function", "method"]
Wrap: TypeAlias = "Callable[[PatchSpec, Callable[..., Any]], Callable[..., Any]]"
"""Makes the replacement of a function; an attribute ``__fib_site__`` of it, if any, is told of removal (`remove`,
`restore`)."""
_MISSING: Any = object()


class State(StrEnum):
    """What became of a patch."""

    WAITING = "waiting"
    """The module is not imported."""
    INSTALLED = "installed"
    ABSENT = "absent"
    """The module has no such function: another version of the library."""
    UNSUITABLE = "unsuitable"
    """It has one, and it is not what the adapter was written for."""
    BURIED = "buried"
    """Removed, and somebody else's patch was made over it and stays: ours passes calls on."""


@attrs.frozen
class PatchSpec:
    """What is to be patched."""

    path: str
    """``package.module.function``, or ``package.module.Class.method``."""
    kind: Kind = "function"
    name: str = attrs.field(default=attrs.Factory(lambda self: self.path, takes_self=True))
    """What it is called in messages; the path if nothing is given."""
    ctx_key: str = ""
    """For whoever makes the replacement."""

    @property
    def module(self) -> str:
        """The module's name."""
        return ".".join(self.path.split(".")[: -2 if self.kind == "method" else -1])

    @property
    def attributes(self) -> tuple[str, ...]:
        """Where it is within the module."""
        return tuple(self.path.split(".")[-2 if self.kind == "method" else -1 :])


@attrs.frozen
class PatchStatus:
    """What became of a patch."""

    path: str
    state: State
    detail: str = ""
    aliases: tuple[str, ...] = ()
    """Other names of the function that were rebound."""
    holders: tuple[str, ...] = ()
    """What still refers to the function itself, so that its calls are not seen."""


@attrs.define(eq=False)
class _Patch:
    spec: PatchSpec
    wrap: Wrap
    state: State = State.WAITING
    detail: str = ""
    owner: Any = None
    original: Any = None
    raw: Any = _MISSING
    """What stood in the owner's own dictionary; missing if it was inherited."""
    wrapper: Any = None
    aliases: tuple[Alias, ...] = ()
    holders: tuple[str, ...] = ()
    was_imported: bool = False

    def status(self) -> PatchStatus:
        """As a value."""
        detail = "its module was run anew since: install again" if self.is_lost() else self.detail
        return PatchStatus(self.spec.path, self.state, detail, tuple(map(str, self.aliases)), self.holders)

    def is_lost(self) -> bool:
        """Whether the original is back, or the module was run anew (`importlib.reload`); another patch is not that."""
        if self.state not in (State.INSTALLED, State.BURIED):
            return False
        module = sys.modules.get(self.spec.module)
        if module is None:
            return True
        _, current = _resolve(module, self.spec.attributes)
        if current is self.wrapper or current is self.original:
            return current is self.original
        code = getattr(current, "__code__", None)
        is_alike = code is not None and code == getattr(self.original, "__code__", None)
        return is_alike and not _is_below(self.wrapper, current)


class PatchManager:
    """Patches functions, and puts back what was there."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._patches: dict[str, _Patch] = {}
        self._hooked: set[str] = set()

    def patch(self, spec: PatchSpec, wrapper_factory: Wrap) -> bool:
        """Patch a function now, or when its module is imported; once.

        Returns:
            Whether it is patched now.
        """
        with self._lock:
            known = self._patches.get(spec.path)
            if known is not None and known.is_lost():
                self._remove(known)
                aliases.rebind_in_modules([(known.wrapper, known.original)])
                known = None
            if known is not None and known.state in (State.ABSENT, State.UNSUITABLE):
                known = None
            if known is not None and known.spec.ctx_key != spec.ctx_key:
                logger.warning("%s is not patched for %r: %r has it", spec.name, spec.ctx_key, known.spec.ctx_key)
            if known is None:
                known = self._patches[spec.path] = _Patch(spec, wrapper_factory)
            if known.state is State.BURIED:
                self._revive(known)
            elif known.state is State.WAITING:
                known.was_imported = spec.module in sys.modules
                self._install_or_wait(known)
            return known.state is State.INSTALLED

    def _install_or_wait(self, patch: _Patch) -> None:
        module = patch.spec.module
        there = sys.modules.get(module)
        if there is not None and not importing.is_under_way(there):
            self._install(patch, there)
        elif module not in self._hooked:
            self._hooked.add(module)
            importing.when_imported(module, lambda: self._imported(module))

    def _imported(self, name: str) -> None:
        """A module's code has run; others may have taken names from it meanwhile."""
        with self._lock:
            self._hooked.discard(name)
            for patch in self._patches.values():
                if patch.state is not State.WAITING or patch.spec.module != name:
                    continue
                if name in sys.modules:
                    self._install(patch, sys.modules[name])
                else:  # its import failed; there may be another
                    self._install_or_wait(patch)
            self.rebind_aliases()

    def _install(self, patch: _Patch, module: Any) -> None:
        owner, original = _resolve(module, patch.spec.attributes)
        if original is _MISSING:
            patch.state, patch.detail = State.ABSENT, f"{module.__name__} has no {'.'.join(patch.spec.attributes)}"
            return
        name = patch.spec.attributes[-1]
        patch.owner, patch.original = owner, original
        patch.raw = getattr(owner, "__dict__", {}).get(name, _MISSING)
        if isinstance(patch.raw, (staticmethod, classmethod, property)):
            patch.state, patch.detail = State.UNSUITABLE, f"it is a {type(patch.raw).__name__}"
            return
        try:
            patch.wrapper = patch.wrap(patch.spec, original)
            setattr(owner, name, patch.wrapper)
        except Exception as error:  # noqa: BLE001 an adapter may be somebody else's; an import must not fail for it
            patch.state, patch.detail = State.UNSUITABLE, str(error)
            logger.warning("%s is not patched: %s", patch.spec.name, error)
            return
        patch.state, patch.detail = State.INSTALLED, ""
        if isinstance(owner, type):
            patch.aliases = aliases.rebind_in_class(owner, original, patch.wrapper)

    def _revive(self, patch: _Patch) -> None:
        """Ours is still below somebody else's, or was put back in its place."""
        current = getattr(patch.owner, patch.spec.attributes[-1], None)
        site = getattr(patch.wrapper, "__fib_site__", None)
        if site is not None:
            site.restore()
        patch.state, patch.detail = State.INSTALLED, "" if current is patch.wrapper else "below another patch"

    def rebind_aliases(self) -> None:
        """Rebind other names of functions that had been imported before they were patched; see what cannot be."""
        with self._lock:
            late = [p for p in self._patches.values() if p.state is State.INSTALLED and p.was_imported]
            found = aliases.rebind_in_modules([(p.original, p.wrapper) for p in late])
            for patch in late:
                patch.aliases = (*patch.aliases, *found.get(id(patch.original), ()))
                patch.was_imported = False
            self._find_holders([p for p in late if isinstance(p.original, FunctionType)])

    def _find_holders(self, late: Sequence[_Patch]) -> None:
        """Of builtins nothing is told: torch's own tables are full of them."""
        if late:
            found = aliases.other_holders({id(p.original): p.original for p in late})
            for patch in late:
                patch.holders = found.get(id(patch.original), ())
                if patch.holders:
                    logger.warning("%s: calls through %s are not seen", patch.spec.name, ", ".join(patch.holders))

    def unpatch_all(self) -> None:
        """Put everything back."""
        with self._lock:
            installed = [p for p in self._patches.values() if p.state in (State.INSTALLED, State.BURIED)]
            for patch in installed:
                self._remove(patch)
            self._patches = {path: p for path, p in self._patches.items() if p.state is State.BURIED}
            aliases.rebind_in_modules([(patch.wrapper, patch.original) for patch in installed])

    def _remove(self, patch: _Patch) -> None:
        site = getattr(patch.wrapper, "__fib_site__", None)
        if site is not None:
            site.remove()
        name = patch.spec.attributes[-1]
        is_lost, is_in_place = patch.is_lost(), getattr(patch.owner, "__dict__", {}).get(name) is patch.wrapper
        patch.state = State.WAITING if is_lost or is_in_place else State.BURIED
        patch.detail = "somebody else's patch over it stays" if patch.state is State.BURIED else ""
        if is_in_place and patch.raw is _MISSING:
            delattr(patch.owner, name)
        elif is_in_place:
            setattr(patch.owner, name, patch.raw)
        aliases.restore(patch.aliases, patch.wrapper)

    def status(self) -> tuple[PatchStatus, ...]:
        """What became of each patch."""
        with self._lock:
            return tuple(patch.status() for patch in self._patches.values())

    def wrappers(self) -> Mapping[str, Callable[..., Any]]:
        """What is installed, by path."""
        with self._lock:
            return {path: p.wrapper for path, p in self._patches.items() if p.state is State.INSTALLED}


def _resolve(module: Any, attributes: tuple[str, ...]) -> tuple[Any, Any]:
    """What holds a function, and the function; `_MISSING` if it is not there."""
    owner = found = module
    for name in attributes:
        owner = found
        try:
            found = getattr(owner, name, _MISSING)
        except Exception as error:  # noqa: BLE001 what is made when it is asked for may raise anything
            logger.warning("%s of %s cannot be had: %s", name, module.__name__, error)
            return owner, _MISSING
    return owner, found


def _is_below(wrapped: Any, function: Any) -> bool:
    """Whether a function says that it wraps another, be it by others between."""
    seen: set[int] = set()
    while function is not None and function is not wrapped and id(function) not in seen:
        seen.add(id(function))
        function = getattr(function, "__wrapped__", None)
    return function is wrapped


_manager = PatchManager()


def get_manager() -> PatchManager:
    """The manager of this process's patches."""
    return _manager
