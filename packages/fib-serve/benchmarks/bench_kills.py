"""Kills of the service or a judge at random moments, while submissions arrive.

Afterwards every acknowledged submission must have ended, and the trace files must hold each of its evaluations once.

usage: bench_kills.py [KILLS]
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
from service import GOOD, Service, machine, plain_solution, print_table, write_data_set

VICTIMS = ("judge_process", "service")
OPTIONS = ("--max-running", "1000")
_LONGEST_PAUSE_SECONDS = 4.0


class Submitter:
    """Submits solutions until it is stopped; keeps the ids that were acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: list[str] = []
        self.address = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        index = 0
        while not self._stop.is_set():
            index += 1
            try:
                answer = httpx.post(f"{self.address}/v1/submissions", timeout=5,
                                    json={"solution": plain_solution(f"{GOOD}# {index}\n")})  # fmt: skip
                if answer.status_code == 201:
                    self.acknowledged.append(answer.json()["id"])
            except (httpx.HTTPError, httpx.InvalidURL):
                pass
            time.sleep(0.5)


def traces(root: Path) -> Counter[tuple[str, str]]:
    """The number of traces of each submission and workload; a torn line counts nothing."""
    found: Counter[tuple[str, str]] = Counter()
    for path in root.glob("traces/**/*.jsonl"):
        for line in path.read_bytes().splitlines():
            try:
                trace = json.loads(line)
            except ValueError:
                continue
            found[trace["evaluation"]["extra"]["submission"], trace["workload"]["uuid"]] += 1
    return found


def wait(service: Service, identifiers: list[str]) -> Counter[str]:
    """Wait for submissions; returns how many ended how."""
    states: Counter[str] = Counter()
    with httpx.Client(base_url=service.address, timeout=600) as client:
        for begin in range(0, len(identifiers), 500):
            some = identifiers[begin : begin + 500]
            answer = client.post("/tasks/batch", json={"task_ids": some, "timeout": 600})
            assert answer.status_code == 200, answer.text
            states.update(task["status"] for task in answer.json())
    return states


def kill(victim: str, service: Service) -> bool:
    """Kill a victim; false if it does not run."""
    try:
        os.kill(service.pids()[victim], signal.SIGKILL)
    except (KeyError, ProcessLookupError):
        return False
    if victim == "service":
        service.process.wait()
    return True


def run(data_set: Path, kills: int, chance: random.Random) -> list[tuple[str, ...]]:
    """Run a service and kill; returns the rows of the table."""
    counts: Counter[str] = Counter()
    submitter = Submitter()
    service = Service(data_set, *OPTIONS)
    try:
        for _ in range(kills):
            submitter.address = service.address
            time.sleep(chance.uniform(0, _LONGEST_PAUSE_SECONDS))
            while not kill(victim := chance.choice(VICTIMS), service):
                pass
            counts[victim] += 1
            if service.process.poll() is not None:
                service = Service(data_set, *OPTIONS)
    finally:
        submitter.stop()
    service.wait_until_ready()
    states = wait(service, submitter.acknowledged)
    service.process.send_signal(signal.SIGTERM)
    service.process.wait(120)
    found = traces(data_set)
    known = set(submitter.acknowledged)
    completed = sum(found[identifier, f"double-{size}"] == 1 for identifier in known for size in (4, 8))
    return [
        ("number", "measured", "limit"),
        ("kills", ", ".join(f"{n} of {name}" for name, n in counts.items()), ""),
        ("acknowledged submissions", f"{len(known)}: {dict(states)}", ""),
        ("acknowledged submissions that were lost", f"{len(known) - sum(states.values())}", "0"),
        ("evaluations with one trace", f"{completed} of {2 * len(known)}", ""),
        ("traces that occur twice", f"{sum(count > 1 for count in found.values())}", "0"),
    ]


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    seed = int.from_bytes(os.urandom(4))
    with tempfile.TemporaryDirectory() as folder:
        rows = run(write_data_set(Path(folder) / "data"), kills, random.Random(seed))
    print(f"# Kills\n\n{machine()}; `benchmarks/bench_kills.py {kills}`; seed {seed}")
    print_table("Numbers", rows)
    if rows[3][1] != "0" or rows[5][1] != "0":
        sys.exit(1)


if __name__ == "__main__":
    main()
