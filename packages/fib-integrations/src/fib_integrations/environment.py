"""Environment variables that enable this package, and the start-up hook that child processes inherit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ADAPTERS_VARIABLE = "FIB_INTEGRATIONS"
"""Adapters to install in addition to the default ones: ``torch_linear,torch_mm``."""
HOOKS = Path(__file__).with_name("hooks")
"""The folder of our ``sitecustomize`` module."""
_ENABLE_VARIABLES = ("FIB_ENABLE_APPLY", "FIB_ENABLE_TRACING")
"""Read by fib-apply and fib-tracer."""
_FALSE = ("", "0", "false", "off", "no")


def is_enabled() -> bool:
    """Whether the environment enables routing or tracing."""
    return any(os.environ.get(name, "").strip().lower() not in _FALSE for name in _ENABLE_VARIABLES)


def extra_adapters() -> list[str]:
    """The adapters that the environment adds to the default ones."""
    return [name.strip() for name in os.environ.get(ADAPTERS_VARIABLE, "").split(",") if name.strip()]


def with_startup_hook(environment: Mapping[str, str]) -> dict[str, str]:
    """A copy of an environment in which every Python process runs our ``sitecustomize`` first."""
    paths = [str(HOOKS), *(path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path)]
    return {**environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
