"""Settings of routing: which traces count, what is built ahead of time, and what serves a miss."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeAlias

import attrs
from fib_schema import FibError
from fib_schema.settings import InvalidSetting

SIGNERS_VARIABLE = "FIB_REQUIRE_SIGNED_BY"
"""A file with public keys, or their text: required of every data set whose settings name no keys."""
_KEYS_WANTED = "a file with public keys, the text of a key, or a sequence of these; or None"


class OnMiss(StrEnum):
    """Policy for calls whose key is not recorded."""

    FALLBACK_ONLY = "fallback_only"
    """The fallback serves it."""
    USE_DEF_BEST = "use_def_best"
    """The best solution over all keys of the definition serves it."""
    NEAREST = "nearest"
    """The solutions of the closest recorded key serve it; see `ApplyConfig.nearest`."""


class OnError(StrEnum):
    """Policy for solutions that raise."""

    RAISE = "raise"
    """The caller sees the exception."""
    FALLBACK = "fallback"
    """The fallback serves the call, and the solution is quarantined."""


def _checked(is_valid: Callable[[Any], bool], wanted: str) -> Any:
    def validate(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        del instance
        if not is_valid(value):
            raise InvalidSetting(attribute.name, value, wanted)

    return validate


def _number(*, least: float, most: float = math.inf, is_optional: bool = False) -> Any:
    def is_valid(value: Any) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return (value is None and is_optional) or (is_number and least <= value <= most)

    wanted = f"a number >= {least:g}" if math.isinf(most) else f"a number from {least:g} to {most:g}"
    return _checked(is_valid, wanted + (", or None" if is_optional else ""))


_is_bool = _checked(lambda value: isinstance(value, bool), "True or False")
_is_solution = _checked(lambda value: isinstance(value, str | None), "the name of a solution, or None")


def _to_texts(value: Any) -> Any:
    """A tuple of one or several texts; anything else is left to the validator."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, tuple | list | set | frozenset) else value


def _texts(wanted: str) -> Any:
    def is_valid(value: Any) -> bool:
        return isinstance(value, tuple) and all(isinstance(name, str) for name in value)

    return attrs.field(default=(), converter=_to_texts, validator=_checked(is_valid, wanted))


def _member(kind: type[StrEnum], value: Any) -> Any:
    """A member of an enumeration; anything else is left to the validator."""
    try:
        return kind(value)
    except ValueError:
        return value


def _to_on_miss(value: object) -> Any:
    return _member(OnMiss, value)


def _to_on_error(value: object) -> Any:
    return _member(OnError, value)


def _is_policy(kind: type[StrEnum]) -> Any:
    return _checked(lambda value: isinstance(value, kind), "one of " + ", ".join(repr(str(item)) for item in kind))


def _to_bounds(value: Any) -> Any:
    return MappingProxyType(dict(value)) if _are_bounds(value) else value


def _are_bounds(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(axis, str) and isinstance(bound, int | float) and bound >= 1 for axis, bound in value.items()
    )


def to_signers(value: object, name: str = "require_signed_by") -> tuple[str, ...] | None:
    """The keys of a setting, each as the text of its public key; None if no signature is required.

    Raises:
        InvalidSetting: There is no key, or one is not valid. An empty value is an error, because
            nothing would be verified.
    """
    if value is None:
        return None
    given = [value] if isinstance(value, str | os.PathLike) else value
    if not isinstance(given, Iterable) or isinstance(given, bytes | bytearray):
        raise InvalidSetting(name, value, _KEYS_WANTED)
    from fib_schema.signing import read_public_keys

    found: dict[str, None] = {}
    for item in given:
        if not isinstance(item, str | os.PathLike):
            raise InvalidSetting(name, value, _KEYS_WANTED)
        try:
            found.update(dict.fromkeys(key.text for key in read_public_keys(item)))
        except FibError as error:
            raise InvalidSetting(name, str(item)[:200], f"{_KEYS_WANTED} ({error})") from error
    if not found:
        raise InvalidSetting(name, value, _KEYS_WANTED)
    return tuple(found)


@attrs.frozen(kw_only=True)
class ApplyConfig:
    """Settings of one definition.

    Raises:
        InvalidSetting: A value is out of bounds (a ValueError).
    """

    enabled: bool = attrs.field(default=True, validator=_is_bool)
    """Whether solutions are selected; if not, the fallback serves all calls."""
    exclude: tuple[str, ...] = _texts("names of solutions")
    """Solutions that are not selected."""
    only: tuple[str, ...] = _texts("names of solutions")
    """If any are named, no other solutions are selected."""
    max_atol: float | None = attrs.field(default=None, validator=_number(least=0.0, is_optional=True))
    """Traces with a larger absolute error do not count; None trusts the benchmark's verdict."""
    max_rtol: float | None = attrs.field(default=None, validator=_number(least=0.0, is_optional=True))
    """Likewise for the relative error."""
    aot_ratio: float = attrs.field(default=1.0, validator=_number(least=0.0, most=1.0))
    """The share of selected solutions that are built when a runtime is enabled, those that win most keys first.

    The others are built in the background when they are first needed.
    """
    on_miss_policy: OnMiss = attrs.field(
        default=OnMiss.FALLBACK_ONLY, converter=_to_on_miss, validator=_is_policy(OnMiss)
    )
    nearest: Mapping[str, float] = attrs.field(
        factory=dict,
        converter=_to_bounds,
        validator=_checked(_are_bounds, "a mapping of axes to factors >= 1"),
        hash=False,
    )
    """For `OnMiss.NEAREST`: the axes that may differ from the recorded key, each with the largest factor."""
    on_error: OnError = attrs.field(default=OnError.RAISE, converter=_to_on_error, validator=_is_policy(OnError))
    baseline: str | None = attrs.field(default=None, validator=_is_solution)
    """The solution that represents the engine's own kernel: its time is that of the fallback."""
    require_speedup: bool = attrs.field(default=True, validator=_is_bool)
    """Whether only solutions are selected that are faster than the fallback: than the `baseline`, else the reference.

    Differences within the uncertainty of the traces are no speedup. Keys without a recorded time of the fallback are
    left to it.
    """
    batch_invariant: bool = attrs.field(default=False, validator=_is_bool)
    """Whether one solution serves all sizes of the batch axes, so that results do not depend on the batch size.

    A definition marks its batch axes by tags (``batch_axis:M``); without a mark, all variable axes count.
    """
    other_hardware: tuple[str, ...] = _texts("hardware names as in traces")
    """Hardware whose traces count where there are none of this machine's hardware, in this order."""
    margin: float = attrs.field(default=0.03, validator=_number(least=0.0))
    """Latencies that differ by at most this share count as equal where traces record no interval."""
    require_signed_by: tuple[str, ...] | None = attrs.field(default=None, converter=to_signers)
    """The public keys of owners: a file, the text of a key, or a sequence of these. None believes every file.

    With keys, only what the owner of one of them signed is used; see `fib_schema.signing`. This setting counts for a
    whole data set, so it belongs into the default settings of a registry. Needs ``ssh-keygen``.
    """
    shadow_ratio: float = attrs.field(default=0.0, validator=_number(least=0.0, most=1.0))
    """The share of calls that are made by the solution and the fallback, and compared."""


def _or_default(value: ApplyConfig | None) -> ApplyConfig:
    return ApplyConfig() if value is None else value


def _to_dict(value: Mapping[str, ApplyConfig]) -> dict[str, ApplyConfig]:
    return dict(value)


@attrs.define
class ApplyConfigRegistry:
    """Settings by definition, and a default for all others.

    Raises:
        InvalidSetting: A value is not an `ApplyConfig`.
    """

    default: ApplyConfig = attrs.field(factory=ApplyConfig, converter=_or_default)
    per_definition: dict[str, ApplyConfig] = attrs.field(factory=dict, converter=_to_dict)

    def __attrs_post_init__(self) -> None:
        _check_config("default", self.default)
        for name, config in self.per_definition.items():
            _check_config(name, config)
        self._check_signers(self.per_definition)

    def get(self, name: str) -> ApplyConfig:
        """The settings of a definition."""
        return self.per_definition.get(name, self.default)

    def register(self, name: str, config: ApplyConfig, override: bool = False) -> None:
        """Set the settings of one definition.

        Raises:
            InvalidSetting: It has settings, and `override` is false.
        """
        self.register_many({name: config}, override)

    def register_many(self, configs: Mapping[str, ApplyConfig], override: bool = False) -> None:
        """Set the settings of several definitions: of all, or of none if one cannot be set.

        Raises:
            InvalidSetting: A definition has settings, and `override` is false; or a value is not an `ApplyConfig`.
        """
        for name, config in configs.items():
            _check_config(name, config)
        clashing = sorted(configs.keys() & self.per_definition.keys())
        if clashing and not override:
            raise InvalidSetting(clashing[0], configs[clashing[0]], "override=True, because it has settings already")
        self._check_signers(configs)
        self.per_definition.update(configs)

    def required_signers(self) -> tuple[str, ...] | None:
        """The keys of whose owners one must have signed the data set: of the settings, else of the environment.

        Raises:
            InvalidSetting: Settings of one definition name other keys than the default, or a variable names no key.
        """
        self._check_signers(self.per_definition)
        signers = self.default.require_signed_by
        return to_signers(os.environ.get(SIGNERS_VARIABLE), SIGNERS_VARIABLE) if signers is None else signers

    def _check_signers(self, configs: Mapping[str, ApplyConfig]) -> None:
        for name, config in configs.items():
            if config.require_signed_by not in (None, self.default.require_signed_by):
                wanted = "no other keys than the default settings, which count for the whole data set"
                raise InvalidSetting(f"{name}: require_signed_by", config.require_signed_by, wanted)


Settings: TypeAlias = "ApplyConfig | ApplyConfigRegistry | None"
"""Settings as users pass them: for all definitions, by definition, or None for the defaults."""


def to_registry(settings: Settings) -> ApplyConfigRegistry:
    """Convert settings to a registry.

    Raises:
        InvalidSetting: The value is not a `Settings`.
    """
    if isinstance(settings, ApplyConfigRegistry):
        return settings
    return ApplyConfigRegistry(ApplyConfig() if settings is None else settings)


def _check_config(name: str, config: object) -> None:
    if not isinstance(config, ApplyConfig):
        raise InvalidSetting(name, config, "an ApplyConfig")
