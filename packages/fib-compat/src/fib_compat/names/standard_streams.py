"""Redirection of this process's output to a file, as workers of the first release did it."""

from __future__ import annotations

import io
import os
import sys

__all__ = ["redirect_stdio_to_file"]


def redirect_stdio_to_file(log_path: str | os.PathLike[str]) -> None:
    """Append what this process and its later children write to stdout and stderr to a file, until the process ends.

    Python's streams and the descriptors 1 and 2, to which libraries in C write, are redirected.

    Raises:
        OSError: The file cannot be opened; nothing is redirected.
    """
    opened = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
            if stream is not None:  # Python started without it
                stream.flush()
            os.dup2(opened, descriptor)
            os.set_inheritable(descriptor, True)  # `os.open` may have returned it, if it was closed
    finally:
        if opened > 2:
            os.close(opened)
    sys.stdout, sys.stderr = _stream(1), _stream(2)


def _stream(descriptor: int) -> io.TextIOWrapper:
    """A stream that writes each line at once; the two streams keep their order in the file."""
    file = open(descriptor, "wb", closefd=False)  # noqa: SIM115 - it stays open until the process ends
    return io.TextIOWrapper(file, "utf-8", errors="backslashreplace", line_buffering=True)
