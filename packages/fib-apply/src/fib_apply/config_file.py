"""Configuration files: the settings of routing in YAML. All problems of a file are collected into one error.

A file has the keys ``default`` (fields of `ApplyConfig`), ``definitions`` (the same by definition; what is not given
there is as in ``default``), and ``stats``, whether calls are counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import yaml
from fib_schema import UnknownName
from fib_schema.regular_files import read_regular

from .config import ApplyConfig, ApplyConfigRegistry
from .errors import InvalidConfigFile, InvalidSetting
from .yaml_nodes import NodeReader, construct

_TOP = ("default", "definitions", "stats")
MAX_FILE_BYTES = 128 << 10
"""One of this size, with 1,500 definitions, takes 1.6 s, and a thread of the engine waits."""
_SHOWN = 80


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


def read_config(path: str | os.PathLike[str]) -> ConfigFile:
    """Read a configuration file.

    Relative paths in it start at its folder.

    Raises:
        InvalidConfigFile: It is not valid; the error lists all problems (a ValueError).
        OSError: It cannot be read, is larger than 128 KiB, or is not a regular file.
    """
    data = read_regular(path, MAX_FILE_BYTES)
    reader = _Reader(folder=Path(path).absolute().parent)
    root = reader.parse(data)
    registry, stats = reader.settings(root) if root is not None else (ApplyConfigRegistry(), False)
    if reader.problems:
        raise InvalidConfigFile(os.fspath(path), tuple(sorted(reader.problems, key=lambda problem: problem.line or 0)))
    return ConfigFile(Path(path), registry, stats)


@attrs.define
class _Reader(NodeReader):
    """Converts the nodes of a file to settings, and collects problems."""

    example = "on_error: fallback"
    folder: Path = Path()

    def settings(self, root: yaml.Node) -> tuple[ApplyConfigRegistry, bool]:
        parts: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, node, value in self.items(root, ""):
            if key in _TOP:
                parts[key] = node, value
            elif key in attrs.fields_dict(ApplyConfig):
                self.note(node, key, "a setting of definitions; put it below 'default', or below 'definitions'")
            else:
                self.note(node, key, str(UnknownName("setting", key, _TOP)))
        default = self.config(parts["default"][1], "default", ApplyConfig()) if "default" in parts else ApplyConfig()
        configs = {}
        if "definitions" in parts:
            for name, _, value in self.items(parts["definitions"][1], "definitions"):
                configs[name] = self.config(value, f"definitions.{name}", default)
        stats = "stats" in parts and self.stats(parts["stats"][1])
        try:
            return ApplyConfigRegistry(default, configs), stats
        except InvalidSetting as error:  # settings that contradict each other
            self.note(root, "definitions", _problem_of(error))
            return ApplyConfigRegistry(), stats

    def config(self, node: yaml.Node, path: str, base: ApplyConfig) -> ApplyConfig:
        """Settings of definitions; `base` has those that are not given."""
        config: ApplyConfig = self.evolved(base, self.fields(ApplyConfig, node, path), node, path)
        return config

    def stats(self, node: yaml.Node) -> bool:
        value = construct(node)
        if not isinstance(value, bool):
            self.note(node, "stats", f"got {value!r}, expected true or false")
        return value is True

    def evolved(self, base: Any, fields: Mapping[str, Any], node: yaml.Node, path: str) -> Any:
        """An attrs object with other fields; the object itself if they contradict each other."""
        try:
            return attrs.evolve(base, **fields)
        except InvalidSetting as error:
            self.note(node, path, _problem_of(error))
            return base

    def fields(self, cls: type, node: yaml.Node, path: str) -> dict[str, Any]:
        """The valid fields of a class."""
        known = tuple(attrs.fields_dict(cls))
        found: dict[str, Any] = {}
        for key, key_node, value in self.items(node, path):
            if key in known:
                found |= self.field(cls, key, value, f"{path}.{key}")
            else:
                self.note(key_node, f"{path}.{key}", str(UnknownName("setting", key, known)))
        return found

    def field(self, cls: type, name: str, node: yaml.Node, path: str) -> dict[str, Any]:
        """One field, if it is valid."""
        try:
            value = _PATHS.get(name, _as_it_is)(self.folder, construct(node))
            return {name: getattr(cls(**{name: value}), name)}
        except InvalidSetting as error:
            self.note(node, path, _problem_of(error))
        except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:  # such as a date in month 13
            problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else error
            self.note(node, path, f"not a plain value: {problem}; write a number, a text or a list")
        return {}


def _as_it_is(folder: Path, value: Any) -> Any:
    del folder
    return value


def _files_from_folder(folder: Path, value: Any) -> Any:
    """Signers are files or the texts of keys; a text that names a file of the folder is this file."""
    if isinstance(value, list):
        return [_files_from_folder(folder, item) for item in value]
    if isinstance(value, str) and "\n" not in value and len(value) < os.pathconf("/", "PC_NAME_MAX"):
        return str(folder / value) if (folder / value).is_file() else value
    return value


_PATHS: Mapping[str, Callable[[Path, Any], Any]] = {
    "require_signed_by": _files_from_folder,
}


def _problem_of(error: InvalidSetting) -> str:
    shown = repr(error.value)
    return f"got {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '...'}, expected {error.wanted}"


def _plain(config: ApplyConfig) -> dict[str, Any]:
    def convert(value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        return list(value) if isinstance(value, tuple) else value

    return {field.name: convert(getattr(config, field.name)) for field in attrs.fields(ApplyConfig)}
