"""Tracing functions and settings of the first release."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from fib_tracer import TracingRuntime as Tracer
from fib_tracer import disable_tracing, get_attention_only_configs, get_full_configs
from fib_tracer import enable_tracing as _enable_tracing

from ..errors import NotOfferedArgument

__all__ = [
    "enable_tracing",
    "fib_attn_tracing",
    "fib_full_tracing",
    "make_tracing_hook",
]

fib_full_tracing = get_full_configs()
fib_attn_tracing = get_attention_only_configs()


def enable_tracing(
    rules: Any = None,
    out_dir: str | os.PathLike[str] | None = None,
    blob_dir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Tracer:
    """Start a tracer that replaces the one in force, and write to the data set of ``FIB_DATASET_PATH``.

    Args:
        rules: Settings by definition, or any other `tracing_config` of `fib_tracer.enable_tracing`.
        out_dir: Must be None: the data set determines the place of workloads.
        blob_dir: Must be None: the data set determines the place of tensors.
        options: Other arguments of `fib_tracer.enable_tracing`, such as ``dataset_path``.

    Raises:
        NotOfferedArgument: `out_dir` or `blob_dir` is given.
    """
    if out_dir is not None or blob_dir is not None:
        raise NotOfferedArgument(
            "enable_tracing(out_dir=..., blob_dir=...)", "pass dataset_path=, or set FIB_DATASET_PATH"
        )
    disable_tracing()
    return _enable_tracing(**{"tracing_config": rules, **options})


def make_tracing_hook(tracer: Tracer) -> Callable[[str, Mapping[str, Any]], None]:
    """An apply hook that passes each call to `tracer`; a tracer that was started receives all calls without a hook."""

    def hook(def_name: str, runtime_kwargs: Mapping[str, Any]) -> None:
        tracer.collect(def_name, (), runtime_kwargs)

    return hook
