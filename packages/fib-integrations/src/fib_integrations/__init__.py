"""Adapters that connect FlashInfer and other kernel libraries to fib-apply and fib-tracer.

Importing this package does not import torch: the names below are imported from their modules on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fib_schema.package_init import lazy_exports, require_linux

__all__ = [
    "Adapter",
    "Call",
    "CannotAdapt",
    "Conversion",
    "ConvertedCall",
    "DefinitionRef",
    "NotPatched",
    "PatchManager",
    "PatchSpec",
    "Plan",
    "TargetStatus",
    "UnsupportedCall",
    "__version__",
    "explain",
    "get_manager",
    "install_flashinfer_integrations",
    "status",
    "uninstall_flashinfer_integrations",
]

require_linux("fib-integrations")

if TYPE_CHECKING:
    from .adapter import Adapter, Call, CannotAdapt, Conversion, DefinitionRef, NotPatched, Plan
    from .installation import (
        TargetStatus,
        explain,
        install_flashinfer_integrations,
        status,
        uninstall_flashinfer_integrations,
    )
    from .patched_function import ConvertedCall, UnsupportedCall
    from .patching import PatchManager, PatchSpec, get_manager

    __version__: str
else:
    __getattr__, __dir__ = lazy_exports(__name__, "fib-integrations")
