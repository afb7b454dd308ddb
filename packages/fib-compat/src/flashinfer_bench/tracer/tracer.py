"""The tracer of a process, which is a `TracingRuntime` today."""

from __future__ import annotations

import os
from typing import Any

from fib_tracer import TracingRuntime, disable_tracing
from fib_tracer import TracingRuntime as Tracer
from fib_tracer import enable_tracing as _enable_tracing
from fib_tracer import get_tracing_runtime as get_tracer

from ..errors import NotOffered

__all__ = ["Tracer", "disable_tracing", "enable_tracing", "get_tracer"]


def enable_tracing(
    rules: Any = None,
    out_dir: str | os.PathLike[str] | None = None,
    blob_dir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> TracingRuntime:
    """Collect workloads in place of whoever did so before, into the data set of ``FIB_DATASET_PATH``.

    Args:
        rules: Settings by definition, or whatever else `fib_tracer.enable_tracing` takes.
        out_dir: Must be None, and
        blob_dir: likewise: workloads and tensors lie at their places in the data set.
        options: What `fib_tracer.enable_tracing` takes, such as ``dataset_path``.

    Raises:
        NotOffered: A folder is given.
    """
    if out_dir is not None or blob_dir is not None:
        raise NotOffered("enable_tracing(out_dir=..., blob_dir=...)", "pass dataset_path=, or set FIB_DATASET_PATH")
    disable_tracing()
    return _enable_tracing(**{"tracing_config": rules, **options})
