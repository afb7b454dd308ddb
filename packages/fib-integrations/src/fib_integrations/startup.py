"""Entry points for engine plugins and start-up hooks.

They do nothing unless the environment enables routing or tracing. Importing this module does not import torch. Child
processes inherit the hook by PYTHONPATH (`with_startup_hook`).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from .environment import ADAPTERS_VARIABLE, extra_adapters, is_enabled, is_initializing, when_imported

HOOKS = Path(__file__).with_name("hooks")
"""The folder of our ``sitecustomize`` module."""


def with_startup_hook(environment: Mapping[str, str]) -> dict[str, str]:
    """A copy of an environment in which every Python process runs our ``sitecustomize`` first."""
    paths = [str(HOOKS), *(path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path)]
    return {**environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


_logger = logging.getLogger(__name__)


def load_plugin() -> None:
    """Install the adapters if the environment enables them; engines call this in every process.

    Errors are logged, not raised: the engine must start.
    """
    if not is_enabled():
        return
    if (name := _being_imported()) is not None:  # it has imported torch, and is not complete
        when_imported(name, load_plugin)
        return
    from fib_schema import FibError, UnknownName

    try:
        install_all(extra_adapters())
    except UnknownName as error:
        _logger.error("%s: %s; only the default adapters are installed", ADAPTERS_VARIABLE, error)
        install_all()
    except FibError as error:
        _logger.error("the environment enables adapters, but they cannot be installed: %s", error)


def install_all(also: Iterable[str] = (), *, count_calls: bool = False) -> None:
    """Install the adapters and all hooks into engines; for the parameters see `install_flashinfer_integrations`."""
    from .installation import install_flashinfer_integrations
    from .vllm import install_hooks

    install_flashinfer_integrations(also=also, count_calls=count_calls)
    install_hooks()


def _being_imported() -> str | None:
    """One of our modules whose code is running; None if there is none."""
    modules = list(sys.modules.items())
    return next((name for name, module in modules if name.startswith("fib_") and is_initializing(module)), None)


def install_with_torch() -> None:
    """Call `load_plugin` when torch is imported: for hooks that run in every Python process."""
    if is_enabled():
        when_imported("torch", load_plugin)
