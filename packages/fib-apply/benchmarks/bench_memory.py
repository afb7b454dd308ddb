"""Memory of a routed process after many distinct shapes, with counted calls, for each miss policy.

Threads call one function with sizes that are never repeated. What a runtime keeps is bounded, so the resident memory
must stay within the limit, whatever policy chooses solutions for sizes that are not recorded.

usage: python bench_memory.py [--shapes 1000000] [--threads 8] [--policy fallback_only ...]
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from bench_dispatch import data_set, small
from fib_apply import ApplyConfig, apply, enable_apply
from fib_apply.routing.native.module import prepare_native

LIMIT_MB = 20.0
_POLICIES = ("fallback_only", "use_def_best")
_WARM_UP = 1_000


def resident_mb() -> float:
    """The resident memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def added_mb(policy: str, shapes: int, threads: int) -> tuple[float, float]:
    """Resident memory that distinct shapes add, in MB, and the processor time of a call in microseconds."""
    two = small()
    memory = torch.empty(shapes + _WARM_UP + 100, 32)  # views of it are contiguous, and cost no memory
    with tempfile.TemporaryDirectory() as folder:
        routed = apply("two")(two.function)
        with enable_apply(data_set(Path(folder), [two]), ApplyConfig(on_miss_policy=policy), stats=True):

            def call(first: int, last: int, step: int) -> None:
                for rows in range(first, last, step):
                    routed(memory[:rows], two.args[1])

            call(20, _WARM_UP, 1)
            gc.collect()
            before, begin = resident_mb(), time.process_time()
            workers = [
                threading.Thread(target=call, args=(_WARM_UP + n, shapes + _WARM_UP, threads)) for n in range(threads)
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            taken = time.process_time() - begin
            gc.collect()
            return resident_mb() - before, taken / shapes * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--policy", choices=_POLICIES, nargs="+", default=_POLICIES)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    print(f"native guards: {prepare_native() or 'ready'}; {options.threads} threads, {options.shapes:,} shapes")
    print("| policy | added, MB | at most | us a call |\n| --- | --- | --- | --- |")
    failures = 0
    for policy in options.policy:
        added, taken = added_mb(policy, options.shapes, options.threads)
        failures += added > LIMIT_MB
        print(f"| {policy} | {added:.1f} | {LIMIT_MB:.0f} | {taken:.1f} |", flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
