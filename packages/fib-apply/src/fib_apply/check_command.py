"""Command ``fib-apply check``: shows the problems of a configuration file, or the settings that result."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from .configuration import ConfigFile, read_config
from .errors import InvalidConfigFile
from .selection.table import ApplyTable, setting_problems


def check(options: argparse.Namespace) -> int:
    """``fib-apply check``."""
    path: Path = options.config
    try:
        file = read_config(path)
        if options.dataset is not None:
            _check_names(file, options.dataset)
    except InvalidConfigFile as error:
        if options.json:
            problems = [attrs.asdict(problem) for problem in error.problems]
            print(json.dumps({"file": str(path), "problems": problems, "settings": None}, indent=2))
        else:
            print(*error.lines(), sep="\n", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({"file": str(path), "problems": [], "settings": file.to_plain()}, indent=2))
    else:
        print(f"{path}: valid", *_lines(file), sep="\n")
    return 0


def _check_names(file: ConfigFile, dataset: Path) -> None:
    table = ApplyTable.load_or_build(dataset, file.registry)
    if problems := setting_problems(file.registry, table):
        raise InvalidConfigFile(str(file.path), problems)


def _lines(file: ConfigFile) -> Iterator[str]:
    """The settings that differ from the defaults."""
    plain = file.to_plain()
    defaults = ConfigFile(file.path, type(file.registry)()).to_plain()
    yield from _changed("default", plain.pop("default"), defaults["default"])
    for name, settings in plain.pop("definitions").items():
        yield from _changed(f"definitions.{name}", settings, defaults["default"])
    if plain["stats"]:
        yield "  stats: True"


def _changed(name: str, settings: dict[str, Any], defaults: dict[str, Any]) -> Iterator[str]:
    for key in (field for field in settings if settings[field] != defaults[field]):
        yield f"  {name}.{key}: {settings[key]}"
