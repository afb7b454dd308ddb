"""Patch manager: replaces functions of modules that are imported now or later, and restores them.

Aliases are further names of a function, as ``from flashinfer.norm import rmsnorm`` makes one. Those in modules and in a
method's class are rebound. Calls through any other reference, such as a dictionary or a closure, are not seen.

A module that is not imported yet is patched right after its code has run (`environment`), before its importer can
take names from it. wrapt's wrappers are not used: they add 0.6 us to a call, a generated function 0.15 us
(``benchmarks/bench_adapters.py``).
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Literal, TypeAlias

import attrs

from . import environment

_logger = logging.getLogger(__name__)
Kind = Literal["function", "method"]
WrapperFactory: TypeAlias = "Callable[[PatchSpec, Callable[..., Any]], Callable[..., Any]]"
"""Makes the replacement of a function. Its attribute ``__fib_patched__`` is deactivated when it is removed."""
_MISSING: Any = object()


class PatchState(StrEnum):
    """The state of a patch."""

    PENDING = "pending"
    """The module is not imported."""
    INSTALLED = "installed"
    MISSING = "missing"
    """The module has no such function: a different version of the library."""
    INCOMPATIBLE = "incompatible"
    """The function differs from what the adapter was written for."""
    INACTIVE = "inactive"
    """It calls the original."""


@attrs.frozen
class PatchSpec:
    """A function to patch."""

    path: str
    """``package.module.function``, or ``package.module.Class.method``."""
    kind: Kind = "function"
    name: str = attrs.field(default=attrs.Factory(lambda self: self.path, takes_self=True))
    """Its name in messages; the path by default."""
    ctx_key: str = ""
    """Identifies the owner of the patch."""

    @property
    def module(self) -> str:
        """The module's name."""
        return ".".join(self.path.split(".")[: -2 if self.kind == "method" else -1])

    @property
    def attributes(self) -> tuple[str, ...]:
        """The path within the module."""
        return tuple(self.path.split(".")[-2 if self.kind == "method" else -1 :])


@attrs.frozen
class PatchStatus:
    """The status of a patch."""

    path: str
    state: PatchState
    detail: str = ""
    aliases: tuple[str, ...] = ()
    """Other names of the function that were rebound."""


@attrs.frozen
class Alias:
    """A name that was rebound."""

    owner: Any
    name: str
    value: Any = attrs.field(repr=False)
    """The previous value."""

    def __str__(self) -> str:
        return f"{getattr(self.owner, '__name__', self.owner)}.{self.name}"


def rebind_in_modules(pairs: Iterable[tuple[Any, Any]]) -> dict[int, tuple[Alias, ...]]:
    """Rebind names in all imported modules, in one pass.

    torch's own modules are left alone: torch distinguishes functions by identity.

    Returns:
        The rebound names by the id of the current value.
    """
    by_id = {id(old): (old, new) for old, new in pairs}
    if not by_id:
        return {}
    found: dict[int, list[Alias]] = {}
    modules = {id(module): module for name, module in list(sys.modules.items()) if name.partition(".")[0] != "torch"}
    for module in modules.values():
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):
            continue
        for name, value in list(names.items()):
            if id(value) in by_id:
                old, names[name] = by_id[id(value)]
                found.setdefault(id(old), []).append(Alias(module, name, old))
    return {key: tuple(aliases) for key, aliases in found.items()}


def rebind_in_class(owner: type, old: Any, new: Any) -> tuple[Alias, ...]:
    """Rebind other names of a method in its class: ``begin_forward = plan``, and partial methods of it."""
    found = []
    for name, value in list(vars(owner).items()):
        if value is old:
            replacement = new
        elif isinstance(value, functools.partialmethod) and value.func is old:
            replacement = functools.partialmethod(new, *value.args, **value.keywords)
        else:
            continue
        found.append(Alias(owner, name, value))
        setattr(owner, name, replacement)
    return tuple(found)


def restore(aliases: Iterable[Alias], wrapper: Any) -> None:
    """Restore the previous values of names that have not been rebound since."""
    for alias in aliases:
        current = vars(alias.owner).get(alias.name)
        if current is wrapper or getattr(current, "func", None) is wrapper:
            setattr(alias.owner, alias.name, alias.value)


@attrs.define(eq=False)
class _Patch:
    spec: PatchSpec
    make_wrapper: WrapperFactory
    state: PatchState = PatchState.PENDING
    detail: str = ""
    module: Any = None
    owner: Any = None
    original: Any = None
    raw: Any = _MISSING
    """The entry in the owner's own dictionary; missing if the function is inherited."""
    wrapper: Any = None
    aliases: tuple[Alias, ...] = ()
    was_imported: bool = False

    def status(self) -> PatchStatus:
        """The status as a value."""
        return PatchStatus(self.spec.path, self.state, self.detail, tuple(map(str, self.aliases)))

    def is_void(self) -> bool:
        """Whether it patches nothing: the function did not fit, or its module was imported anew."""
        is_anew = self.module is not None and sys.modules.get(self.spec.module) is not self.module
        return is_anew or self.state in (PatchState.MISSING, PatchState.INCOMPATIBLE)

    def install(self, module: Any) -> None:
        """Replace the function."""
        self.module = module
        self.owner, self.original = _resolve(module, self.spec.attributes)
        if self.original is _MISSING:
            self.state, self.detail = PatchState.MISSING, f"{module.__name__} has no {'.'.join(self.spec.attributes)}"
            return
        name = self.spec.attributes[-1]
        self.raw = getattr(self.owner, "__dict__", {}).get(name, _MISSING)
        if isinstance(self.raw, (staticmethod, classmethod, property)):
            self.state, self.detail = PatchState.INCOMPATIBLE, f"it is a {type(self.raw).__name__}"
            return
        try:
            self.wrapper = self.make_wrapper(self.spec, self.original)
            setattr(self.owner, name, self.wrapper)
        except Exception as error:  # noqa: BLE001 an adapter may be third-party code; the import must not fail
            self.state, self.detail = PatchState.INCOMPATIBLE, str(error)
            _logger.warning("%s is not patched: %s", self.spec.name, error)
            return
        self.state, self.detail = PatchState.INSTALLED, ""
        if isinstance(self.owner, type):
            self.aliases = rebind_in_class(self.owner, self.original, self.wrapper)

    def remove(self) -> None:
        """Restore the original; below another patch that is on top of it, the wrapper stays and calls the original."""
        function = getattr(self.wrapper, "__fib_patched__", None)
        if function is not None:
            function.deactivate()
        name = self.spec.attributes[-1]
        is_in_place = getattr(self.owner, "__dict__", {}).get(name) is self.wrapper
        if is_in_place and self.raw is _MISSING:
            delattr(self.owner, name)
        elif is_in_place:
            setattr(self.owner, name, self.raw)
        restore(self.aliases, self.wrapper)


class PatchManager:
    """Patches functions and restores them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._patches: dict[str, _Patch] = {}
        self._hooked: set[str] = set()

    def patch(self, spec: PatchSpec, wrapper_factory: WrapperFactory) -> bool:
        """Patch a function now, or when its module is imported; a second call changes nothing.

        Returns:
            Whether it is patched now.
        """
        with self._lock:
            known = self._patches.get(spec.path)
            if known is not None and known.is_void():
                known = None
            if known is not None and known.spec.ctx_key != spec.ctx_key:
                _logger.warning("%s is not patched for %r: %r has it", spec.name, spec.ctx_key, known.spec.ctx_key)
            if known is None:
                known = self._patches[spec.path] = _Patch(spec, wrapper_factory)
            if known.state is PatchState.PENDING:
                known.was_imported = spec.module in sys.modules
                self._install_or_wait(known)
            return known.state is PatchState.INSTALLED

    def _install_or_wait(self, patch: _Patch) -> None:
        name = patch.spec.module
        module = sys.modules.get(name)
        if module is not None and not environment.is_initializing(module):
            patch.install(module)
        elif name not in self._hooked:
            self._hooked.add(name)
            environment.when_imported(name, lambda: self._on_import(name))

    def _on_import(self, name: str) -> None:
        """Patch a module whose code has run, or whose import failed; other modules may have taken names from it."""
        with self._lock:
            self._hooked.discard(name)
            for patch in self._patches.values():
                if patch.state is not PatchState.PENDING or patch.spec.module != name:
                    continue
                if name in sys.modules:
                    patch.install(sys.modules[name])
                else:  # the import failed; wait for the next one
                    self._install_or_wait(patch)
            self.rebind_aliases()

    def rebind_aliases(self) -> None:
        """Rebind names of functions that were imported before they were patched."""
        with self._lock:
            late = [p for p in self._patches.values() if p.state is PatchState.INSTALLED and p.was_imported]
            found = rebind_in_modules([(p.original, p.wrapper) for p in late])
            for patch in late:
                patch.aliases = (*patch.aliases, *found.get(id(patch.original), ()))
                patch.was_imported = False

    def unpatch_all(self) -> None:
        """Restore all originals."""
        with self._lock:
            installed = [patch for patch in self._patches.values() if patch.state is PatchState.INSTALLED]
            for patch in installed:
                patch.remove()
            self._patches = {}
            rebind_in_modules([(patch.wrapper, patch.original) for patch in installed])

    def status(self) -> tuple[PatchStatus, ...]:
        """The status of each patch."""
        with self._lock:
            return tuple(patch.status() for patch in self._patches.values())

    def wrappers(self) -> Mapping[str, Callable[..., Any]]:
        """The installed wrappers by path."""
        with self._lock:
            return {path: p.wrapper for path, p in self._patches.items() if p.state is PatchState.INSTALLED}


def _resolve(module: Any, attributes: tuple[str, ...]) -> tuple[Any, Any]:
    """The owner of a function and the function, or `_MISSING`."""
    owner = found = module
    for name in attributes:
        owner = found
        try:
            found = getattr(owner, name, _MISSING)
        except Exception as error:  # noqa: BLE001 a lazy attribute may raise anything
            _logger.warning("%s.%s cannot be read: %s", module.__name__, name, error)
            return owner, _MISSING
    return owner, found


_manager = PatchManager()


def get_manager() -> PatchManager:
    """The patch manager of this process."""
    return _manager
