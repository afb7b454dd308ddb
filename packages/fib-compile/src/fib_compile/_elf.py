"""ELF headers. The machine that this process runs on, and whether a library is whole and for that machine."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path

import attrs

_MAGIC = b"\x7fELF"
_SECTIONS = {1: ("32", 32, "I", 46), 2: ("64", 40, "Q", 58)}
"""Bits, place and format of the section table's offset, and place of its size, by the class of a file."""
_NAMES = {3: "x86", 40: "arm", 62: "x86-64", 183: "aarch64", 243: "riscv", 258: "loongarch"}


@attrs.frozen
class Header:
    """The tensors that the header of a file declares."""

    machine: str
    """Processor, bits and byte order, such as ``x86-64-64-little``."""
    size_bytes: int
    """The size that the file has at least, because its section table ends there."""


def is_elf(data: bytes) -> bool:
    """Whether a file is a program or library; only its first bytes are needed."""
    return data.startswith(_MAGIC)


def read_header(data: bytes) -> Header | None:
    """The header of a file, of which the first 64 bytes are needed; None if it is not an ELF file."""
    if len(data) < 64 or not is_elf(data) or data[4] not in _SECTIONS or data[5] not in (1, 2):
        return None
    order, name = ("<", "little") if data[5] == 1 else (">", "big")
    bits, offset_at, kind, entries_at = _SECTIONS[data[4]]
    (processor,) = struct.unpack_from(f"{order}H", data, 18)
    (offset,) = struct.unpack_from(order + kind, data, offset_at)
    entry_size, entries = struct.unpack_from(f"{order}HH", data, entries_at)
    return Header(f"{_NAMES.get(processor, processor)}-{bits}-{name}", offset + entry_size * entries)


@cache
def machine() -> str:
    """The machine of this process: of two machines that share a home folder, each has a name of its own."""
    with Path("/proc/self/exe").open("rb") as file:
        header = read_header(file.read(64))
    return header.machine if header else "unknown"


def load_problem(data: bytes) -> str | None:
    """Reason that the loader must not see a library: truncated ones crash it, and it refuses other machines' ones."""
    header = read_header(data[:64])
    if header is None:
        return "it is not an ELF file"
    if header.machine != machine():
        return f"it is for {header.machine}, this process runs on {machine()}"
    if header.size_bytes > len(data):
        return f"it is truncated: {len(data)} bytes of at least {header.size_bytes}"
    return None
