"""Measures what it brings on a busy CPU that a worker goes first, and prints a table in Markdown.

A process of its own session times a softmax with all threads, while others multiply matrices; now it
takes its turn, now it goes first. Run ``python packages/fib-bench/benchmarks/bench_precedence.py`` with the
privilege to raise priorities; it takes half a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

from fib_bench.worker.cpu_priority import Precedence

TIMED = """
import json, statistics, sys, time, torch
x = torch.randn(512, 2048)
torch.softmax(x, -1)
print(flush=True)
for _ in sys.stdin:
    taken, ran = [], time.process_time_ns()
    for _ in range(200):
        begin = time.perf_counter_ns()
        torch.softmax(x, -1)
        taken.append(time.perf_counter_ns() - begin)
    ran = time.process_time_ns() - ran
    print(json.dumps([statistics.median(taken) / 1e3, statistics.mean(taken) / 1e3, ran / 200e3]), flush=True)
"""
NEIGHBOUR = """
import random, time, torch
x = torch.randn(400, 400)
while True:
    for _ in range(random.randrange(1, 200)):
        x @ x
    time.sleep(random.random() / 20)
"""
ROUNDS, PASSES = 5, 6


class Timed:
    """The process that times."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", TIMED]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.read()

    def read(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ask(self) -> list[float]:
        """Microseconds of a call: the median, the mean, and of processors."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        found: list[float] = json.loads(self.read())
        return found


def main() -> None:
    """Time in turns, on the idle machine, then on the busy one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--neighbours", type=int, default=3)
    arguments = parser.parse_args()
    timed = Timed()
    precedence = Precedence(timed.process.pid)
    precedence.take()
    if os.getpriority(os.PRIO_PROCESS, timed.process.pid) >= 0:
        timed.process.kill()
        parser.exit(1, "bench_precedence: this process may not raise priorities (CAP_SYS_NICE): run it as root\n")
    precedence.give_back()
    print("| other programs | goes first | median of a call | mean | processor time |\n| --- | --- | --- | --- | --- |")
    neighbours: list[subprocess.Popen[bytes]] = []
    try:
        for count in (0, arguments.neighbours):
            command = [sys.executable, "-c", NEIGHBOUR]
            neighbours += [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
            found: dict[str, list[list[float]]] = {"no": [], "yes": []}
            for _ in range(ROUNDS):
                found["no"] += [timed.ask() for _ in range(PASSES)]
                precedence.take()
                found["yes"] += [timed.ask() for _ in range(PASSES)]
                precedence.give_back()
            for goes_first, passes in found.items():
                cells = " | ".join(f"{statistics.median(column):.0f} us" for column in zip(*passes, strict=True))
                print(f"| {count} | {goes_first} | {cells} |", flush=True)
    finally:
        for process in (timed.process, *neighbours):
            process.kill()


if __name__ == "__main__":
    main()
