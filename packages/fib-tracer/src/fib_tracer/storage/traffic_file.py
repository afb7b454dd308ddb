"""Traffic file of a process: the counts of its calls, in ``traffic/`` of the data set (`fib_schema.traffic`).

Each process, such as a rank of a tensor-parallel engine, replaces its own file atomically and reads no other, so that
processes never wait for each other, and one that is killed leaves its last counts. Readers sum the files.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import msgspec
import torch
from fib_schema.files import atomic_write
from fib_schema.traffic import FOLDER, VERSION

from ..capture.call_counts import CallCounts
from ..stats import ErrorLog

_RANK_VARIABLES = ("RANK", "LOCAL_RANK")
_MAX_RANK_DIGITS = 9
_SIZES_AT_ONCE = 512
"""Sizes that are encoded before other threads may run: 0.2 ms."""


@attrs.frozen
class Rank:
    """The place of a process in its group."""

    rank: int | None
    """None for a process that is in no group."""
    world_size: int | None = None

    @classmethod
    def current(cls) -> Rank:
        """The rank by ``torch.distributed`` if it is initialized, else by ``RANK`` or ``LOCAL_RANK``."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return cls(torch.distributed.get_rank(), torch.distributed.get_world_size())
        for name in _RANK_VARIABLES:
            if (rank := _number_of(name)) is not None:
                return cls(rank, _number_of("WORLD_SIZE"))
        return cls(None)

    @property
    def label(self) -> str:
        """The beginning of the file's name: the rank, or the process id."""
        return f"pid-{os.getpid()}" if self.rank is None else f"rank-{self.rank}"


class TrafficFile:
    """Saves the counts of a process.

    Args:
        root: Of the data set.
        counts: Returns the counts by definition.
        errors: Where a file that cannot be written is reported; the next save tries again.
    """

    def __init__(self, root: Path, counts: Callable[[], Mapping[str, CallCounts]], errors: ErrorLog) -> None:
        self._root = root
        self._counts = counts
        self._errors = errors
        self.renew_after_fork()

    def renew_after_fork(self) -> None:
        """Write another file from now on."""
        self._path: Path | None = None
        self._saved_calls = 0

    def unsaved_calls(self) -> int:
        """The number of calls since the counts were saved."""
        return sum(counted.total() for counted in self._counts().values()) - self._saved_calls

    def save(self) -> None:
        """Write the counts if there are new calls; they are durable afterwards unless an error is reported."""
        counts = self._counts()
        calls = sum(counted.total() for counted in counts.values())
        if calls == self._saved_calls:
            return
        rank = Rank.current()
        if self._path is None:  # a random part, because ranks recur in later runs, and pids on other hosts
            self._path = self._root / FOLDER / f"{rank.label}-{os.urandom(6).hex()}.json"
        try:
            atomic_write(self._path, b"".join(_content(rank, counts)), durable=True)
        except OSError as error:
            self._errors.report("traffic counts: writing", error)
        else:
            self._saved_calls = calls


def _number_of(variable: str) -> int | None:
    """The number in a variable; None for anything that is no rank, which would not fit into a file's name."""
    value = os.environ.get(variable, "")
    return int(value) if value.isdecimal() and len(value) <= _MAX_RANK_DIGITS else None


def _content(rank: Rank, counts: Mapping[str, CallCounts]) -> Iterator[bytes]:
    head = {**attrs.asdict(rank), "host": socket.gethostname(), "pid": os.getpid()}
    yield _json({"version": VERSION, **head})[:-1] + b',"definitions":{'
    for number, (name, counted) in enumerate(counts.items()):
        plain = counted.to_plain()
        sizes = plain["sizes"]
        yield (b"," if number else b"") + b"\n" + _json(name) + b':{"calls":' + _json(plain["calls"]) + b',"sizes":['
        for start in range(0, len(sizes), _SIZES_AT_ONCE):
            yield (b",\n" if start else b"\n") + b",\n".join(map(_json, sizes[start : start + _SIZES_AT_ONCE]))
            time.sleep(0)  # releases the interpreter for the threads of the engine
        yield b"]}"
    yield b"}}\n"


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)
