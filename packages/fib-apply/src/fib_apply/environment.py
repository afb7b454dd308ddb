"""Environment variables of routing."""

from __future__ import annotations

import os

from fib_schema.settings import InvalidSetting

ENABLE_VARIABLE = "FIB_ENABLE_APPLY"
"""``1`` enables routing on first use; ``0`` keeps it off, whatever the program does."""
CONFIG_VARIABLE = "FIB_APPLY_CONFIG"
"""A YAML file with the settings of all runtimes whose program passes none."""
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
