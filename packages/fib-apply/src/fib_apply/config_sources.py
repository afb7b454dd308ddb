"""Configuration of a runtime: arguments of the program, a file of settings, and defaults.

A file has the keys ``default`` (fields of `ApplyConfig`), ``definitions`` (the same by definition; what is not given
there is as in ``default``), and ``stats``, whether calls are counted. An argument counts before the file that
``FIB_APPLY_CONFIG`` names, for the part that it sets: `apply_config` for the settings of definitions, `stats` for
counting. ``FIB_ENABLE_APPLY=0`` counts before all.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import attrs
from fib_schema import FibError
from fib_schema.files import explain_os_error
from fib_schema.settings import InvalidSetting, SettingsFile

from .config import ApplyConfig, ApplyConfigRegistry, Settings, to_registry
from .environment import CONFIG_VARIABLE, ENABLE_VARIABLE, enabled_by_environment
from .events import Event, EventKind, emit

SettingsOrFile: TypeAlias = "Settings | str | os.PathLike[str]"
"""Settings, or a YAML file with them."""
MAX_FILE_BYTES = 128 << 10
"""One of this size, with 1,500 definitions, takes 1.6 s, and a thread of the engine waits."""
_ELSEWHERE = "a setting of definitions; put it below 'default', or below 'definitions'"


# -- files -------------------------------------------------------------------------------------------


@attrs.frozen
class ConfigFile:
    """The settings of a file."""

    path: Path
    registry: ApplyConfigRegistry
    stats: bool = False
    """Whether calls are counted."""

    def to_plain(self) -> dict[str, Any]:
        """The settings with all defaults as plain objects, for JSON."""
        of_definitions = {name: _plain(config) for name, config in self.registry.per_definition.items()}
        return {"default": _plain(self.registry.default), "definitions": of_definitions, "stats": self.stats}


@attrs.frozen(kw_only=True)
class _Top:
    """The keys of a file."""

    default: Mapping[str, Any] = attrs.field(factory=dict)
    definitions: Mapping[str, Any] = attrs.field(factory=dict)
    stats: bool = False


def read_config(path: str | os.PathLike[str]) -> ConfigFile:
    """Read a configuration file.

    Relative paths in it start at its folder.

    Raises:
        InvalidConfigFile: It is not valid; the error lists all problems (a ValueError).
        OSError: It cannot be read, is larger than 128 KiB, or is not a regular file.
    """
    file = SettingsFile.load(path, max_bytes=MAX_FILE_BYTES)
    top = file.read(_Top, elsewhere=dict.fromkeys(attrs.fields_dict(ApplyConfig), _ELSEWHERE)) or _Top()
    names = file.names("definitions")
    for keys in (("default",), *(("definitions", name) for name in names)):
        _resolve_signers(file.value(*keys), Path(path).absolute().parent)
    default = file.read(ApplyConfig, "default") or ApplyConfig()
    configs = {name: file.read(ApplyConfig, "definitions", name, base=default) or default for name in names}
    registry = ApplyConfigRegistry()
    try:
        registry = ApplyConfigRegistry(default, configs)
    except InvalidSetting as error:  # settings that contradict each other
        file.note(error.problem, "definitions")
    file.check()
    return ConfigFile(Path(path), registry, top.stats)


def _resolve_signers(settings: Any, folder: Path) -> None:
    """Signers are files or the texts of keys; a text that names a file of the folder becomes its path."""

    def resolve(value: Any) -> Any:
        if isinstance(value, list):
            return [resolve(item) for item in value]
        if isinstance(value, str) and "\n" not in value and len(value) < os.pathconf("/", "PC_NAME_MAX"):
            return str(folder / value) if (folder / value).is_file() else value
        return value

    if isinstance(settings, dict) and "require_signed_by" in settings:
        settings["require_signed_by"] = resolve(settings["require_signed_by"])


def _plain(config: ApplyConfig) -> dict[str, Any]:
    def convert(value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        return list(value) if isinstance(value, tuple) else value

    return {field.name: convert(getattr(config, field.name)) for field in attrs.fields(ApplyConfig)}


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
    files: tuple[Path, ...] = ()
    """The files that were read."""
    argument: SettingsOrFile = None
    stats: bool | None = None

    @classmethod
    def of(cls, argument: SettingsOrFile, stats: bool | None = None) -> Configuration:
        """Combine the arguments of a program with the file of the environment.

        Raises:
            InvalidSetting: `argument` is neither settings nor None.
            InvalidConfigFile: `argument` is a file that is not valid.
            OSError: It is a file that cannot be read.
        """
        path = os.environ.get(CONFIG_VARIABLE)
        if isinstance(argument, str | os.PathLike):
            files: tuple[Path, ...] = (Path(argument),)
            found: ConfigFile | None = read_config(argument)
        else:
            files = (Path(path),) if path else ()
            found = _read_of_environment(path) if path else None
        if isinstance(argument, str | os.PathLike) or argument is None:
            registry = ApplyConfigRegistry() if found is None else found.registry
        else:
            registry = to_registry(argument)
        is_counted = found is not None and found.stats if stats is None else stats
        return cls(registry, is_counted, bool(files) and found is None, files, argument, stats)

    def renewed(self, argument: SettingsOrFile = None) -> Configuration:
        """The configuration of another argument, or of the same ones with files as they are now.

        Raises:
            InvalidSetting: `argument` is neither settings nor None.
            InvalidConfigFile: A file is not valid now.
            OSError: A file cannot be read now.
        """
        if argument is not None:
            return self.of(argument, self.stats)
        for path in self.files:
            read_config(path)
        return self.of(self.argument, self.stats)

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
        _report(path, explain_os_error(error))
    except FibError as error:
        _report(path, str(error))
    return None


def _report(path: str, problem: str) -> None:
    token = object()
    if _reported.setdefault((path, problem), token) is token:  # one step, so that one of several threads reports it
        text = (
            f"{CONFIG_VARIABLE}={path}: nothing is routed until the file is corrected, because its settings may "
            f"exclude solutions: {problem}\n  'fib-apply check' shows the same"
        )
        emit(Event(EventKind.CONFIG_REJECTED, text, logging.ERROR, problem=problem))


_reported: dict[tuple[str, str], object] = {}
