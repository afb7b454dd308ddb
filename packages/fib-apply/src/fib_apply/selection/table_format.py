"""Table format: a binary header, and one segment per definition that is decoded on access.

Layout: 8 bytes of format and version, the header's length, its checksum, the header, the segments. The header
holds offset and checksum of each segment. Damaged data and other versions raise `InvalidTable`.

History: 1, the first. 2, times of the fallback and batch axes. 3, capture only of what was verified in replays; keys
with layouts. 4, keys of padded indices.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from ..key import ApplyKey
from .rankings import Candidate, HardwareRankings, Ranking

FORMAT = b"FIBAPL04"
_PREFIX = struct.Struct("<8sQ16s")


class InvalidTable(Exception):
    """Data that is damaged or no table of this version."""


class Place(msgspec.Struct, array_like=True, frozen=True):
    """The place of a record."""

    path: bytes
    """Relative to the root; empty for records in memory."""
    digest: bytes
    """Digest of the file's content."""


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """The header's entry of a definition."""

    place: Place
    offset: int
    length: int
    checksum: bytes
    wins: dict[str, dict[str, int]]
    """By hardware and solution, the number of keys that it wins."""


class Header(msgspec.Struct, array_like=True, frozen=True):
    """The part of a table that is read on opening."""

    digest: str
    problems: list[str]
    entries: dict[str, Entry]
    solutions: dict[str, Place]


Content: TypeAlias = "tuple[Header, bytes | memoryview]"
"""A header, and the concatenated segments."""


def checksum(data: bytes | memoryview) -> bytes:
    """Checksum against accidents; only the folder's permissions help against intent."""
    return hashlib.blake2b(data, digest_size=16).digest()


def encode_rankings(rankings: Mapping[str, HardwareRankings]) -> bytes:
    """Encode a segment."""
    plain = [
        (
            hardware,
            [(key.axes, key.feats, _plain(ranking)) for key, ranking in of_hardware.by_key.items()],
            None if of_hardware.best is None else _plain(of_hardware.best),
            of_hardware.batch_axes,
        )
        for hardware, of_hardware in rankings.items()
    ]
    return _ENCODE(plain)


_ENCODE = msgspec.msgpack.Encoder().encode


_OTHERS = ("has_setup", "atol", "rtol", "required_matched_ratio", "workloads", "may_capture", "may_pad", "fallback_ms")


def _plain(ranking: Ranking) -> tuple[Any, ...]:
    refused = None if ranking.refused is None else _plain_candidate(ranking.refused)
    candidates = [_plain_candidate(candidate) for candidate in ranking.candidates]
    return candidates, ranking.reason, ranking.left_out, ranking.fallback, refused, ranking.is_padded


def _plain_candidate(c: Candidate) -> tuple[Any, ...]:
    return c.solution, c.latency_ms, c.interval_ms, c.fallback_interval_ms, *(getattr(c, name) for name in _OTHERS)


def decode_rankings(segment: bytes | memoryview, expected: bytes) -> dict[str, HardwareRankings]:
    """Decode a segment; `expected` is its checksum.

    Raises:
        InvalidTable: The checksum differs.
    """
    if checksum(segment) != expected:
        raise InvalidTable("checksum mismatch in a segment")
    found = {}
    for hardware, by_key, best, batch_axes in msgspec.msgpack.decode(segment):
        rankings = {ApplyKey(axes, feats): _ranking(*ranking) for axes, feats, ranking in by_key}
        best_ranking = None if best is None else _ranking(*best)
        found[hardware] = HardwareRankings(hardware, MappingProxyType(rankings), best_ranking, tuple(batch_axes))
    return found


def _ranking(
    candidates: list[Any],
    reason: str,
    left_out: list[Any],
    fallback: str,
    refused: list[Any] | None,
    is_padded: bool,
) -> Ranking:
    pairs = tuple([(name, why) for name, why in left_out])
    shown = None if refused is None else _candidate(*refused)
    return Ranking(tuple([_candidate(*c) for c in candidates]), reason, pairs, fallback, shown, is_padded)


def _candidate(
    solution: str,
    latency_ms: float,
    interval_ms: Sequence[float] | None,
    fallback_interval_ms: Sequence[float] | None,
    *others: Any,
) -> Candidate:
    return Candidate(solution, latency_ms, _pair(interval_ms), *(*others, _pair(fallback_interval_ms)))


def _pair(values: Sequence[float] | None) -> tuple[float, float] | None:
    return None if values is None else (values[0], values[1])


def encode_table(header: Header, segments: Iterable[bytes]) -> bytes:
    """Encode a table."""
    encoded = _ENCODE(header)
    return b"".join([_PREFIX.pack(FORMAT, len(encoded), checksum(encoded)), encoded, *segments])


def decode_table(data: bytes) -> tuple[Header, memoryview]:
    """Decode the header; segments are checked when they are decoded.

    Raises:
        InvalidTable: The data is damaged, incomplete or of another format.
    """
    if len(data) < _PREFIX.size:
        raise InvalidTable(f"{len(data)} bytes are too short")
    format_, length, expected = _PREFIX.unpack_from(data)
    encoded = memoryview(data)[_PREFIX.size : _PREFIX.size + length]
    segments = memoryview(data)[_PREFIX.size + length :]
    if format_ != FORMAT or checksum(encoded) != expected:
        raise InvalidTable("other format or damaged header")
    try:
        header = msgspec.msgpack.decode(encoded, type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidTable("unknown header") from error
    if sum(entry.length for entry in header.entries.values()) != len(segments):
        raise InvalidTable("segments are missing")
    return header, segments
