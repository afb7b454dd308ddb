"""Memory errors: whether an exception says that an allocation failed."""

from __future__ import annotations

_TEXTS = ("out of memory", "can't allocate memory", "not enough memory")
"""In messages of torch's allocators; that of the CPU raises a RuntimeError."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, which says nothing about the code that asked for it."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)
