"""Configuration of a runtime: arguments of the program, the file that ``FIB_APPLY_CONFIG`` names, and defaults.

An argument counts before the file, for the part that it sets: `apply_config` for the settings of definitions, `stats`
for counting. ``FIB_ENABLE_APPLY=0`` counts before all.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs
from fib_schema import FibError
from fib_schema.files import explain_os_error

from .config import ApplyConfigRegistry, Settings, to_registry
from .environment import ENABLE_VARIABLE, is_killed
from .events import Event, EventKind, emit

if TYPE_CHECKING:
    from .config_file import ConfigFile

CONFIG_VARIABLE = "FIB_APPLY_CONFIG"
"""A YAML file with the settings of all runtimes whose program passes none."""
SettingsOrFile: TypeAlias = "Settings | str | os.PathLike[str]"
"""Settings, or a YAML file with them."""


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
        is_file = isinstance(argument, str | os.PathLike)
        path = os.environ.get(CONFIG_VARIABLE)
        files = (Path(argument),) if is_file else (Path(path),) if path else ()  # type: ignore[arg-type] # a path
        given = _read(argument) if is_file else None  # type: ignore[arg-type] # likewise
        registry = to_registry(argument) if given is None else given.registry  # type: ignore[arg-type] # no file
        found = _read_of_environment(path) if path and given is None else given
        is_rejected = bool(files) and found is None
        if found is not None and argument is None:
            registry = found.registry
        is_counted = found is not None and found.stats if stats is None else stats
        return cls(registry, is_counted, is_rejected, files, argument, stats)

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
            _read(path)
        return self.of(self.argument, self.stats)

    def why_off(self) -> str | None:
        """Reason why nothing is routed, whatever the table holds; None if calls are routed.

        Raises:
            InvalidSetting: ``FIB_ENABLE_APPLY`` has another value than a boolean.
        """
        if self.is_rejected:
            return f"the file of {CONFIG_VARIABLE} is not usable"
        return f"{ENABLE_VARIABLE} is {os.environ[ENABLE_VARIABLE]!r}" if is_killed() else None


def _read(path: str | os.PathLike[str]) -> ConfigFile:
    from .config_file import read_config  # PyYAML takes 30 ms to import, and most programs have no file

    return read_config(path)


def _read_of_environment(path: str) -> ConfigFile | None:
    """The settings of a file; None, which is reported once, if it is not usable: the engine must go on."""
    try:
        return _read(path)
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
