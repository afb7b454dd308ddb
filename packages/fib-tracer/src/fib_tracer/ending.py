"""What happens when a signal ends the process: everything that was kept is stored first, within a time.

Handlers of signals that others have installed are called afterwards, and the default action follows
where there was none; a handler that is not ours any more is left alone.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class EndingSignals:
    """Calls a function before a signal ends the process.

    Args:
        before: What is called; it must not wait for what the interrupted code may hold.
    """

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before
        self._former: dict[int, Any] = {}

    def watch(self) -> None:
        """From now on, if this is the main thread: no other may install handlers."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            former = signal.getsignal(number)
            if former is None or former is signal.SIG_IGN or former == self._on_signal:
                continue  # not Python's; or the process does not end of it; or ours
            self._former[number] = former
            signal.signal(number, self._on_signal)

    def forget(self) -> None:
        """Not any more; where this is not the main thread, the handlers stay and call those that were there before."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, former in self._former.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, former)
        self._former.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._before()
        former = self._former.get(number, signal.SIG_DFL)
        if callable(former):
            former(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
