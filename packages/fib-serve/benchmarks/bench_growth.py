"""Growth of the web process: the requests of `bench_soak.py` in this process, without evaluations, many times as fast.

After every 500 rounds it prints the allocated blocks of CPython and the resident memory, after garbage collection. A
leak grows with the rounds; the allocator levels off. A round is one submission, which another process completes, and
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
from bench_soak import resident_mib
from fib_serve.database import Database, migrate, open_database
from fib_serve.queue.leasing import claim
from fib_serve.queue.recording import complete
from fib_serve.settings import Settings, default_state, make_state
from fib_serve.users.accounts import local_principal
from fib_serve.web.app import make_app
from fib_serve.web.state import Service
from service import GOOD, machine, plain_solution, print_table, write_data_set

_STEP = 500
_MOST_IDS = 1300
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


async def make_requests(settings: Settings, database: Database, rounds: int) -> list[tuple[str, ...]]:
    """Submit and read; the rows of the table."""
    app = make_app(Service.open(settings, database, local_principal(database, settings), lambda: None))
    rows, ids, chance = [("rounds", "allocated blocks", "resident, KiB")], [], random.Random(0)
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
            ids = [*ids[-_MOST_IDS:], made]
            read = ("/leaderboard/double", f"/v1/submissions/{chance.choice(ids)}", "/metrics", "/nope")
            for path in (*read, f"/tasks/{made}?timeout=5"):
                await client.get(path)
            if index % _STEP == 0:
                gc.collect()
                rows.append((f"{index}", f"{sys.getallocatedblocks()}", f"{resident_mib(os.getpid()) * 1024:.0f}"))
    return rows


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
            rows = asyncio.run(make_requests(settings, database, rounds))
        finally:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
    print(f"# Growth of the web process\n\n{machine()}; `benchmarks/bench_growth.py {rounds}`")
    print_table("Memory by rounds", rows)


if __name__ == "__main__":
    main()
