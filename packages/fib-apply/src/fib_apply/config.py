"""What a user decides about routing: which traces count, how far ahead to build, what a miss does."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import attrs

from .errors import InvalidSetting

CACHE_FOLDER = "apply-v1"
"""The folder below ``FIB_CACHE_PATH`` that holds all that this package caches."""
ENABLE_VARIABLE = "FIB_ENABLE_APPLY"
"""``1`` enables routing when it is first needed, ``0`` keeps it off whatever the program says."""
_WORDS = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}


class OnMiss(StrEnum):
    """What happens to a call for which nothing was measured."""

    FALLBACK_ONLY = "fallback_only"
    """The fallback serves it."""
    USE_DEF_BEST = "use_def_best"
    """The solution that did best over all keys of the definition serves it."""
    NEAREST = "nearest"
    """What is best at the closest recorded sizes serves it; see `ApplyConfig.nearest`."""


class OnError(StrEnum):
    """What happens when a solution raises."""

    RAISE = "raise"
    """The caller sees the exception."""
    FALLBACK = "fallback"
    """The fallback is called instead, and the solution is not called again."""


def _check(*, least: float, most: float = math.inf, is_optional: bool = False) -> Any:
    def validate(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        del instance
        if value is None and is_optional:
            return
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            wanted = f"a number from {least:g} on" if math.isinf(most) else f"a number from {least:g} to {most:g}"
            raise InvalidSetting(attribute.name, value, wanted + (", or None" if is_optional else ""))

    return validate


K = TypeVar("K", bound=StrEnum)


def _member(kind: type[K], name: str, value: Any) -> K:
    try:
        return kind(value)
    except ValueError:
        raise InvalidSetting(name, value, "one of " + ", ".join(repr(str(item)) for item in kind)) from None


def _on_miss(value: object) -> OnMiss:
    return _member(OnMiss, "on_miss_policy", value)


def _on_error(value: object) -> OnError:
    return _member(OnError, "on_error", value)


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, (tuple, list, set, frozenset)) or not all(isinstance(name, str) for name in value):
        raise InvalidSetting("other_hardware", value, "names of hardware, as traces state them")
    return tuple(value)


def _bounds(value: object) -> Mapping[str, float]:
    is_mapping = isinstance(value, Mapping) and all(
        isinstance(axis, str) and isinstance(bound, (int, float)) and bound >= 1 for axis, bound in value.items()
    )
    if not is_mapping:
        raise InvalidSetting("nearest", value, "a mapping of axes to factors from 1 on")
    return MappingProxyType(dict(value))  # type: ignore[call-overload] # checked above


@attrs.frozen(kw_only=True)
class ApplyConfig:
    """How calls of one definition are routed.

    Raises:
        InvalidSetting: A value is out of bounds (a ValueError).
    """

    max_atol: float | None = attrs.field(default=None, validator=_check(least=0.0, is_optional=True))
    """Traces with a larger absolute error do not count; None trusts the benchmark's verdict."""
    max_rtol: float | None = attrs.field(default=None, validator=_check(least=0.0, is_optional=True))
    """Likewise for the relative error."""
    aot_ratio: float = attrs.field(default=1.0, validator=_check(least=0.0, most=1.0))
    """The share of chosen solutions that are built when a runtime is enabled, those first that win most keys.

    The others are built when they are first needed, in the background.
    """
    on_miss_policy: OnMiss = attrs.field(default=OnMiss.FALLBACK_ONLY, converter=_on_miss)
    nearest: Mapping[str, float] = attrs.field(factory=dict, converter=_bounds, hash=False)
    """For `OnMiss.NEAREST`: axes that may differ from what was recorded, each with the largest factor."""
    on_error: OnError = attrs.field(default=OnError.RAISE, converter=_on_error)
    baseline: str | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.instance_of(str))
    )
    """The solution that stands for the engine's own kernel: what is not faster than it is not chosen."""
    other_hardware: tuple[str, ...] = attrs.field(default=(), converter=_names)
    """Hardware whose traces count where there are none of the hardware at hand, in this order."""
    margin: float = attrs.field(default=0.03, validator=_check(least=0.0))
    """Latencies that differ by no more than this share are the same where traces tell no interval."""
    shadow_ratio: float = attrs.field(default=0.0, validator=_check(least=0.0, most=1.0))
    """The share of calls that are made both ways and compared."""


def _or_default(value: ApplyConfig | None) -> ApplyConfig:
    return ApplyConfig() if value is None else value


def _to_dict(value: Mapping[str, ApplyConfig]) -> dict[str, ApplyConfig]:
    return dict(value)


@attrs.define
class ApplyConfigRegistry:
    """Settings by definition, and those of all others.

    Raises:
        InvalidSetting: Something else than an `ApplyConfig` is given.
    """

    default: ApplyConfig = attrs.field(factory=ApplyConfig, converter=_or_default)
    per_definition: dict[str, ApplyConfig] = attrs.field(factory=dict, converter=_to_dict)

    def __attrs_post_init__(self) -> None:
        _check_config("default", self.default)
        for name, config in self.per_definition.items():
            _check_config(name, config)

    def get(self, name: str) -> ApplyConfig:
        """The settings of a definition."""
        return self.per_definition.get(name, self.default)

    def register(self, name: str, config: ApplyConfig, override: bool = False) -> None:
        """Set those of one definition.

        Raises:
            InvalidSetting: It has some already, and `override` is false.
        """
        _check_config(name, config)
        if name in self.per_definition and not override:
            raise InvalidSetting(name, config, "override=True, for this definition has settings already")
        self.per_definition[name] = config

    def register_many(self, configs: Mapping[str, ApplyConfig], override: bool = False) -> None:
        """Set those of several definitions, or of none if one of them cannot be set.

        Raises:
            InvalidSetting: One has some already, and `override` is false; or something is no `ApplyConfig`.
        """
        for name, config in configs.items():
            _check_config(name, config)
        clashing = sorted(configs.keys() & self.per_definition.keys())
        if clashing and not override:
            raise InvalidSetting(
                clashing[0], configs[clashing[0]], "override=True: this definition has settings already"
            )
        self.per_definition.update(configs)


Settings: TypeAlias = "ApplyConfig | ApplyConfigRegistry | None"
"""What users may pass: settings for all, by definition, or the defaults."""


def to_registry(settings: Settings) -> ApplyConfigRegistry:
    """Settings by definition, whatever form they were given in.

    Raises:
        InvalidSetting: They are no settings.
    """
    if isinstance(settings, ApplyConfigRegistry):
        return settings
    return ApplyConfigRegistry(ApplyConfig() if settings is None else settings)


def _check_config(name: str, config: object) -> None:
    if not isinstance(config, ApplyConfig):
        raise InvalidSetting(name, config, "an ApplyConfig")


def enabled_by_environment(variable: str = ENABLE_VARIABLE) -> bool | None:
    """What a variable says; None if it is not set.

    Raises:
        InvalidSetting: It says neither yes nor no.
    """
    value = os.environ.get(variable, "").strip().lower()
    if not value:
        return None
    if value not in _WORDS:
        raise InvalidSetting(variable, value, "one of " + ", ".join(_WORDS))
    return _WORDS[value]
