"""Connects FlashInfer and other kernel libraries to apply and tracing. Importing this imports no torch.

The names below are imported from their modules when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .adapter import Adapter, Call, Described, Plan, Reading, Unplan
    from .errors import CannotAdapt, ClashingAdapters, NotAdapted, UnknownAdapter
    from .installation import (
        TargetStatus,
        explain,
        install_flashinfer_integrations,
        status,
        uninstall_flashinfer_integrations,
    )
    from .patching import PatchManager, PatchSpec, get_manager
    from .sites import Covered, Uncovered

_MODULES = {
    "adapter": "Adapter Call Described Plan Reading Unplan",
    "errors": "CannotAdapt ClashingAdapters NotAdapted UnknownAdapter",
    "installation": "TargetStatus explain install_flashinfer_integrations status uninstall_flashinfer_integrations",
    "patching": "PatchManager PatchSpec get_manager",
    "sites": "Covered Uncovered",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "Adapter",
    "Call",
    "CannotAdapt",
    "ClashingAdapters",
    "Covered",
    "Described",
    "NotAdapted",
    "PatchManager",
    "PatchSpec",
    "Plan",
    "Reading",
    "TargetStatus",
    "Uncovered",
    "UnknownAdapter",
    "Unplan",
    "explain",
    "get_manager",
    "install_flashinfer_integrations",
    "status",
    "uninstall_flashinfer_integrations",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
