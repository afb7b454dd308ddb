"""Frames of our own that Dynamo does not compile, without importing Dynamo, which takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

F = TypeVar("F", bound=Callable[..., Any])


def skip_frames(function: F) -> F:
    """Make Dynamo run a function and all that it calls as they are. Returns the function.

    Dynamo compiles each function that is called while a compiled function runs as it is, such as after a graph break
    within ``try``. Of torch 2.6, only the function's own frame is skipped.
    """
    module: Any = eval_frame
    if hasattr(module, "skip_code"):
        module.skip_code(function.__code__)
    else:
        skip = module._FrameAction.SKIP  # noqa: SLF001 torch has no public name for it
        module.set_code_exec_strategy(function.__code__, module._FrameExecStrategy(skip, skip))  # noqa: SLF001
    return function
