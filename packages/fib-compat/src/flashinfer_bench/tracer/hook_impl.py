"""Tracing as an apply hook, for programs that set the hook themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fib_tracer import TracingRuntime

__all__ = ["make_tracing_hook"]


def make_tracing_hook(tracer: TracingRuntime) -> Callable[[str, Mapping[str, Any]], None]:
    """A hook that has a tracer collect each call; a tracer that was started listens already, and needs none."""

    def hook(def_name: str, runtime_kwargs: Mapping[str, Any]) -> None:
        tracer.collect(def_name, (), runtime_kwargs)

    return hook
