"""Environment variables: ``FIB_ENABLE_APPLY``, and those that start listeners of other packages."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from fib_schema import FibError

from .errors import InvalidSetting
from .log import logger

T = TypeVar("T")

ENABLE_VARIABLE = "FIB_ENABLE_APPLY"
"""``1`` enables routing on first use; ``0`` keeps it off, whatever the program does."""
LISTENERS = "fib_apply.listeners"
"""Entry points of functions that start a listener; ``tracing`` is called if ``FIB_ENABLE_TRACING`` is set."""
ENABLE_PREFIX = "FIB_ENABLE_"
_BOOLEANS = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}


def enabled_by_environment(variable: str = ENABLE_VARIABLE) -> bool | None:
    """The value of a boolean variable; None if it is not set.

    Raises:
        InvalidSetting: It has another value.
    """
    value = os.environ.get(variable, "").strip().lower()
    if not value:
        return None
    if value not in _BOOLEANS:
        raise InvalidSetting(variable, value, "one of " + ", ".join(_BOOLEANS))
    return _BOOLEANS[value]


def is_killed() -> bool:
    """Whether the environment keeps routing off, whatever the program does.

    Raises:
        InvalidSetting: The variable has another value than a boolean.
    """
    return enabled_by_environment() is False


def start_requested(start_routing: Callable[[], object]) -> None:
    """Start routing and listeners whose variables are set. Errors are logged, because the engine must go on."""
    if log_errors(enabled_by_environment):
        start_routing()
    start_listeners()


def log_errors(call: Callable[[], T]) -> T | None:
    """Call a function that enables routing; returns None after an error, which is logged."""
    try:
        return call()
    except FibError as error:
        logger.error("%s is set, but routing cannot start: %s", ENABLE_VARIABLE, error)
        return None


def start_listeners() -> None:
    """Start the listeners of other packages whose variables are set; each reads its own variable."""
    others = {name for name in os.environ if name.startswith(ENABLE_PREFIX)} - {ENABLE_VARIABLE}
    if not others:  # reading entry points takes milliseconds
        return
    from importlib.metadata import entry_points

    for point in entry_points(group=LISTENERS):
        variable = ENABLE_PREFIX + point.name.upper()
        if variable not in others:
            continue
        try:
            point.load()()
        except Exception as error:  # noqa: BLE001 of another package
            logger.error("%s is set, but %s cannot start: %s: %s", variable, point.value, type(error).__name__, error)
