"""Modules that are being imported: when are they done?

wrapt's import hooks are for modules whose import has not begun. One that has begun is there already, without
what it defines further down; so it is when a module of a library imports torch first, and that has us install.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

_UNDER_WAY = "_initializing"
"""The import system's mark on the specification of a module whose code is running."""
_THEN = "_fib_then"


class _Watched(ModuleSpec):
    """Tells when its module's code has run, before others that wait for the module go on."""

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            if name == _UNDER_WAY and not value:
                _done(self)
        finally:
            ModuleSpec.__setattr__(self, name, value)  # it is of another class by now


def is_under_way(module: Any) -> bool:
    """Whether a module's code is running."""
    return bool(getattr(getattr(module, "__spec__", None), _UNDER_WAY, False))


def when_done(module: Any, then: Callable[[], None]) -> bool:
    """Have a function called once, when a module's code has run or failed.

    Returns:
        False if that cannot be told.
    """
    spec = module.__spec__
    if type(spec) not in (ModuleSpec, _Watched):
        return False
    vars(spec).setdefault(_THEN, []).append(then)
    spec.__class__ = _Watched
    if not is_under_way(module):  # it was done while we came
        _done(spec)
    return True


def _done(spec: ModuleSpec) -> None:
    waiting = vars(spec).pop(_THEN, ())
    spec.__class__ = ModuleSpec
    for then in waiting:
        then()
