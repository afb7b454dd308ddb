"""Routed calls of many threads, each answer checked: ``python routed_calls.py --calls 10000000 --threads 8``.

Each thread calls a function of its own, whose solution has a workspace at module level, and three functions that all
threads call: compiled, in Python, and one that raises at times. Meanwhile the main thread reloads the data set with
other winners, quarantines solutions, and forks children that make calls too; one call in a thousand has a new shape.

It fails if an answer is wrong, a child fails, or no call was served by a solution.
"""

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
import fib_apply
import torch
from fib_apply.routing.native.module import loaded_guards, wait_for_native
from fib_schema import TraceSet
from support.chaos.data_set import COMPILED, RAISES, RIGHT, write_data_set
from support.chaos.server import RECORDED, WIDTH, hits, plain

WORKSPACE = """
import torch
space = torch.empty(4096, 64)
def run(x):
    part = space[: x.shape[0]]
    part.copy_(x)
    part.add_(part)
    return part + 1
"""
SHARED = {"compiled": COMPILED, "plain": RIGHT, "raises": RAISES}
CHILD_CALLS = 300
LARGEST = 4096
Function = Callable[[torch.Tensor], torch.Tensor]


@attrs.define
class Caller:
    """One thread: its function, and what it has counted."""

    own: Function
    shared: tuple[Function, ...]
    chance: random.Random
    calls: int = 0
    wrong: int = 0
    new_shapes: int = 0
    inputs: list[tuple[torch.Tensor, torch.Tensor]] = attrs.field(factory=list)

    def __attrs_post_init__(self):
        for rows in RECORDED:
            for value in range(4):
                self._add(rows, float(value))

    def _add(self, rows, value):
        x = torch.full((rows, WIDTH), value)
        self.inputs.append((x, plain(x)))
        return self.inputs[-1]

    def call(self):
        chance = self.chance.random()
        if chance < 0.001:
            self.new_shapes += 1
            x, expected = self._add(self.chance.randrange(1, LARGEST), chance)
            self.inputs.pop()
        else:
            x, expected = self.inputs[self.calls % len(self.inputs)]
        function = self.own if chance < 0.5 else self.shared[self.calls % len(self.shared)]
        self.wrong += not torch.equal(function(x), expected)
        self.calls += 1

    def run(self, calls):
        for _ in range(calls):
            self.call()


def functions(names):
    """The engine's functions, routed by name."""
    return {name: fib_apply.apply(name)(lambda x: 2 * x + 1) for name in names}


def change_winners(root, chance):
    """Append traces by which each solution is faster, or slower, than the reference."""
    data = TraceSet.from_path(root)
    traces = []
    for name in data.definitions:
        latency = chance.choice((0.1, 0.1, 5.0))
        for trace in data.traces[name][: len(RECORDED)]:
            performance = attrs.evolve(trace.evaluation.performance, latency_ms=latency, speedup_factor=1 / latency)
            when = f"2026-01-02T{time.strftime('%H:%M:%S')}.{time.time_ns() % 10**9 // 1000:06}Z"
            evaluation = attrs.evolve(trace.evaluation, performance=performance, timestamp=when)
            traces.append(attrs.evolve(trace, evaluation=evaluation))
    data.add_traces(traces)


def fork(caller):
    """Make calls in a forked child; returns whether all were right."""
    child = os.fork()
    if child == 0:
        before, code = caller.wrong, 2
        try:
            caller.run(CHILD_CALLS)
            code = int(caller.wrong > before)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def disturb(runtime, root, mine, chance, done):
    """One reload, quarantine or fork."""
    kind = chance.choice(("reload", "quarantine", "fork", "fork"))
    if kind == "reload":
        change_winners(root, chance)
        runtime.reload()
    elif kind == "quarantine":
        name = chance.choice(tuple(SHARED))
        dispatcher = runtime.dispatcher(name)
        if dispatcher is not None:
            dispatcher.quarantine(f"{name}_solution", "a disturbance")
    elif not fork(mine):
        done["failed children"] += 1
    done[kind] += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000_000, metavar="N", help="of all threads (default: 10^7)")
    parser.add_argument("--threads", type=int, default=8, metavar="N", help="that call (default: 8)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all choices (default: 0)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chance = random.Random(options.seed)
    own = tuple(f"own{number}" for number in range(options.threads + 1))  # the last one is the main thread's
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "set"
        write_data_set(root, dict.fromkeys(own, WORKSPACE) | SHARED)
        config = fib_apply.ApplyConfig(on_error="fallback", on_miss_policy="use_def_best")
        runtime = fib_apply.enable_apply(root, config, stats=True)
        runtime.wait_until_built(120)
        made = functions((*own, *SHARED))
        shared = tuple(made[name] for name in SHARED)
        callers = [Caller(made[name], shared, random.Random(f"{options.seed} {name}")) for name in own]
        *workers, mine = callers
        mine.run(100)  # the first call requests native guards
        wait_for_native(120)
        guards = "native" if loaded_guards() else "Python"
        each = options.calls // options.threads
        threads = [threading.Thread(target=worker.run, args=(each,)) for worker in workers]
        begin, done = time.monotonic(), Counter[str]()
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            disturb(runtime, root, mine, chance, done)
            mine.run(100)
            print(f"\r{sum(caller.calls for caller in callers):,} calls", end="", file=sys.stderr, flush=True)
            time.sleep(0.2)
        seconds = time.monotonic() - begin
        served = hits()
        runtime.stop()
    calls, wrong = sum(caller.calls for caller in callers), sum(caller.wrong for caller in callers)
    print(f"\n{calls:,} calls of {options.threads} threads in {seconds:.0f} s, {wrong} wrong answers, {guards} guards")
    print(f"new shapes: {sum(caller.new_shapes for caller in callers):,}; ", end="")
    print("; ".join(f"{kind}: {count}" for kind, count in sorted(done.items())))
    print(f"served by solutions since the last reload: {served:,}")
    return int(wrong > 0 or done["failed children"] > 0 or calls < each * options.threads or not served)


if __name__ == "__main__":
    sys.exit(main())
