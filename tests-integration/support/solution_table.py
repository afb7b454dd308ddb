"""Honest solutions of the public data set's definitions, from ``solutions/table.json``.

An entry names a file and, by a regular expression, the definitions that it implements. Entries of a definition are
ordered from the plainest implementation to the most specialised one.
"""

import json
import re
from functools import cache
from pathlib import Path

import attrs
from fib_schema import BuildSpec, Solution, SourceFile

FOLDER = Path(__file__).parents[1] / "solutions"


@attrs.frozen(kw_only=True)
class TableEntry:
    """A solution file and what it implements."""

    file: str
    definitions: str
    """A regular expression that matches whole names."""
    language: str
    entry_point: str
    destination_passing_style: bool
    dependencies: tuple[str, ...] = attrs.field(converter=tuple)
    devices: tuple[str, ...] = attrs.field(converter=tuple)
    """``cuda``, ``cpu`` or both."""
    is_capturable: bool
    """Whether calls never wait for the device, so that a CUDA graph can capture them."""

    def implements(self, definition):
        """Whether the file is a solution of a definition."""
        return re.fullmatch(self.definitions, definition) is not None

    def solution(self, definition, hardware, name=None):
        """The solution for a definition on some hardware."""
        text = (FOLDER / self.file).read_text("utf-8")
        if "rmsnorm" in self.file and (epsilon := re.search(r"EPS = (1e-\d)", definition.reference)):
            text = text.replace("1e-6", epsilon[1])  # with tiny inputs it matters
        spec = BuildSpec(
            self.language,
            (hardware,),
            self.entry_point,
            dependencies=self.dependencies,
            destination_passing_style=self.destination_passing_style,
        )
        name = name or f"{self.file.replace('.', '_')}_{definition.name}"
        shared = re.findall(r"^from \.(\w+)\.(\w+) import ", text, re.MULTILINE)
        texts = {self.file: text} | {
            f"{folder}/{module}.py": (FOLDER / folder / f"{module}.py").read_text("utf-8") for folder, module in shared
        }
        return Solution(name, definition.name, "fib", spec, tuple(map(SourceFile, texts, texts.values())))


@cache
def solution_table():
    return tuple(TableEntry(**entry) for entry in json.loads((FOLDER / "table.json").read_text("utf-8")))


def entry_of(file):
    (entry,) = (entry for entry in solution_table() if entry.file == file)
    return entry


def entries_for(definition, *, device):
    """The entries for a definition on ``cuda`` or ``cpu``."""
    return tuple(entry for entry in solution_table() if device in entry.devices and entry.implements(definition))


def capturable_entry(definition):
    """The entry that a CUDA graph can capture: the one in Triton if there is one, else the one in torch."""
    found = {entry.language: entry for entry in entries_for(definition, device="cuda") if entry.is_capturable}
    return found.get("triton") or found.get("python")
