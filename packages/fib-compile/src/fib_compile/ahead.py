"""Builds many solutions into the cache before they are needed.

Compilers run as processes of their own, so threads are enough to keep all cores busy; nothing is
loaded, and no solution code runs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from enum import StrEnum

import attrs
from fib_schema import Definition, Solution

from .builder import Builder, Limits
from .errors import BuildError, check_limit


class BuildState(StrEnum):
    """How an ahead-of-time build ended."""

    BUILT = "built"
    CACHED = "cached"
    """It was there, or nothing can be done ahead of time, as in Python."""
    FAILED = "failed"


@attrs.frozen
class BuildOutcome:
    """What became of one solution."""

    solution: Solution
    state: BuildState
    seconds: float
    error: BuildError | None = None


def build_ahead(
    find_builder: Callable[[Solution], Builder],
    pairs: Iterable[tuple[Definition, Solution]],
    *,
    jobs: int | None = None,
    limits: Limits | None = None,
    on_done: Callable[[BuildOutcome], None] | None = None,
) -> list[BuildOutcome]:
    """Build each pair; see `BuilderRegistry.build_many`."""
    check_limit("jobs", jobs)
    wanted: Sequence[tuple[Definition, Solution]] = list(pairs)
    outcomes: dict[int, BuildOutcome] = {}
    stopped = threading.Event()
    limits = (limits or Limits()).until(stopped)
    with ThreadPoolExecutor(max_workers=jobs or os.cpu_count() or 1) as pool:
        futures = {
            pool.submit(_build_one, find_builder, definition, solution, limits): index
            for index, (definition, solution) in enumerate(wanted)
        }
        try:
            for future in as_completed(futures):
                outcomes[futures[future]] = future.result()
                if on_done is not None:
                    on_done(future.result())
        except BaseException:  # the pool would finish all of it first, and a second interrupt would not help
            pool.shutdown(wait=False, cancel_futures=True)
            stopped.set()
            raise
    return [outcomes[index] for index in range(len(wanted))]


def _build_one(
    find_builder: Callable[[Solution], Builder], definition: Definition, solution: Solution, limits: Limits
) -> BuildOutcome:
    start = time.monotonic()
    error = None
    state = BuildState.CACHED
    try:
        if find_builder(solution).compile_ahead(definition, solution, limits):
            state = BuildState.BUILT
    except BuildError as caught:
        error, state = caught, BuildState.FAILED
    return BuildOutcome(solution, state, time.monotonic() - start, error)
