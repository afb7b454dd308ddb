"""Routes the calls of a serving engine to the fastest verified kernel. Importing this imports no torch.

The names below are imported from their modules when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fib_schema.package_init import lazy_exports, require_linux

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
    "__version__",
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

require_linux("fib-apply")

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

    __version__: str
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        "fib-apply",
        {
            "api": "apply disable_apply enable_apply",
            "config": "ApplyConfig ApplyConfigRegistry OnError OnMiss",
            "errors": "CannotRoute InvalidSetting NoKernel",
            "hook": "add_listener get_apply_hook remove_listener set_apply_hook",
            "key": (
                "ApplyKey ApplyKeyBuilder ApplyKeyFactory AxesOnlyKeyBuilder GEMMKeyBuilder GQAKeyBuilder MLAKeyBuilder"
            ),
            "runtime": "ApplyRuntime get_runtime set_runtime",
            "stats": "DefinitionStats",
            "choosing.table": "ApplyTable",
        },
    )
