"""Tables as bytes: a header, and a segment per definition that is decoded when it is asked for.

Layout: 8 bytes that name the format and its version; the header's length; its checksum; the header;
the segments. The header holds the place and the checksum of each segment. What was changed, cut
or written by another version raises `NotUsable`.

History: 1, the first.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec
from fib_schema.files import atomic_write

from ..key import ApplyKey
from .rules import Candidate, Choices, Ranking

FORMAT = b"FIBAPL01"
_PREFIX = struct.Struct("<8sQ16s")


class NotUsable(Exception):
    """Bytes that hold no table of this version."""


class Place(msgspec.Struct, array_like=True, frozen=True):
    """Where a record is."""

    path: bytes
    """Below the root; empty for those in memory."""
    digest: bytes
    """Of the file."""


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """What the header knows of a definition."""

    place: Place
    offset: int
    length: int
    checksum: bytes
    wins: dict[str, dict[str, int]]
    """By hardware and solution: for how many keys it is to be built."""


class Header(msgspec.Struct, array_like=True, frozen=True):
    """What opening a table reads."""

    digest: str
    problems: list[str]
    entries: dict[str, Entry]
    solutions: dict[str, Place]


Content: TypeAlias = "tuple[Header, bytes | memoryview]"
"""A header, and the segments one after the other."""


def checksum(data: bytes | memoryview) -> bytes:
    """Finds accidents; against intent only the folder's permissions help."""
    return hashlib.blake2b(data, digest_size=16).digest()


def encode_choices(choices: Mapping[str, Choices]) -> bytes:
    """A segment."""
    plain = [
        (
            hardware,
            [(key.axes, key.feats, _plain(ranking)) for key, ranking in of_hardware.by_key.items()],
            None if of_hardware.best is None else _plain(of_hardware.best),
        )
        for hardware, of_hardware in choices.items()
    ]
    return _ENCODE(plain)


_ENCODE = msgspec.msgpack.Encoder().encode


_OTHERS = ("has_setup", "atol", "rtol", "required_matched_ratio", "workloads", "may_capture")


def _plain(ranking: Ranking) -> tuple[Any, ...]:
    candidates = [
        (c.solution, c.latency_ms, c.interval_ms, *(getattr(c, name) for name in _OTHERS)) for c in ranking.candidates
    ]
    return candidates, ranking.reason, ranking.left_out


def decode_choices(segment: bytes | memoryview, expected: bytes) -> dict[str, Choices]:
    """The choices of a segment.

    Raises:
        NotUsable: The checksum is not the expected one.
    """
    if checksum(segment) != expected:
        raise NotUsable("a segment has changed")
    choices = {}
    for hardware, by_key, best in msgspec.msgpack.decode(segment):
        rankings = {ApplyKey(axes, feats): _ranking(*ranking) for axes, feats, ranking in by_key}
        best_ranking = None if best is None else _ranking(*best)
        choices[hardware] = Choices(hardware, MappingProxyType(rankings), best_ranking)
    return choices


def _ranking(candidates: list[Any], reason: str, left_out: list[Any]) -> Ranking:
    return Ranking(tuple([_candidate(*c) for c in candidates]), reason, tuple([(name, why) for name, why in left_out]))


def _candidate(solution: str, latency_ms: float, interval_ms: list[float] | None, *others: Any) -> Candidate:
    return Candidate(solution, latency_ms, None if interval_ms is None else (*interval_ms,), *others)  # type: ignore[arg-type] # of two


def encode_table(header: Header, segments: Iterable[bytes]) -> bytes:
    """A table's bytes."""
    encoded = _ENCODE(header)
    return b"".join([_PREFIX.pack(FORMAT, len(encoded), checksum(encoded)), encoded, *segments])


def decode_table(data: bytes) -> tuple[Header, memoryview]:
    """The header and the segments, which are checked when they are decoded.

    Raises:
        NotUsable: These are no such bytes, or not all.
    """
    if len(data) < _PREFIX.size:
        raise NotUsable("too short")
    format_, length, expected = _PREFIX.unpack_from(data)
    encoded = memoryview(data)[_PREFIX.size : _PREFIX.size + length]
    segments = memoryview(data)[_PREFIX.size + length :]
    if format_ != FORMAT or checksum(encoded) != expected:
        raise NotUsable("another format, or a damaged header")
    try:
        header = msgspec.msgpack.decode(encoded, type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotUsable("another header") from error
    if sum(entry.length for entry in header.entries.values()) != len(segments):
        raise NotUsable("segments are missing")
    return header, segments


def publish(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, so that readers see all of it or none.

    Raises:
        OSError: It could not be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    atomic_write(path, data, mode=0o600)
