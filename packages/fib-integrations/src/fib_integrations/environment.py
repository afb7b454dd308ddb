"""Environment of a process: variables that enable this package, and callbacks after the imports of modules.

A callback runs right after a module's code, also for a module that is being imported now.

wrapt's import hooks ask `importlib` for the module's specification, which imports the parent package; two threads that
import the same library then deadlock (``test_two_threads_may_import_a_patched_package``). The finder here asks
the other finders with the parent path that it was given.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ADAPTERS_VARIABLE = "FIB_INTEGRATIONS"
"""Adapters to install in addition to the default ones: ``torch_linear,torch_mm``."""
_ENABLE_VARIABLES = ("FIB_ENABLE_APPLY", "FIB_ENABLE_TRACING")
"""Read by fib-apply and fib-tracer."""
_FALSE = ("", "0", "false", "off", "no")


def is_enabled() -> bool:
    """Whether the environment enables routing or tracing."""
    return any(os.environ.get(name, "").strip().lower() not in _FALSE for name in _ENABLE_VARIABLES)


def extra_adapters() -> list[str]:
    """The adapters that the environment adds to the default ones."""
    return [name.strip() for name in os.environ.get(ADAPTERS_VARIABLE, "").split(",") if name.strip()]


# -- import hooks ------------------------------------------------------------------------------------

_logger = logging.getLogger(__name__)
_INITIALIZING = "_initializing"
"""The attribute that the import system sets on a specification while the module's code runs."""
_callbacks: dict[str, list[Callable[[], None]]] = {}
"""By module name. The thread that pops an entry runs it, so each callback runs once."""


def when_imported(name: str, callback: Callable[[], None]) -> None:
    """Call a function once, when a module's code has run; now if it already has.

    If the running import fails, the module is missing from `sys.modules` when the function is called.
    """
    _callbacks.setdefault(name, []).append(callback)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    module = sys.modules.get(name)
    if module is not None and not (is_initializing(module) and _watch(module)):
        _run_callbacks(name)


def is_initializing(module: ModuleType) -> bool:
    """Whether a module's code is running."""
    return bool(getattr(getattr(module, "__spec__", None), _INITIALIZING, False))


def _run_callbacks(name: str) -> None:
    for callback in _callbacks.pop(name, ()):
        try:
            callback()
        except Exception:  # a callback must not make the import fail
            _logger.exception("a callback after the import of %s failed", name)


class _Finder(MetaPathFinder):
    """Finds modules that have callbacks, with the other finders, and wraps their loaders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _callbacks:
            return None
        others = (getattr(finder, "find_spec", None) for finder in list(sys.meta_path) if finder is not self)
        specs = (find_spec(fullname, path, target) for find_spec in others if find_spec is not None)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader)
        return spec


_finder = _Finder()


class _Loader(Loader):
    """Replaces a loader until the module's code runs."""

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
        _run_callbacks(module.__name__)


class _WatchedSpec(ModuleSpec):
    """Runs the callbacks when the module's code has run, before other threads that wait for the module continue."""

    def __setattr__(self, name: str, value: Any) -> None:
        ModuleSpec.__setattr__(self, name, value)
        if name == _INITIALIZING and not value:
            this: Any = self
            this.__class__ = ModuleSpec
            _run_callbacks(self.name)


def _watch(module: ModuleType) -> bool:
    """Watch a module that is being imported; False if that is not possible, or the import has finished."""
    spec = module.__spec__
    if type(spec) not in (ModuleSpec, _WatchedSpec):
        return False
    spec.__class__ = _WatchedSpec
    return is_initializing(module)  # the import may have finished in another thread
