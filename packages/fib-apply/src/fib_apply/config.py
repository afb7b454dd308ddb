"""Configuration: settings of definitions, files with them, and variables of the environment; files in the cache.

A file has the keys ``default`` (fields of `ApplyConfig`), ``definitions`` (the same by definition; what is not given
there is as in ``default``), and ``stats``, whether calls are counted. An argument counts before the file that
``FIB_APPLY_CONFIG`` names, for the part that it sets: `apply_config` for the settings of definitions, `stats` for
counting. ``FIB_ENABLE_APPLY=0`` counts before all.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

import attrs
from fib_schema import FibError
from fib_schema.files import atomic_write, explain_os_error, find_private_folder, private_folder, read_private
from fib_schema.settings import InvalidSetting, SettingsFile

from .events import is_first, logger

ENABLE_VARIABLE = "FIB_ENABLE_APPLY"
"""``1`` enables routing on first use; ``0`` keeps it off, whatever the program does."""
CONFIG_VARIABLE = "FIB_APPLY_CONFIG"
"""A YAML file with the settings of all runtimes whose program passes none."""
SIGNERS_VARIABLE = "FIB_REQUIRE_SIGNED_BY"
"""A file with public keys, or their text: of every data set, only what the owner of one of them signed is used."""
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


def required_signers() -> tuple[str, ...] | None:
    """The public keys of ``FIB_REQUIRE_SIGNED_BY``; None if it is not set, and every file is believed.

    Raises:
        InvalidSetting: It names no key.
    """
    given = os.environ.get(SIGNERS_VARIABLE)
    if given is None:
        return None
    from fib_schema.signing import read_public_keys

    try:
        return read_public_keys(given)
    except FibError as error:
        wanted = f"a file with public keys, or their text ({error})"
        raise InvalidSetting(SIGNERS_VARIABLE, given[:200], wanted) from error


# -- settings of definitions -------------------------------------------------------------------------


class OnMiss(StrEnum):
    """Policy for calls whose key is not recorded."""

    FALLBACK_ONLY = "fallback_only"
    """The fallback serves it."""
    USE_DEF_BEST = "use_def_best"
    """The best solution over all keys of the definition serves it."""


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


def _policy(kind: type[StrEnum]) -> dict[str, Any]:
    """The converter and the validator of a member of an enumeration."""

    def convert(value: Any) -> Any:
        return kind(value) if value in list(kind) else value

    wanted = "one of " + ", ".join(repr(str(item)) for item in kind)
    return {"converter": convert, "validator": _checked(lambda value: isinstance(value, kind), wanted)}


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
    on_miss_policy: OnMiss = attrs.field(default=OnMiss.FALLBACK_ONLY, **_policy(OnMiss))
    on_error: OnError = attrs.field(default=OnError.RAISE, **_policy(OnError))
    baseline: str | None = attrs.field(default=None, validator=_is_solution)
    """The solution that represents the engine's own kernel: its time is that of the fallback."""
    require_speedup: bool = attrs.field(default=True, validator=_is_bool)
    """Whether only solutions are selected that are faster than the fallback: than the `baseline`, else the reference.

    Differences within the uncertainty of the traces are no speedup. Keys without a recorded time of the fallback are
    left to it.
    """
    margin: float = attrs.field(default=0.03, validator=_number(least=0.0))
    """Latencies that differ by at most this share count as equal where traces record no interval."""
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
        self.per_definition.update(configs)


Settings: TypeAlias = ApplyConfig | ApplyConfigRegistry | None
"""Settings as users pass them: for all definitions, by definition, or None for the defaults."""
SettingsOrFile: TypeAlias = Settings | str | os.PathLike[str]
"""Settings, or a YAML file with them."""


def to_registry(settings: Settings) -> ApplyConfigRegistry:
    """Convert settings to a registry.

    Raises:
        InvalidSetting: The value is not a `Settings`.
    """
    return settings if isinstance(settings, ApplyConfigRegistry) else ApplyConfigRegistry(settings)


def _check_config(name: str, config: object) -> None:
    if not isinstance(config, ApplyConfig):
        raise InvalidSetting(name, config, "an ApplyConfig")


# -- files -------------------------------------------------------------------------------------------

MAX_FILE_BYTES = 128 << 10
"""One of this size, with 1,500 definitions, takes 1.6 s, and a thread of the engine waits."""


@attrs.frozen
class ConfigFile:
    """The settings of a file."""

    registry: ApplyConfigRegistry
    stats: bool = False
    """Whether calls are counted."""


@attrs.frozen(kw_only=True)
class _Top:
    """The keys of a file."""

    default: Mapping[str, Any] = attrs.field(factory=dict)
    definitions: Mapping[str, Any] = attrs.field(factory=dict)
    stats: bool = False


def read_config(path: str | os.PathLike[str]) -> ConfigFile:
    """Read a configuration file.

    Raises:
        InvalidConfigFile: It is not valid; the error lists all problems (a ValueError).
        OSError: It cannot be read, is larger than 128 KiB, or is not a regular file.
    """
    file = SettingsFile.load(path, max_bytes=MAX_FILE_BYTES)
    top = file.read(_Top) or _Top()
    names = file.names("definitions")
    default = file.read(ApplyConfig, "default") or ApplyConfig()
    configs = {name: file.read(ApplyConfig, "definitions", name, base=default) or default for name in names}
    registry = ApplyConfigRegistry()
    try:
        registry = ApplyConfigRegistry(default, configs)
    except InvalidSetting as error:  # settings that contradict each other
        file.note(error.problem, "definitions")
    file.check()
    return ConfigFile(registry, top.stats)


# -- what counts -------------------------------------------------------------------------------------


@attrs.frozen
class Configuration:
    """The settings of a runtime, and where they come from."""

    registry: ApplyConfigRegistry
    is_counted: bool = False
    """Whether calls are counted."""
    is_rejected: bool = False
    """Whether the file of the environment is not usable. Nothing is routed then: without its settings, the runtime
    could select what the file excludes."""
    argument: SettingsOrFile = None
    stats: bool | None = None

    @classmethod
    def of(cls, argument: SettingsOrFile, stats: bool | None = None, *, is_strict: bool = False) -> Configuration:
        """Combine a program's arguments with the file of the environment, whose problems are errors if `is_strict`.

        Raises:
            InvalidSetting: `argument` is neither settings nor None.
            InvalidConfigFile: A file is not valid.
            OSError: A file cannot be read.
        """
        path, settings, is_read = os.environ.get(CONFIG_VARIABLE), argument, is_strict
        if isinstance(settings, str | os.PathLike):
            path, settings, is_read = os.fspath(settings), None, True
        found = (read_config(path) if is_read else _read_of_environment(path)) if path else None
        registry = found.registry if settings is None and found is not None else to_registry(settings)
        is_counted = found is not None and found.stats if stats is None else stats
        return cls(registry, is_counted, bool(path) and found is None, argument, stats)

    def renewed(self, argument: SettingsOrFile = None) -> Configuration:
        """The configuration of another argument, or of the same ones with files as they are now; see `of`."""
        if argument is not None:
            return self.of(argument, self.stats)
        return self.of(self.argument, self.stats, is_strict=True)

    def why_off(self) -> str | None:
        """Reason why nothing is routed, whatever the table holds; None if calls are routed.

        Raises:
            InvalidSetting: ``FIB_ENABLE_APPLY`` has another value than a boolean.
        """
        if self.is_rejected:
            return f"the file of {CONFIG_VARIABLE} is not usable"
        is_killed = enabled_by_environment() is False
        return f"{ENABLE_VARIABLE} is {os.environ[ENABLE_VARIABLE]!r}" if is_killed else None


def _read_of_environment(path: str) -> ConfigFile | None:
    """The settings of a file; None, which is reported once, if it is not usable: the engine must go on."""
    try:
        return read_config(path)
    except OSError as error:
        problem = explain_os_error(error)
    except FibError as error:
        problem = str(error)
    if is_first((path, problem)):
        text = "%s=%s: nothing is routed until the file is corrected, because its settings may exclude solutions: %s"
        logger.error(text, CONFIG_VARIABLE, path, problem)
    return None


# -- the cache ---------------------------------------------------------------------------------------

CACHE_FOLDER = "apply-v1"
"""The folder of tables and probe results below ``FIB_CACHE_PATH``."""


def publish(root: Path, name: str, data: bytes) -> None:
    """Write a file atomically; no other user can read or replace it.

    Raises:
        OSError: The file cannot be written, or another user can change its folder.
    """
    path = root / CACHE_FOLDER / name
    atomic_write(private_folder(path.parent) / path.name, data, mode=0o600)


def read_published(root: Path, name: str) -> bytes:
    """Read a file that `publish` wrote.

    Raises:
        FileNotFoundError: There is none.
        OSError: The file cannot be read, or another user can change it or its folder.
    """
    path = root / CACHE_FOLDER / name
    folder = find_private_folder(path.parent)
    if folder is None:
        raise FileNotFoundError(path)
    return read_private(folder / path.name)
