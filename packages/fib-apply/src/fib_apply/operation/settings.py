"""Settings of operation: those of a whole runtime, not of a definition. A configuration file holds them."""

from __future__ import annotations

from typing import Any

import attrs

from ..errors import InvalidSetting

MAX_FILE_BYTES = 128 << 10
"""Of a configuration file: one of this size, with 1,500 definitions, takes 1.6 s, and a thread of the engine waits."""
RELOAD_SIGNALS = ("SIGHUP", "SIGUSR1", "SIGUSR2")
"""Signals that a reload may be requested by; all others mean something else to engines or to the system."""


def _kind(kind: type, wanted: str) -> Any:
    def validate(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        del instance
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise InvalidSetting(attribute.name, value, wanted)

    return validate


def _between(least: float, most: float, wanted: str, *, is_integer: bool = False) -> Any:
    def validate(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        del instance
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
        if not is_number or (is_integer and not isinstance(value, int)):
            raise InvalidSetting(attribute.name, value, wanted)

    return validate


def _reload_signal(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    del instance
    if value not in RELOAD_SIGNALS:
        raise InvalidSetting(attribute.name, value, "one of " + ", ".join(RELOAD_SIGNALS))


_optional = attrs.validators.optional


@attrs.frozen(kw_only=True)
class MetricsSettings:
    """Destinations of metrics; needs the extra ``metrics``.

    Raises:
        InvalidSetting: A value is out of bounds (a ValueError).
    """

    folder: str | None = attrs.field(default=None, validator=_optional(_kind(str, "the path of a folder")))
    """Each process writes ``fib-apply-PID.prom`` here, for the textfile collector of node_exporter."""
    port: int | None = attrs.field(
        default=None, validator=_optional(_between(1, 65535, "a port from 1 to 65535", is_integer=True))
    )
    """An HTTP endpoint listens here. Only one process of a host gets it."""
    host: str = attrs.field(default="127.0.0.1", validator=_kind(str, "an address of this host"))
    """The address that the endpoint listens on."""
    interval_seconds: float = attrs.field(default=15.0, validator=_between(0.1, 86400.0, "0.1 to 86400 seconds"))
    """Between two writes of the file."""


@attrs.frozen(kw_only=True)
class ReloadSettings:
    """Triggers of a reload besides `ApplyRuntime.reload`.

    Raises:
        InvalidSetting: A value is out of bounds (a ValueError).
    """

    signal: str | None = attrs.field(default=None, validator=_optional(_reload_signal))
    """The name of a signal; its handler is installed in the main thread."""
    watch_seconds: float | None = attrs.field(
        default=None, validator=_optional(_between(0.1, 86400.0, "0.1 to 86400 seconds, or null"))
    )
    """Period of comparing the files with the loaded ones, in seconds; None does not compare them."""


@attrs.frozen(kw_only=True)
class Operation:
    """Settings of a runtime.

    Raises:
        InvalidSetting: A value is out of bounds (a ValueError).
    """

    stats: bool = attrs.field(default=False, validator=_kind(bool, "true or false"))
    """Whether calls are counted; metrics count them too."""
    metrics: MetricsSettings = attrs.field(factory=MetricsSettings)
    reload: ReloadSettings = attrs.field(factory=ReloadSettings)

    @property
    def is_counted(self) -> bool:
        """Whether calls are counted."""
        return self.stats or self.is_published

    @property
    def is_published(self) -> bool:
        """Whether metrics are published."""
        return self.metrics.folder is not None or self.metrics.port is not None
