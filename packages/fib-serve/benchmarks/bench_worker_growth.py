"""Growth of a device worker: leases, records and releases without evaluations, many times as fast as `bench_soak.py`.

Another process submits. The judges of this one return results at once: passed, wrong, with an error, without a trace.
A round is one submission. After every 500 it measures as `bench_growth.py` does.

usage: bench_worker_growth.py [ROUNDS], by default 8000.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fib_bench import IsolationReport
from fib_bench.errors import JudgeFailed
from fib_bench.events import Evaluated, Event
from fib_schema import Correctness, Definition, Environment, Evaluation, Performance, Solution, Trace, Workload
from fib_serve.database import Database, migrate, open_database
from fib_serve.queue.submitting import NewSubmission, submit, usage
from fib_serve.settings import Settings, default_state, make_state
from fib_serve.users.accounts import local_principal
from fib_serve.worker.device_worker import DeviceWorker
from memory import Sample, print_growth
from service import GOOD, machine, make_solution, write_data_set

_STEP = 500
_NO_LIMIT = 10_000_000
_MAX_QUEUED = 20
_POLL_SECONDS = 0.02
_STATUSES = ("PASSED", "INCORRECT_NUMERICAL", "RUNTIME_ERROR", "COMPILE_ERROR", "TIMEOUT", "none")


class InstantJudges:
    """Judges that evaluate nothing. They count submissions, and measure this process after every 500."""

    def __init__(self, rounds: int) -> None:
        self.samples: list[Sample] = []
        self.worker: DeviceWorker
        self._rounds, self._chance, self._begun = rounds, random.Random(0), 0
        self._environment = Environment("cpu")

    def check(self) -> None:
        if self._begun % _STEP == 0 and len(self.samples) <= self._begun // _STEP:
            self.samples.append(Sample.take(self._begun))
        if self._begun == self._rounds:
            self.worker.drain()

    def probe(self, private: Sequence[Path]) -> IsolationReport:
        return IsolationReport(3, "not tried", ())

    def begin(self) -> None:
        self._begun += 1

    def environment(self, root: Path) -> Environment:
        return self._environment

    def run(
        self, root: Path, definition: Definition, solution: Solution, workloads: Sequence[Workload], cache_key: str
    ) -> Iterator[Event]:
        status = self._chance.choice(_STATUSES)
        if status == "none":
            raise JudgeFailed("the judge has died")
        for workload in workloads:
            numbers = status in ("PASSED", "INCORRECT_NUMERICAL")
            evaluation = Evaluation(
                status,
                self._environment,
                "2026-01-01T00:00:00Z",
                "x" * self._chance.choice((0, 100, 2000)),
                Correctness() if numbers else None,
                Performance(1.0, 2.0, 2.0) if status == "PASSED" else None,
                {"isolation": {"level": 3, "measures": []}},
            )
            yield Evaluated(Trace(definition.name, workload, solution.name, evaluation))

    def forget(self, solution: Solution, cache_key: str) -> None:
        pass

    def interrupt(self) -> None:
        pass

    close = interrupt


def submit_all(database: Database, settings: Settings) -> None:
    """Keep the queue filled, until this process is killed."""
    user_id = local_principal(database, settings).user_id
    for index in itertools.count():
        while _queued(database, user_id) >= _MAX_QUEUED:
            time.sleep(_POLL_SECONDS)
        solution = make_solution(f"{GOOD}# {index}\n").with_unique_name()
        submit(database, NewSubmission(user_id=user_id, solution=solution, workloads=None, planned=2))


def _queued(database: Database, user_id: int) -> int:
    with database.read() as connection:
        return usage(connection, user_id)["queued"]


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    with tempfile.TemporaryDirectory() as folder:
        root = write_data_set(Path(folder) / "data")
        state = default_state(root)
        make_state(state)
        limits = dict.fromkeys(("max_running", "max_queued", "max_per_day"), _NO_LIMIT)
        settings = Settings(dataset=str(root), state=str(state), allow_unranked=True, **limits)
        database = open_database(settings)
        migrate(database)
        submitter = os.fork()
        if not submitter:
            submit_all(open_database(settings), settings)
        try:
            judges = InstantJudges(rounds)
            judges.worker = DeviceWorker(settings, "cpu", judges, database)
            judges.worker.run()
        finally:
            os.kill(submitter, signal.SIGKILL)
            os.waitpid(submitter, 0)
    print(f"# Growth of the worker\n\n{machine()}; `benchmarks/bench_worker_growth.py {rounds}`")
    print_growth(judges.samples)


if __name__ == "__main__":
    main()
