"""Settings files: the settings of tracing in YAML. All problems of a file are collected into one error.

A file has the keys ``default`` (fields of `TracingConfig`, or null), ``rules`` (a list of the same, each with
``op_type`` and ``name``), ``definitions`` (the same by definition), and the fields of `RuntimeOptions`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import attrs
import yaml
from fib_apply.errors import InvalidConfigFile
from fib_apply.yaml_nodes import NodeReader, construct
from fib_schema import UnknownName
from fib_schema.regular_files import read_regular

from .errors import InvalidSetting
from .tracing_config import Rule, RuntimeOptions, TracingConfig

MAX_FILE_BYTES = 1 << 20
_CONFIG = tuple(attrs.fields_dict(TracingConfig))
_OPTIONS = tuple(attrs.fields_dict(RuntimeOptions))
_TOP = ("default", "rules", "definitions", *_OPTIONS)
_PATTERNS = ("op_type", "name")
_SETTING_OF_KIND = {"filter policy": "filter_policy", "input dump policy": "input_dump_policy"}
_NULL = "tag:yaml.org,2002:null"
_SHOWN = 80


@attrs.frozen
class SettingsFile:
    """The settings of a file."""

    default: TracingConfig | None = attrs.field(factory=TracingConfig)
    definitions: Mapping[str, TracingConfig] = attrs.field(factory=dict)
    rules: tuple[Rule, ...] = ()
    options: RuntimeOptions = attrs.field(factory=RuntimeOptions)


def read_settings(path: str | os.PathLike[str]) -> SettingsFile:
    """Read a settings file.

    Raises:
        InvalidConfigFile: It is not valid; the error lists all problems (a ValueError).
        OSError: It cannot be read, is larger than 1 MiB, or is not a regular file.
    """
    return parse_settings(read_regular(path, MAX_FILE_BYTES), os.fspath(path))


def parse_settings(data: bytes, source: str) -> SettingsFile:
    """Settings from YAML.

    Args:
        data: The content of a file.
        source: The name of the file in errors.

    Raises:
        InvalidConfigFile: It is not valid; the error lists all problems (a ValueError).
    """
    reader = _Reader()
    root = reader.parse(data)
    settings = SettingsFile() if root is None else reader.settings(root)
    if reader.problems:
        raise InvalidConfigFile(source, tuple(sorted(reader.problems, key=lambda problem: problem.line or 0)))
    return settings


@attrs.define
class _Reader(NodeReader):
    """Converts the nodes of a file to settings, and collects problems."""

    example = "filter_policy: keep_first"

    def settings(self, root: yaml.Node) -> SettingsFile:
        parts: dict[str, yaml.Node] = {}
        for key, node, value in self.items(root, ""):
            if key in _TOP:
                parts[key] = value
            elif key in _CONFIG:
                self.note(node, key, "a setting of definitions; put it below 'default', 'rules' or 'definitions'")
            else:
                self.note(node, key, str(UnknownName("setting", key, _TOP)))
        return SettingsFile(
            None if "default" in parts and _is_null(parts["default"]) else self.default(parts.get("default")),
            self.definitions(parts.get("definitions")),
            tuple(self.rules(parts.get("rules"))),
            self.options({key: parts[key] for key in _OPTIONS if key in parts}),
        )

    def default(self, node: yaml.Node | None) -> TracingConfig:
        return TracingConfig() if node is None else self.config(self.nodes(node, "default", _CONFIG), "default", node)

    def definitions(self, node: yaml.Node | None) -> dict[str, TracingConfig]:
        found: dict[str, TracingConfig] = {}
        for name, _, value in () if node is None else self.items(node, "definitions"):
            path = f"definitions.{name}"
            found[name] = self.config(self.nodes(value, path, _CONFIG), path, value)
        return found

    def rules(self, node: yaml.Node | None) -> list[Rule]:
        if node is None or _is_null(node):
            return []
        if not isinstance(node, yaml.SequenceNode):
            self.note(node, "rules", "expected a list of mappings with op_type, name and policies")
            return []
        return [self.rule(item, f"rules[{index}]") for index, item in enumerate(node.value)]

    def rule(self, node: yaml.Node, path: str) -> Rule:
        nodes = self.nodes(node, path, (*_PATTERNS, *_CONFIG))
        patterns: dict[str, str] = {}
        for key in _PATTERNS:
            if key in nodes:
                pattern = self.value(nodes.pop(key), f"{path}.{key}")
                if isinstance(pattern, str):
                    patterns[key] = pattern
                else:
                    self.note(node, f"{path}.{key}", f"got {_shown(pattern)}, expected a pattern as text")
        return Rule(self.config(nodes, path, node), **patterns)

    def nodes(self, node: yaml.Node, path: str, known: tuple[str, ...]) -> dict[str, yaml.Node]:
        """The values of a mapping that may have some keys."""
        found: dict[str, yaml.Node] = {}
        for key, key_node, value in self.items(node, path):
            if key in known:
                found[key] = value
            else:
                self.note(key_node, f"{path}.{key}", str(UnknownName("setting", key, known)))
        return found

    def config(self, nodes: Mapping[str, yaml.Node], path: str, node: yaml.Node) -> TracingConfig:
        count = len(self.problems)
        values = {key: self.value(value, f"{path}.{key}") for key, value in nodes.items()}
        if len(self.problems) == count:
            try:
                return TracingConfig(**values)
            except InvalidSetting as error:
                self.note_at(nodes, path, error.name, node, _problem_of(error))
            except UnknownName as error:
                self.note_at(nodes, path, _SETTING_OF_KIND.get(error.kind, ""), node, str(error))
        return TracingConfig()

    def options(self, nodes: Mapping[str, yaml.Node]) -> RuntimeOptions:
        found = RuntimeOptions()
        for key, node in nodes.items():
            try:
                found = attrs.evolve(found, **{key: self.value(node, key)})
            except InvalidSetting as error:
                self.note(node, key, _problem_of(error))
        return found

    def note_at(self, nodes: Mapping[str, yaml.Node], path: str, name: str, parent: yaml.Node, message: str) -> None:
        """Add a problem of a setting, or of the mapping if it is of none in particular."""
        self.note(nodes.get(name, parent), f"{path}.{name}" if name in nodes else path, message)

    def value(self, node: yaml.Node, path: str) -> Any:
        """The value of a node; None, which is noted, if it has none."""
        try:
            return construct(node)
        except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:  # such as a date in month 13
            problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else error
            self.note(node, path, f"not a plain value: {problem}; write a number, a text or a list")
        return None


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == _NULL


def _problem_of(error: InvalidSetting) -> str:
    return f"got {_shown(error.value)}, expected {error.wanted}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
