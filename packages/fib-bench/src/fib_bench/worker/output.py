"""Printed output of a worker: the pipe that it prints to, of which the head and the tail are kept."""

from __future__ import annotations

import os

_KEPT_BYTES = 8_000
_MAX_READS = 64  # of 64 KiB; a flood must not block the judge


class KeptOutput:
    """The head and the tail of a text of any length."""

    def __init__(self, kept_bytes: int = _KEPT_BYTES) -> None:
        self._kept = kept_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        """Append the bytes read."""
        room = self._kept - len(self._head)
        self._head += data[:room]
        self._tail += data[max(room, 0) :]
        if (excess := len(self._tail) - self._kept) > 0:
            del self._tail[:excess]
            self._dropped += excess

    def text(self) -> str:
        """The kept bytes as text, with a note where bytes were dropped."""
        gap = f"\n... {self._dropped} bytes dropped ...\n" if self._dropped else ""
        return (self._head + gap.encode() + self._tail).decode("utf-8", "replace")


class OutputPipe:
    """The judge's end of the pipe to which a worker prints.

    Args:
        descriptor: The end to read, non-blocking; closed by `close`.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._kept = KeptOutput()

    def fileno(self) -> int:
        """The descriptor, for selectors."""
        return self._descriptor

    def read(self) -> bool:
        """Read available bytes; returns whether the stream is still open."""
        for _ in range(_MAX_READS):
            try:
                data = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._kept.add(data)
        return True

    def take_text(self) -> str:
        """The text that was read since the last call: head and tail."""
        kept, self._kept = self._kept, KeptOutput()
        return kept.text()

    def close(self) -> None:
        """Close the descriptor; bytes read before remain available."""
        os.close(self._descriptor)
