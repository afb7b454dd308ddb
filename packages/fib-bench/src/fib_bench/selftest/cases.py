"""Cases of the self-test. Loads the solutions of the three suites and their expected verdicts from the indexes."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import PurePosixPath
from typing import Any

import attrs
from fib_schema import BuildSpec, CompileOptions, Solution, SourceFile, UnknownName
from fib_schema.trace_facts import CPU_TIMING, INTERPRETED, Timing

from .definitions import data_folder

_TOLERANCE = 0.02
"""Share of the twin's latency below which a difference is not a gain: the uncertainty that the package states."""


@attrs.frozen
class Gain:
    """The latencies of an exploit and its twin: their call latencies if only one of them has a device latency."""

    exploit: Timing
    twin: Timing

    @classmethod
    def between(cls, exploit: Timing, twin: Timing) -> Gain:
        """The gain of an exploit over its twin."""
        if exploit.is_comparable(twin):
            return cls(exploit, twin)
        one, other = exploit.of_call, twin.of_call
        assert one is not None, "every evaluation measures the call latency"
        assert other is not None, "every evaluation measures the call latency"
        return cls(one, other)

    @property
    def factor(self) -> float:
        """The twin's latency divided by the exploit's; above 1 the exploit is faster."""
        return self.twin.latency_ms / self.exploit.latency_ms

    @property
    def tolerance_ms(self) -> float:
        """The largest difference that is not a gain, in milliseconds.

        It is 2 % of the twin's latency, or the combined uncertainty of both clocks if that is larger.
        """
        uncertainty_ms = math.hypot(self.exploit.uncertainty_ms, self.twin.uncertainty_ms)
        return max(_TOLERANCE * self.twin.latency_ms, uncertainty_ms)

    def exceeds(self, factor: float) -> bool:
        """Whether the exploit is faster than the twin by a factor and more than the tolerance."""
        return self.exploit.latency_ms < (self.twin.latency_ms - self.tolerance_ms) / factor

    def __str__(self) -> str:
        return f"{self.factor:.2f}x{' (call)' if self.twin.kind == 'call' else ''}"


EXPLOITS, HONEST, TWINS = "exploits", "honest", "twins"
AUTHOR = "fib-selftest"
_PREFIXES = {EXPLOITS: "exploit", HONEST: "honest", TWINS: "twin"}
_PASSED = "PASSED"
_DEVICE_FLAGS = frozenset({CPU_TIMING, INTERPRETED})
_FAILURES = frozenset({"TIMEOUT", "RUNTIME_ERROR"})
_FAILURE_SECONDS, _STEP_SECONDS, _COMPILED_SECONDS = 4.0, 20.0, 45.0
"""Limits for cases that fail anyway, for those that may compute, and for those that a compiler builds."""
_SUFFIXES = {"cuda": ".cu", "cutlass": ".cu", "cpp": ".cpp"}


@attrs.frozen(kw_only=True)
class Case:
    """One solution and its expected verdict."""

    suite: str
    file: str
    """Name in the index; also the name of its file unless `files` states others."""
    title: str
    devices: Sequence[str]
    """Kinds of device that it runs on: ``cpu``, ``cuda``."""
    row: int | None = None
    """Row in the list of exploits (`ROW_NAMES`); None for honest solutions and twins."""
    definition: str = "gemm"
    language: str = "python"
    binding: str | None = None
    dps: bool = False
    files: Sequence[str] = ()
    """The entry file first."""
    compile_flags: Sequence[str] = ()
    needs: str | None = None
    slow_build: bool = False
    expect: frozenset[str] = attrs.field(default=(_PASSED,), converter=frozenset)
    flags: frozenset[str] = attrs.field(default=(), converter=frozenset)
    """Flags that a pass must have."""
    unflagged: bool = False
    twin: str | None = None
    """File of the twin: an honest solution of the same algorithm, which the latency is compared with."""
    no_gain: bool = False
    """Whether a pass is also right if it is not faster than the twin."""
    most_gain: float = 1.0
    """By how much it may be faster: above 1 for what ARCHITECTURE says remains possible."""

    @property
    def name(self) -> str:
        """Name of the solution."""
        return f"{_PREFIXES[self.suite]}_{self.file}"

    @property
    def twin_name(self) -> str | None:
        """Name of the twin's solution; None without a twin."""
        return None if self.twin is None else f"{_PREFIXES[TWINS]}_{self.twin}"

    @property
    def limit_seconds(self) -> float | None:
        """Limit of each step, the build included, if it may end with a time-out; None for the configured limit.

        A limit that a build or the start of a worker exceeds would reject an exploit that was never run.
        """
        if "TIMEOUT" not in self.expect:
            return None
        if self.expect <= _FAILURES:
            return _FAILURE_SECONDS
        return _COMPILED_SECONDS if self.language in _SUFFIXES else _STEP_SECONDS

    @property
    def is_possible(self) -> bool:
        """Whether the module that it needs is installed."""
        return self.needs is None or find_spec(self.needs) is not None

    @property
    def expected(self) -> list[str]:
        """Expected verdicts in words."""
        flags = "".join(f", {flag}" for flag in sorted(self.flags))
        words = [f"{status}{flags}" if status == _PASSED else status for status in sorted(self.expect)]
        gain = "without gain" if self.most_gain == 1 else f"with a gain of at most {self.most_gain:g}x"
        return [*words, f"PASSED {gain}"] if self.no_gain else words

    def holds(self, status: str, flags: Iterable[str], gain: Gain | None = None) -> bool:
        """Whether a verdict is an expected one; there is a gain if there is a twin and both have a latency."""
        found = set(flags)
        if status != _PASSED:
            return status in self.expect
        if not self.flags <= found or (self.unflagged and found - _DEVICE_FLAGS):
            return False
        if self.flags or self.twin is None:  # the flags that `flags` names keep a solution off the leaderboard
            return status in self.expect
        is_allowed = self.no_gain or status in self.expect
        return is_allowed and gain is not None and not gain.exceeds(self.most_gain)

    def solution(self) -> Solution:
        """The solution with its sources."""
        names = self.files or (self.file + _SUFFIXES.get(self.language, ".py"),)
        folder = data_folder().joinpath(self.suite)
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
    """All cases: exploits by row, then honest solutions, then twins."""
    exploits = [Case(suite=EXPLOITS, file=name, **fields) for name, fields in _index(EXPLOITS).items()]
    others = [
        Case(suite=suite, file=name, unflagged=True, **fields)
        for suite in (HONEST, TWINS)
        for name, fields in _index(suite).items()
    ]
    return (*sorted(exploits, key=lambda case: (case.row or 0, case.file)), *others)


def with_twins(cases: Sequence[Case]) -> tuple[Case, ...]:
    """The cases and the twins that their exploits are compared with."""
    needed = {case.twin_name for case in cases} - {case.name for case in cases}
    return (*cases, *(case for case in load_cases() if case.name in needed))


ROW_NAMES: Mapping[int, str] = {
    int(row): title for row, title in tomllib.loads((data_folder() / EXPLOITS / "rows.toml").read_text("utf-8")).items()
}
"""Titles of the rows of the list of exploits, each of which is one way to cheat."""


def _index(suite: str) -> Mapping[str, dict[str, Any]]:
    return tomllib.loads(data_folder().joinpath(suite, "index.toml").read_text("utf-8"))


def choose(cases: Sequence[Case], words: Iterable[str]) -> tuple[Case, ...]:
    """The cases that match one of the words: a row, a suite, a definition, or a part of a name."""
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
