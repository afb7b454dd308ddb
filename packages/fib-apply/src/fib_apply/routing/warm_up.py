"""Warm-up: the first call of a solution that compiles when called, in the background."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from fib_compile import Runnable
from fib_schema import Definition


def warm_up_job(definition: Definition, runnable: Runnable, args: Sequence[Any]) -> Callable[[], None]:
    """A job that calls a solution once on a call's inputs and discards the result.

    Integer and bool tensors are copied now, in the caller's stream: they decide where a kernel reads, and the
    caller may overwrite them. Floating tensors are not copied; their values do not matter.
    """
    inputs = [_snapshot(arg) for arg in args[: len(definition.inputs)]]
    device = next(arg.device for arg in inputs if isinstance(arg, torch.Tensor))
    copied = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None

    def job() -> None:
        with torch.no_grad():
            if copied is None:
                runnable.call_value_returning(*inputs)
            else:
                _call_in_side_stream(device, copied, runnable, inputs)

    return job


def _call_in_side_stream(device: torch.device, copied: Any, runnable: Runnable, inputs: Sequence[Any]) -> None:
    """Call in a side stream and synchronize, so that the inputs live until the kernel has finished."""
    make_stream: Any = torch.cuda.Stream
    stream = make_stream(device)
    with torch.cuda.device(device), torch.cuda.stream(stream):
        stream.wait_event(copied)
        runnable.call_value_returning(*inputs)
        stream.synchronize()


def _snapshot(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and not value.dtype.is_floating_point:
        return value.clone()
    return value
