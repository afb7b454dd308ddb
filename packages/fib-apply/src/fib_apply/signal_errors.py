"""Errors of signal handlers: exceptions that a handler raised while other code ran.

A handler runs in the main thread between two steps of whatever it interrupts, so what it raises seems to come from
there. It must reach the code that set the handler, and says nothing about the interrupted code.
"""

from __future__ import annotations

import functools
import inspect
import signal
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any


def is_from_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler raised an exception, or the one that it was raised from or during the handling of."""
    handlers = {code for number in signal.valid_signals() if (code := _code(signal.getsignal(number))) is not None}
    return any(frame.f_code in handlers or _has_frame(frame) for frame in _frames(error))


def raise_if_from_signal_handler(error: BaseException) -> None:
    """Raise an exception again if a signal handler raised it."""
    if is_from_signal_handler(error):
        raise error


def _frames(error: BaseException | None) -> Iterator[FrameType]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        step = error.__traceback__
        while step is not None:
            yield step.tb_frame
            step = step.tb_next
        error = error.__cause__ or error.__context__


def _code(handler: Any) -> CodeType | None:
    """The code of a handler that is written in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    if not hasattr(function, "__code__"):  # an object with `__call__`
        function = vars(type(handler)).get("__call__")
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _has_frame(frame: FrameType) -> bool:
    """Whether an argument is a frame, as a handler's second one; the handler may be set no longer."""
    code = frame.f_code
    count = code.co_argcount + bool(code.co_flags & inspect.CO_VARARGS)  # with ``*args``
    values = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    return any(isinstance(item, FrameType) for v in values for item in (v if isinstance(v, tuple) else (v,)))
