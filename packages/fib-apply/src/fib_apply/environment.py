"""Environment variables: ``FIB_ENABLE_APPLY``, and those that start listeners of other packages."""

from __future__ import annotations

import os
from collections.abc import Callable

from fib_schema import FibError

from .errors import InvalidSetting
from .log import logger

ENABLE_VARIABLE = "FIB_ENABLE_APPLY"
"""``1`` enables routing on first use; ``0`` keeps it off, whatever the program does."""
LISTENERS = "fib_apply.listeners"
"""Entry points of functions that start a listener; ``tracing`` is called if ``FIB_ENABLE_TRACING`` is set."""
_ENABLE_PREFIX = "FIB_ENABLE_"
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


def start_requested(start_routing: Callable[[], object]) -> None:
    """Start routing and listeners whose variables are set. Errors are logged, because the engine must go on."""
    try:
        if enabled_by_environment():
            start_routing()
    except FibError as error:
        logger.error("%s is set, but routing cannot start: %s", ENABLE_VARIABLE, error)
    start_listeners()


def start_listeners() -> None:
    """Start the listeners of other packages whose variables are set; each reads its own variable."""
    others = {name for name in os.environ if name.startswith(_ENABLE_PREFIX)} - {ENABLE_VARIABLE}
    if not others:  # reading entry points takes milliseconds
        return
    from importlib.metadata import entry_points

    for point in entry_points(group=LISTENERS):
        variable = _ENABLE_PREFIX + point.name.upper()
        if variable not in others:
            continue
        try:
            point.load()()
        except Exception as error:  # noqa: BLE001 code of another package, during an engine's call
            logger.error("%s is set, but %s cannot start: %s: %s", variable, point.value, type(error).__name__, error)
