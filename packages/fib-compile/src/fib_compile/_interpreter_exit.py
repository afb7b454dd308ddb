"""Exit of the interpreter, which cancels builds: it would wait for the threads in which executors run them."""

from __future__ import annotations

import contextlib
import threading
from functools import cache

_is_exiting = threading.Event()


def is_exiting() -> bool:
    """Whether the interpreter exits; only known after `watch_exit`."""
    return _is_exiting.is_set()


@cache
def watch_exit() -> None:
    """Have `is_exiting` know of an exit from its beginning on.

    The interpreter joins the threads of executors before it runs `atexit` handlers; only the private hook that they
    use themselves runs earlier. Hooks run in reverse order, so that this one has to be registered after theirs.
    """
    with contextlib.suppress(RuntimeError):  # the exit has begun
        import concurrent.futures.thread  # 10 ms, which a cache hit need not pay

        assert concurrent.futures.thread
        threading._register_atexit(_is_exiting.set)  # type: ignore[attr-defined] # noqa: SLF001
