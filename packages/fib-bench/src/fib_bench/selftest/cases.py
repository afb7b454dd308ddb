"""The cases of both suites, as their indexes say."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import Any

import attrs
from fib_schema import BuildSpec, CompileOptions, Solution, SourceFile, UnknownName

from ..flags import CPU_TIMING, INTERPRETED

ADVERSARIES, HONEST = "adversaries", "honest"
AUTHOR = "fib-selftest"
_PASSED = "PASSED"
_OF_THE_DEVICE = frozenset({CPU_TIMING, INTERPRETED})
_SUFFIXES = {"cuda": ".cu", "cpp": ".cpp"}


@attrs.frozen(kw_only=True)
class Case:
    """One solution, and what must come out."""

    suite: str
    file: str
    """Its name in the index, and that of its file unless `files` says otherwise."""
    title: str
    devices: Sequence[str]
    """The kinds of device that it is for."""
    row: int | None = None
    """Its row in the list of tricks; honest solutions have none."""
    definition: str = "gemm"
    language: str = "python"
    binding: str | None = None
    dps: bool = False
    files: Sequence[str] = ()
    """The entry file first."""
    compile_flags: Sequence[str] = ()
    needs: str | None = None
    """A module without which it cannot be built."""
    slow_build: bool = False
    """Whether building it takes more than a few seconds."""
    expect: frozenset[str] = attrs.field(default=frozenset({_PASSED}), converter=frozenset)
    """The statuses that are right."""
    flags: frozenset[str] = attrs.field(default=frozenset(), converter=frozenset)
    """What a pass must be flagged with."""
    unflagged: bool = False
    """Whether a pass must not be flagged."""

    @property
    def name(self) -> str:
        """The solution's name."""
        return f"{'honest' if self.suite == HONEST else 'adversary'}_{self.file}"

    @property
    def is_quick(self) -> bool:
        """Whether its verdict is a time-out, which must not take long."""
        return "TIMEOUT" in self.expect

    @property
    def is_possible(self) -> bool:
        """Whether what it needs is installed."""
        return self.needs is None or find_spec(self.needs) is not None

    @property
    def expected(self) -> list[str]:
        """What may come out, in words."""
        flags = "".join(f", {flag}" for flag in sorted(self.flags))
        return [f"{status}{flags}" if status == _PASSED else status for status in sorted(self.expect)]

    def holds(self, status: str, flags: Iterable[str]) -> bool:
        """Whether what came out is right."""
        found = set(flags)
        if status not in self.expect:
            return False
        return status != _PASSED or (self.flags <= found and not (self.unflagged and found - _OF_THE_DEVICE))

    def solution(self) -> Solution:
        """The solution, with its sources."""
        names = self.files or (self.file + _SUFFIXES.get(self.language, ".py"),)
        folder = files(__package__).joinpath(self.suite)
        sources = tuple(SourceFile(name, folder.joinpath(name).read_text("utf-8")) for name in names)
        flags = tuple(self.compile_flags)
        linked = tuple(flag for flag in flags if flag == "-fopenmp")
        spec = BuildSpec(
            language=self.language,
            target_hardware=tuple(self.devices),
            entry_point=f"{PurePosixPath(names[0]).name}::run",
            destination_passing_style=self.dps,
            binding=self.binding,
            compile_options=CompileOptions(cflags=flags, ldflags=linked) if flags else None,
        )
        return Solution(self.name, self.definition, AUTHOR, spec, sources)


def load_cases() -> tuple[Case, ...]:
    """All cases: the adversaries by row, then the honest ones."""
    tricks = [Case(suite=ADVERSARIES, file=name, **fields) for name, fields in _index(ADVERSARIES).items()]
    honest = [Case(suite=HONEST, file=name, unflagged=True, **fields) for name, fields in _index(HONEST).items()]
    return (*sorted(tricks, key=lambda case: (case.row or 0, case.file)), *honest)


def _index(suite: str) -> Mapping[str, dict[str, Any]]:
    return tomllib.loads(files(__package__).joinpath(suite, "index.toml").read_text("utf-8"))


def choose(cases: Sequence[Case], words: Iterable[str]) -> tuple[Case, ...]:
    """The cases that one of the words names: a row, a suite, a definition, or a part of a name.

    Raises:
        UnknownName: A word matches nothing.
    """
    chosen: dict[str, Case] = {}
    for word in words:
        found = [case for case in cases if _matches(case, word)]
        if not found:
            raise UnknownName("self-test case", word, tuple(case.file for case in cases))
        chosen |= {case.name: case for case in found}
    return tuple(case for case in cases if case.name in chosen)


def _matches(case: Case, word: str) -> bool:
    if word.isdigit():
        return case.row == int(word)
    return word in {case.suite, case.definition} or word in case.name
