"""Measures how evenly the scheduler divides definitions of different speeds among the judges of one and of two devices.

Judges sleep in place of evaluating, so all that is lost is lost by pieces of unequal length and by their starts.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator
from functools import partial

import attrs
from bench_scheduler import HERE, seconds_for, work
from fib_bench.events import Evaluated, Event
from fib_bench.execution.scheduler import Scheduler
from fib_bench.plan import DefinitionPlan
from fib_schema import Environment, Evaluation, EvaluationStatus, Trace

DEFINITIONS, WORKLOADS, JUDGES = 8, 14, 4


@attrs.frozen
class SleepingJudge:
    """A judge that sleeps, at the start of each piece and for each evaluation."""

    start_seconds: float
    seconds: dict[str, float]
    """Of an evaluation, by workload."""

    @property
    def environment(self) -> Environment:
        return HERE

    def execute(self, part: DefinitionPlan) -> Iterator[Event]:
        made = Evaluation(EvaluationStatus.RUNTIME_ERROR, HERE, "2026-01-01T00:00:00", "")
        time.sleep(self.start_seconds)
        for workload in part.workloads:
            for solution in part.pending[workload.uuid]:
                time.sleep(self.seconds[workload.uuid])
                yield Evaluated(Trace(part.definition.name, workload, solution.name, made))

    def close(self) -> None:
        """Nothing was started."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", type=float, default=0.05, help="mean seconds of an evaluation")
    parser.add_argument("--start", type=float, default=0.02, help="seconds of the start of a piece")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    print("| judges | median s | slowest s | of a perfect division | times as fast |\n| --- | --- | --- | --- | --- |")
    alone = 0.0
    for judges in (JUDGES, 2 * JUDGES):
        chance = random.Random(0)
        taken, shares = [], []
        for _ in range(options.rounds):
            parts = work(DEFINITIONS, WORKLOADS)
            paces = [options.pair * chance.lognormvariate(-0.08, 0.4) for _ in parts]
            seconds = {
                workload.uuid: pace * chance.lognormvariate(-0.045, 0.3)
                for part, pace in zip(parts, paces, strict=True)
                for workload in part.workloads
            }
            judge = SleepingJudge(options.start, seconds)
            with Scheduler((str(index), partial(lambda one: one, judge)) for index in range(judges)) as scheduler:
                taken.append(seconds_for(scheduler, parts))
            shares.append(sum(seconds.values()) / judges / taken[-1])
        median = statistics.median(taken)
        alone = alone or median
        share = statistics.median(shares)
        print(f"| {judges} | {median:.2f} | {max(taken):.2f} | {share:.0%} | {alone / median:.2f} |", flush=True)


if __name__ == "__main__":
    main()
