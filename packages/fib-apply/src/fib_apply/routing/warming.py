"""The first run of a solution that compiles when it is called, away from the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from fib_compile import Runnable
from fib_schema import Definition


def first_run(definition: Definition, runnable: Runnable, args: Sequence[Any]) -> Callable[[], None]:
    """A job that runs a solution once on a call's inputs; what it computes is thrown away.

    Integers and booleans are copied now, in the caller's stream: they decide where a kernel reads, and the
    caller may overwrite them. Floating tensors are read as they are then, whatever is in them.
    """
    inputs = [_kept(arg) for arg in args[: len(definition.inputs)]]
    device = next(arg.device for arg in inputs if isinstance(arg, torch.Tensor))
    copied = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None

    def job() -> None:
        with torch.no_grad():
            if copied is None:
                runnable.call_value_returning(*inputs)
            else:
                _call_beside(device, copied, runnable, inputs)

    return job


def _call_beside(device: torch.device, copied: Any, runnable: Runnable, inputs: Sequence[Any]) -> None:
    """Call in a stream of its own, and wait: until then the inputs are held."""
    make_stream: Any = torch.cuda.Stream
    stream = make_stream(device)
    with torch.cuda.device(device), torch.cuda.stream(stream):
        stream.wait_event(copied)
        runnable.call_value_returning(*inputs)
        stream.synchronize()


def _kept(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and not value.dtype.is_floating_point:
        return value.clone()
    return value
