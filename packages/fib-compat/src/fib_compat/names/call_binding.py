"""Helpers of adapters: binding of arguments by a cached signature, and values by instance."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["ArgBinder", "ContextStore"]


class ArgBinder:
    """Binds the arguments of calls to a function's parameters.

    Args:
        fn: The function, whose signature is read once.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._signature = inspect.signature(fn)

    @classmethod
    def from_callable(cls, fn: Callable[..., Any]) -> ArgBinder:
        """The binder of a function."""
        return cls(fn)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, with defaults.

        Raises:
            TypeError: The arguments do not fit.
        """
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)


class ContextStore:
    """A mutable mapping for each instance, which lives as long as the instance."""

    def __init__(self) -> None:
        self._values: weakref.WeakKeyDictionary[object, dict[str, Any]] = weakref.WeakKeyDictionary()

    def get(self, inst: object) -> dict[str, Any]:
        """The mapping of an instance; empty at first."""
        return self._values.setdefault(inst, {})
