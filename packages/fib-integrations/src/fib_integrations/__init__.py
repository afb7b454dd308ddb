"""Connects FlashInfer and other kernel libraries to apply and tracing. Importing this imports no torch.

The names below are imported from their modules when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fib_schema.package_init import lazy_exports, require_linux

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
    "__version__",
    "explain",
    "get_manager",
    "install_flashinfer_integrations",
    "status",
    "uninstall_flashinfer_integrations",
]

require_linux("fib-integrations")

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

    __version__: str
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        "fib-integrations",
        {
            "adapter": "Adapter Call Described Plan Reading Unplan",
            "errors": "CannotAdapt ClashingAdapters NotAdapted UnknownAdapter",
            "installation": (
                "TargetStatus explain install_flashinfer_integrations status uninstall_flashinfer_integrations"
            ),
            "patching": "PatchManager PatchSpec get_manager",
            "sites": "Covered Uncovered",
        },
    )
