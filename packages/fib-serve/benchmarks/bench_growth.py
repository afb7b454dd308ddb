"""Growth of the web process: the requests of `bench_soak.py` in this process, without evaluations, many times as fast.

After every 500 rounds it measures, after garbage collection, what is allocated and what the system has given. A leak
grows with the rounds; the allocator levels off. A round is one submission, which another process completes, and
five reads.

usage: bench_growth.py [ROUNDS], by default 6000.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import httpx
from fib_serve.database import Database, migrate, open_database
from fib_serve.queue.leasing import claim
from fib_serve.queue.recording import complete
from fib_serve.settings import Settings, default_state, make_state
from fib_serve.users.accounts import local_principal
from fib_serve.web.app import make_app
from fib_serve.web.state import Service
from memory import Sample, print_growth
from service import GOOD, machine, plain_solution, write_data_set

_STEP = 500
_MAX_IDS = 1300
_NO_LIMIT = 1_000_000
_POLL_SECONDS = 0.005


def complete_submissions(settings: Settings) -> None:
    """Play the worker, until this process is killed."""
    database, chance = open_database(settings), random.Random(0)
    while True:
        lease = claim(database, "cpu", 60)
        if lease is None:
            time.sleep(_POLL_SECONDS)
            continue
        values = {"verdict": "PASSED", "passed": 2, "is_ranked": True, "score": chance.random(), "hardware": "cpu"}
        complete(database, lease, values | {"harness": "1", "summary": {"public": {"speedup_text": "2x"}}})


async def make_requests(settings: Settings, database: Database, rounds: int) -> list[Sample]:
    """Submit and read; the memory after every 500 rounds."""
    app = make_app(Service.open(settings, database, local_principal(database, settings), lambda: None))
    samples: list[Sample] = []
    ids: list[str] = []
    chance = random.Random(0)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client,
    ):
        gc.collect()
        gc.freeze()
        for index in range(rounds + 1):
            body = {"solution": plain_solution(f"{GOOD}# {index}\n")}
            made = (await client.post("/v1/submissions", json=body)).json()["id"]
            ids = [*ids[-_MAX_IDS:], made]
            read = ("/leaderboard/double", f"/v1/submissions/{chance.choice(ids)}", "/metrics", "/nope")
            for path in (*read, f"/tasks/{made}?timeout=5"):
                await client.get(path)
            if index % _STEP == 0:
                samples.append(Sample.take(index))
    return samples


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 6000
    with tempfile.TemporaryDirectory() as folder:
        root = write_data_set(Path(folder) / "data")
        state = default_state(root)
        make_state(state)
        settings = Settings(
            dataset=str(root),
            state=str(state),
            allow_unranked=True,
            requests_per_second=_NO_LIMIT,
            max_running=_NO_LIMIT,
            max_queued=_NO_LIMIT,
            max_per_day=_NO_LIMIT,
        )
        database = open_database(settings)
        migrate(database)
        worker = os.fork()
        if not worker:
            complete_submissions(settings)
        try:
            samples = asyncio.run(make_requests(settings, database, rounds))
        finally:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
    print(f"# Growth of the web process\n\n{machine()}; `benchmarks/bench_growth.py {rounds}`")
    print_growth(samples)


if __name__ == "__main__":
    main()
