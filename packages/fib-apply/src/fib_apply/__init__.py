"""Routing of a serving engine's calls to the fastest verified kernel.

How a call is routed:

1. Enable: `enable_apply` makes an `ApplyRuntime` (`runtime`) and puts it on the stack of active ones (`runtime`).
2. Table: the runtime loads an `ApplyTable` (`selection.table`). By rules on traces (`selection.rules`), it ranks
   solutions for each definition, hardware and key (`key`). Winners are built and loaded (`build_service`).
3. Dispatcher: `apply` wraps a function (`routing.call_sites`). While a runtime is active, its calls go to a route that
   the dispatcher of the definition generates (`routing.dispatcher`, `routing.codegen`). Compilers see the function.
4. Guard: the route looks a call up in the table of its variant (`routing.call_variant`), whose guards compare it with
   earlier calls (`routing.native`, `routing.guards`). If none lets it through, the slow path (`routing.slow_path`)
   validates it (`routing.validation`), makes its key and finds the first loaded candidate that may be called now.
5. Call: the route calls the solution's kernel, or the function itself (the fallback) if no solution serves the call.

Importing this package imports no torch; the names below are imported from their modules on first use.
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
    "Event",
    "EventKind",
    "GEMMKeyBuilder",
    "GQAKeyBuilder",
    "InvalidConfigFile",
    "InvalidSetting",
    "MLAKeyBuilder",
    "NoKernel",
    "OnError",
    "OnMiss",
    "Readiness",
    "__version__",
    "add_event_listener",
    "add_listener",
    "apply",
    "capture_phase",
    "disable_apply",
    "enable_apply",
    "get_apply_hook",
    "get_runtime",
    "remove_event_listener",
    "remove_listener",
    "set_apply_hook",
    "set_runtime",
    "wait_until_built",
    "warm_up",
]

require_linux("fib-apply")

if TYPE_CHECKING:
    from .api import apply, capture_phase, disable_apply, enable_apply, warm_up
    from .config import ApplyConfig, ApplyConfigRegistry, OnError, OnMiss
    from .errors import CannotRoute, InvalidConfigFile, InvalidSetting, NoKernel
    from .events import DefinitionStats, Event, EventKind, add_event_listener, remove_event_listener
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
    from .router import Readiness
    from .runtime import ApplyRuntime, get_runtime, set_runtime, wait_until_built
    from .selection.table import ApplyTable

    __version__: str
else:
    __getattr__, __dir__ = lazy_exports(__name__, "fib-apply")
