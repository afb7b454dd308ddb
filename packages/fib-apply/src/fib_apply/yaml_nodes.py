"""YAML files of settings: nodes with their lines, and all problems of a file instead of the first.

`NodeReader` is the base of the readers of fib-apply and fib-tracer: it bounds what a file can be, and notes problems
with the line and the keys that lead to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar

import attrs
import yaml

from .errors import ConfigProblem

MAX_DEPTH = 8
"""Levels of mappings and lists in a file."""


class Loader(yaml.SafeLoader):
    """YAML loader that reads 1e-3 as a number."""


class Dumper(yaml.SafeDumper):
    """YAML dumper that quotes what `Loader` would read as a number."""


# YAML 1.1, which PyYAML reads, requires a point and a sign: https://github.com/yaml/pyyaml/issues/173
_EXPONENT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
for _class in (Loader, Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


@attrs.define
class NodeReader:
    """Reads the nodes of a file and collects problems."""

    example: ClassVar[str] = "name: value"
    """A setting, for messages."""
    problems: list[ConfigProblem] = attrs.field(factory=list, kw_only=True)

    def note(self, node: yaml.Node | None, path: str, message: str) -> None:
        """Add a problem.

        Args:
            node: Whose line is to blame; None if no line is.
            path: The keys that lead to it, joined by points.
            message: The finding and the remedy.
        """
        self.problems.append(ConfigProblem(None if node is None else node.start_mark.line + 1, path, message))

    def parse(self, data: bytes) -> yaml.Node | None:
        """The root of the file; None if it is empty or no usable YAML."""
        try:
            if (problem := _unbounded(data)) is not None:
                self.problems.append(problem)
                return None
            return yaml.compose(data, Loader)
        except yaml.MarkedYAMLError as error:
            line = None if error.problem_mark is None else error.problem_mark.line + 1
            self.problems.append(ConfigProblem(line, "", f"not valid YAML: {error.problem}; correct the syntax"))
        except (yaml.YAMLError, ValueError) as error:  # an encoding, or characters that YAML does not allow
            text = " ".join(str(error).split())
            self.problems.append(ConfigProblem(None, "", f"not valid YAML: {text[:200]}; save it as UTF-8 text"))
        return None

    def items(self, node: yaml.Node, path: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        """The items of a mapping: key, its node, and the node of the value. A key without a value has none."""
        if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
            return
        if not isinstance(node, yaml.MappingNode):
            self.note(node, path, f"expected a mapping of settings to values, such as '{self.example}'")
            return
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.note(key, path, "keys must be names")
            elif key.value in seen:
                self.note(key, f"{path}.{key.value}".lstrip("."), "given twice; remove one")
            else:
                seen.add(key.value)
                yield key.value, key, value


def _unbounded(data: bytes) -> ConfigProblem | None:
    """A problem if a file is nested too deeply or repeats parts of itself, so that its content is not bounded."""
    depth = 0
    for event in yaml.parse(data, Loader):
        line = event.start_mark.line + 1 if event.start_mark is not None else None
        if isinstance(event, yaml.AliasEvent):
            return ConfigProblem(line, "", f"the alias *{event.anchor} is not allowed; write the value itself")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            return ConfigProblem(line, "", f"nested more than {MAX_DEPTH} levels deep; settings need no more than 4")
    return None


def construct(node: yaml.Node) -> Any:
    """The value of a node: plain Python objects.

    Raises:
        yaml.YAMLError: It has a tag of Python objects.
        ValueError: It looks like a number or a date and is none.
    """
    loader = Loader("")
    try:
        return loader.construct_object(node, deep=True)
    finally:
        loader.dispose()
