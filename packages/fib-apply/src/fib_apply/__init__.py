"""Routes the calls of a serving engine to the fastest verified kernel. Importing this imports no torch.

The names below are imported from their modules when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .api import apply, disable_apply, enable_apply
    from .choosing.table import ApplyTable
    from .config import ApplyConfig, ApplyConfigRegistry, OnError, OnMiss
    from .errors import CannotRoute, InvalidSetting, NoKernel
    from .hook import add_listener, get_apply_hook, remove_listener, set_apply_hook
    from .key import (
        ApplyKey,
        ApplyKeyBuilder,
        ApplyKeyFactory,
        AxesOnlyKeyBuilder,
        GEMMKeyBuilder,
        GQAKeyBuilder,
        MLAKeyBuilder,
    )
    from .runtime import ApplyRuntime, get_runtime, set_runtime
    from .stats import DefinitionStats

_MODULES = {
    "api": "apply disable_apply enable_apply",
    "config": "ApplyConfig ApplyConfigRegistry OnError OnMiss",
    "errors": "CannotRoute InvalidSetting NoKernel",
    "hook": "add_listener get_apply_hook remove_listener set_apply_hook",
    "key": ("ApplyKey ApplyKeyBuilder ApplyKeyFactory AxesOnlyKeyBuilder GEMMKeyBuilder GQAKeyBuilder MLAKeyBuilder"),
    "runtime": "ApplyRuntime get_runtime set_runtime",
    "stats": "DefinitionStats",
    "choosing.table": "ApplyTable",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "ApplyConfig",
    "ApplyConfigRegistry",
    "ApplyKey",
    "ApplyKeyBuilder",
    "ApplyKeyFactory",
    "ApplyRuntime",
    "ApplyTable",
    "AxesOnlyKeyBuilder",
    "CannotRoute",
    "DefinitionStats",
    "GEMMKeyBuilder",
    "GQAKeyBuilder",
    "InvalidSetting",
    "MLAKeyBuilder",
    "NoKernel",
    "OnError",
    "OnMiss",
    "add_listener",
    "apply",
    "disable_apply",
    "enable_apply",
    "get_apply_hook",
    "get_runtime",
    "remove_listener",
    "set_apply_hook",
    "set_runtime",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
