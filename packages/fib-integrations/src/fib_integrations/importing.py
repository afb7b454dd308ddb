"""Modules that are not imported yet, or in the middle of it: something to be done when their code has run.

A library's hooks for this (wrapt's) ask `importlib` for a module's specification, which imports its parent while
other threads may be importing that: two threads of an engine then wait for each other
(``test_two_threads_may_import``). The finder here asks the other finders, with the parent's path that it is given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .log import logger

_UNDER_WAY = "_initializing"
"""The import system's mark on the specification of a module whose code is running."""
_waiting: dict[str, list[Callable[[], None]]] = {}
"""By the module's name; who takes something out of it, does it."""


def when_imported(name: str, then: Callable[[], None]) -> None:
    """Have a function called once, when a module's code has run; at once if it has.

    A module that is in the middle of its import may fail there, and be gone when the function is called.
    """
    _waiting.setdefault(name, []).append(then)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    module = sys.modules.get(name)
    if module is not None and not (is_under_way(module) and _watch(module)):
        _tell(name)


def is_under_way(module: ModuleType) -> bool:
    """Whether a module's code is running."""
    return bool(getattr(getattr(module, "__spec__", None), _UNDER_WAY, False))


def _tell(name: str) -> None:
    for then in _waiting.pop(name, ()):
        try:
            then()
        except Exception:  # noqa: BLE001 an import must not fail for it
            logger.exception("what was to be done after the import of %s failed", name)


class _Finder(MetaPathFinder):
    """Finds what somebody waits for, as the other finders do, and has its loader tell when it is done."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting:
            return None
        others = (getattr(finder, "find_spec", None) for finder in list(sys.meta_path) if finder is not self)
        specs = (find_spec(fullname, path, target) for find_spec in others if find_spec is not None)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader)
        return spec


_finder = _Finder()


class _Loader(Loader):
    """Stands for another one until a module's code runs."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _tell(module.__name__)


class _Watched(ModuleSpec):
    """Tells when its module's code has run, before others that wait for the module go on."""

    def __setattr__(self, name: str, value: Any) -> None:
        ModuleSpec.__setattr__(self, name, value)
        if name == _UNDER_WAY and not value:
            this: Any = self
            this.__class__ = ModuleSpec
            _tell(self.name)


def _watch(module: ModuleType) -> bool:
    """Have a module's specification tell when its code has run; False if it cannot."""
    spec = module.__spec__
    if type(spec) not in (ModuleSpec, _Watched):
        return False
    spec.__class__ = _Watched
    return is_under_way(module)  # it may have been done while we came
