"""Parser of the text of compute-sanitizer. The text is untrusted: the solution can write into the same log."""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

from .results import untrusted

_PREFIX = re.compile(r"^=+ ?")
_HEAD = re.compile(
    r"(?:(?:Error|Warning|ERROR|WARNING|INFO|CRITICAL): )?"
    r"(Invalid __\w+__ \w+.*|Uninitialized __\w+__ memory read.*|Unused memory.*|Misaligned .*|Race reported between.*"
    r"|Potential (?:RAW|WAR|WAW) hazard.*|RAW hazard.*|WAR hazard.*|WAW hazard.*|Barrier error detected.*"
    r"|Invalid arguments?.*|Malloc/Free error.*|Leaked .*|Program hit .*|Fatal UVM .*|Unused .*|Uninitialized .*)"
)
_AT = re.compile(r"\bat (?:0x[0-9a-f]+ in )?(?P<where>[^\[]+?)(?: \[\d+ hazards?\])?$")
_OLD_PLACE = re.compile(r"^(?P<file>.+?):(?P<line>\d+):(?P<function>.+)$")
_NEW_PLACE = re.compile(r"^(?P<function>.+?)\+0x[0-9a-f]+(?: in (?P<file>.+):(?P<line>\d+))?$")
_THREAD = re.compile(r"by thread (\([\d,]+\)) in block (\([\d,]+\))")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK|LEAK) SUMMARY: .*")
_MAX_LINES = 20_000
_MAX_WIDTH = 2000


@attrs.frozen
class Place:
    """A position in a kernel."""

    function: str
    file: str | None
    line: int | None

    def __str__(self) -> str:
        return self.function if self.file is None else f"{self.file}:{self.line} in {self.function}"


@attrs.frozen
class Defect:
    """A defect that a tool reports, with the number of times."""

    kind: str = untrusted()
    places: tuple[Place, ...] = untrusted()
    """The access; for a race both, as far as the compiler kept lines."""
    detail: str = untrusted()
    """Thread, block and address of the first report."""
    count: int = 1


def parse_sanitizer(text: str) -> tuple[tuple[Defect, ...], str]:
    """The defects of a log, equal kinds at equal places once, and the tool's summary line.

    Args:
        text: The log; at most 20,000 lines are read.
    """
    merged: dict[tuple[str, tuple[Place, ...]], Defect] = {}
    for defect in _reports(text):
        key = (defect.kind, defect.places)
        known = merged.get(key)
        merged[key] = defect if known is None else attrs.evolve(known, count=known.count + 1)
    summaries = [match[0] for line in _lines(text) if (match := _SUMMARY.search(line))]
    return tuple(merged.values()), summaries[-1] if summaries else ""


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines()[:_MAX_LINES]:
        if line.startswith("==="):
            yield _PREFIX.sub("", line[:_MAX_WIDTH]).rstrip()


def _reports(text: str) -> Iterator[Defect]:
    kind, block = "", list[str]()
    for line in (*_lines(text), ""):
        if match := _HEAD.match(line.strip()):
            if kind:
                yield _report(kind, block)
            kind, block = match[1], [line.strip()]
        elif kind and line.strip():
            block.append(line.strip())
        elif kind:
            yield _report(kind, block)
            kind = ""


def _report(kind: str, block: list[str]) -> Defect:
    device = [line for line in block if "Frame:" not in line and "backtrace" not in line]
    places = tuple(dict.fromkeys(place for line in device if (place := _place(line)) is not None))
    detail = []
    for line in device[1:]:
        if (match := _THREAD.search(line)) is not None:
            detail.append(f"thread {match[1]} of block {match[2]}")
        elif line.startswith(("Address ", "Access ", "and is ")):
            detail.append(line)
    short = re.sub(r" (?:access )?at .*$", " access", kind) if kind.startswith("Race reported") else kind
    return Defect(short.strip(), places, "; ".join(detail))


def _place(line: str) -> Place | None:
    found = _AT.search(line)
    if found is None:
        return None
    where = found["where"].strip()
    for pattern in (_NEW_PLACE, _OLD_PLACE):
        if match := pattern.match(where):
            line_number = match["line"]
            return Place(match["function"], match["file"], None if line_number is None else int(line_number[:9]))
    return None
