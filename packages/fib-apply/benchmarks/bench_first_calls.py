"""Processor time of the first call of a size that is not recorded, in microseconds, for each miss policy.

Such a call is validated, its key is made, a solution is chosen or none, and an entry is cached for the next call. A
number is the median over many sizes, each called once, less that of a plain call; calls are counted. Python guards are
measured before the native module is loaded.

usage: python bench_first_calls.py [--sizes 1000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bench_dispatch import Subject, data_set, large, small
from fib_apply import ApplyConfig, apply, enable_apply
from fib_apply.routing.native.module import prepare_native
from fib_schema import TraceSet

LIMIT_US = 20.0
POLICIES = ("fallback_only", "use_def_best")
_FIRST_SIZE = 100


def new_calls(subject: Subject, count: int) -> list[tuple[torch.Tensor, ...]]:
    """Arguments of calls of new sizes of the first axis; only the first tensor has it."""
    first, *others = subject.args
    return [
        (torch.empty(size, *first.shape[1:]), *(torch.empty_like(other) for other in others))
        for size in range(_FIRST_SIZE, _FIRST_SIZE + count)
    ]


def median_us(function: Callable[..., Any], calls: list[tuple[torch.Tensor, ...]]) -> float:
    """The median processor time of calls that are made once."""
    taken = []
    for args in calls:
        begin = time.process_time_ns()
        function(*args)
        taken.append(time.process_time_ns() - begin)
    return statistics.median(taken) / 1000


def added_us(found: TraceSet, subjects: list[Subject], policy: str, sizes: int) -> list[float]:
    """The processor time that a policy adds to first calls of each subject."""
    routed = [apply(subject.definition.name)(subject.function) for subject in subjects]
    with enable_apply(found, ApplyConfig(on_miss_policy=policy), stats=True) as runtime:
        for function, subject in zip(routed, subjects, strict=True):
            function(*subject.args)
        runtime.wait_until_built(60)
        for function, subject in zip(routed, subjects, strict=True):
            function(*subject.args)
        added = []
        for function, subject in zip(routed, subjects, strict=True):
            calls = new_calls(subject, sizes)
            added.append(median_us(function, calls) - median_us(subject.function, calls))
        served = [runtime.stats()[subject.definition.name] for subject in subjects]
        wanted = sizes if policy == "fallback_only" else 0
        assert all(one.misses.get("not recorded", 0) == wanted for one in served), "a policy was not used"
        return added


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, default=1_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    os.environ["FIB_APPLY_NATIVE"] = "0"  # until Python guards are measured
    subjects = [small(), large()]
    rows: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        found = data_set(Path(folder), subjects)
        for policy in POLICIES:
            rows[f"{policy}, Python guards"] = added_us(found, subjects, policy, options.sizes)
        del os.environ["FIB_APPLY_NATIVE"]
        if problem := prepare_native():
            sys.exit(f"native guards: {problem}")
        for policy in POLICIES:
            rows[f"{policy}, native guards"] = added_us(found, subjects, policy, options.sizes)
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {options.sizes:,} sizes")
    print("| policy | two inputs, one axis, us | six inputs, four axes, us | at most |\n| --- | --- | --- | --- |")
    for name, (two, six) in rows.items():
        print(f"| {name} | {two:.1f} | {six:.1f} | {LIMIT_US:.0f} |")
    if options.json is not None:
        options.json.write_text(json.dumps({"added_us": rows}, indent=1))
    slow = [name for name, times in rows.items() if max(times) > LIMIT_US]
    if slow:
        sys.exit(f"above {LIMIT_US:.0f} us: {'; '.join(slow)}")


if __name__ == "__main__":
    main()
