"""Switching on by environment: what engines load as a plugin, and what a start-up hook calls.

Nothing happens unless the environment asks for routing or tracing. Importing this imports no torch.
"""

from __future__ import annotations

import os

from .importing import when_imported
from .log import logger

ALSO_VARIABLE = "FIB_INTEGRATIONS"
"""Adapters that are installed beside the default ones: ``torch_linear,torch_mm``."""
_ENABLING = ("FIB_ENABLE_APPLY", "FIB_ENABLE_TRACING")
"""The variables that routing and tracing read."""
_NO = ("", "0", "false", "off", "no")


def is_asked_for() -> bool:
    """Whether the environment asks for anything that concerns calls."""
    return any(os.environ.get(name, "").strip().lower() not in _NO for name in _ENABLING)


def load_plugin() -> None:
    """Install the adapters if the environment asks for it; engines call this in every process.

    What is wrong is logged: an engine must start all the same.
    """
    if not is_asked_for():
        return
    from fib_schema import FibError

    from .installation import install_flashinfer_integrations

    also = [name.strip() for name in os.environ.get(ALSO_VARIABLE, "").split(",") if name.strip()]
    try:
        install_flashinfer_integrations(also=also)
    except FibError as error:
        logger.error("the environment asks for adapters, which cannot be installed: %s", error)


def install_with_torch() -> None:
    """The same as soon as torch is imported: for hooks that run when any Python starts, most of which need none."""
    if is_asked_for():
        when_imported("torch", load_plugin)
