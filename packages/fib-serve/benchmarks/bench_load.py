"""Load on a real service: posts, bursts, reads, a large database, and the overhead of an evaluation.

The worker is stopped (SIGSTOP) while requests are measured, because the numbers are about the API with idle devices.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import httpx
from fib_bench import Benchmark, BenchmarkConfig, Evaluator
from fib_bench.events import Evaluated
from fib_schema import TraceSet
from service import FAST, GOOD, Connection, Service, machine, make_solution, plain_solution, print_table, write_data_set

POSTS_PER_SECOND, CONNECTIONS, BURST = 50, 200, 200
SUBMISSIONS = 100_000
EVALUATIONS = 20


def body(tag: str) -> bytes:
    return json.dumps({"solution": plain_solution(f"{GOOD}# {tag}\n"), "workload_uuids": None}).encode()


async def post_open_loop(port: int, seconds: float) -> tuple[list[float], int]:
    """Posts at a fixed rate, whether earlier ones are answered or not; latencies from the planned time of each."""
    connections = [Connection(port) for _ in range(CONNECTIONS)]
    await asyncio.gather(*(connection.request("GET", "/health") for connection in connections))
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for connection in connections:
        free.put_nowait(connection)
    latencies, errors = [], 0

    async def post(planned: float, index: int) -> None:
        nonlocal errors
        connection = await free.get()
        status, _ = await connection.request("POST", "/evaluate", body(f"open {index}"))
        latencies.append(time.perf_counter() - planned)
        errors += status != 200
        free.put_nowait(connection)

    begin, tasks = time.perf_counter() + 0.1, []
    for index in range(int(seconds * POSTS_PER_SECOND)):
        planned = begin + index / POSTS_PER_SECOND
        await asyncio.sleep(max(planned - time.perf_counter(), 0))
        tasks.append(asyncio.ensure_future(post(planned, index)))
    await asyncio.gather(*tasks)
    return latencies, errors


async def post_burst(port: int) -> tuple[float, int]:
    connections = [Connection(port) for _ in range(BURST)]
    bodies = [body(f"burst {index} {time.time()}") for index in range(BURST)]
    begin = time.perf_counter()
    answers = await asyncio.gather(
        *(connection.request("POST", "/evaluate", each) for connection, each in zip(connections, bodies, strict=True))
    )
    return time.perf_counter() - begin, sum(status != 200 for status, _ in answers)


async def read_statuses(port: int, task: str, seconds: float) -> float:
    """Reads a second by 16 connections."""
    end, count = time.perf_counter() + seconds, 0

    async def read() -> None:
        nonlocal count
        connection = Connection(port)
        while time.perf_counter() < end:
            status, _ = await connection.request("GET", f"/v1/submissions/{task}")
            assert status == 200
            count += 1

    begin = time.perf_counter()
    await asyncio.gather(*(read() for _ in range(16)))
    return count / (time.perf_counter() - begin)


def fill(service: Service, count: int) -> None:
    """Add completed submissions of many users to the database directly."""
    import sqlite3

    path = service.data_set.with_name(f"{service.data_set.name}.fib-serve") / "serve.sqlite3"
    connection = sqlite3.connect(path, timeout=60)
    summary = json.dumps({"public": {"speedup_text": "2.00x ± 0.01", "latency_ms": [0.01, 0.02], "flags": []}})
    users = [(f"user-{index}", "submitter", 1, 1.0, 2, 100, 1000, 0.0, 0.0) for index in range(500)]
    columns = "name, role, is_active, weight, max_running, max_queued, max_per_day, virtual_time, created_at"
    connection.executemany(f"INSERT INTO users ({columns}) VALUES (?,?,?,?,?,?,?,?,?)", users)
    first = connection.execute("SELECT min(id) FROM users WHERE name LIKE 'user-%'").fetchone()[0]
    text = json.dumps(plain_solution(GOOD * 20))
    rows = (
        (f"{index:032x}", first + index % 500, "double", f"s_{index}", text, f"{index:064x}", f"{index}", 0,
         "completed", 0, 1, 1.0 * index, 1.0 * index, 2, 2, "PASSED", summary, 1,
         1 + index * 7919 % 100_003 / 1e5, "cpu", "1")
        for index in range(count)
    )  # fmt: skip
    connection.executemany(
        "INSERT INTO submissions (id, user_id, definition, solution_name, solution, content_hash, request_hash,"
        " priority, state, is_cancelling, attempts, created_at, finished_at, planned, passed, verdict, summary,"
        " is_ranked, score, hardware, harness) VALUES (" + ",".join("?" * 21) + ")",
        rows,
    )
    connection.commit()
    connection.close()


def page_seconds(service: Service, path: str) -> float:
    times = []
    with httpx.Client(base_url=service.address, headers={"Accept": "text/html"}) as client:
        for _ in range(10):
            begin = time.perf_counter()
            assert client.get(path).status_code == 200
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def evaluation_overhead(service: Service, folder: Path) -> dict[str, float]:
    """Milliseconds per evaluation: by the service from the post on, by an `Evaluator`, by one ``fib-bench run``.

    The service and the evaluator take turns with equal solutions. The run has the same number of solutions, which share
    the preparation of the workloads.
    """
    names = [option.removeprefix("--").replace("-", "_") for option in FAST[::2]]
    config = BenchmarkConfig(**{name: json.loads(value) for name, value in zip(names, FAST[1::2], strict=True)})
    root = write_data_set(folder)
    trace_set = TraceSet.from_path(root)
    definition = trace_set.definitions["double"]
    workloads = [trace.workload for trace in trace_set.workloads["double"]]
    times: dict[str, list[float]] = {"service": [], "evaluator": [], "run": []}
    with httpx.Client(base_url=service.address, timeout=120) as client, Evaluator(config, root) as evaluator:
        for index in range(EVALUATIONS + 1):
            begin = time.perf_counter()
            answer = client.post("/evaluate", json=json.loads(body(f"overhead {index}")))
            client.get(f"/tasks/{answer.json()['task_id']}?timeout=120")
            middle = time.perf_counter()
            list(evaluator.run(definition, make_solution(f"{GOOD}# evaluator {index}\n"), workloads))
            times["service"].append(middle - begin)
            times["evaluator"].append(time.perf_counter() - middle)
    trace_set.add_solutions([make_solution(f"{GOOD}# {index}\n", f"s{index}") for index in range(EVALUATIONS + 1)])

    def observe(event: object) -> None:
        if isinstance(event, Evaluated):
            times["run"].append(time.perf_counter())

    Benchmark(trace_set, config).run(observe=observe)
    ends = times["run"][1::2]  # of the second workload of each solution
    times["run"] = [0.0, *(after - before for before, after in pairwise(ends))]
    return {name: statistics.median(found[1:]) / len(workloads) * 1e3 for name, found in times.items()}


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    count = int(sys.argv[2]) if len(sys.argv) > 2 else SUBMISSIONS
    print(f"# Load on fib-serve\n\n{machine()}; SQLite; `benchmarks/bench_load.py`")
    rows: list[tuple[str, ...]] = [("number", "measured", "limit")]
    with tempfile.TemporaryDirectory() as folder, Service(write_data_set(Path(folder) / "data")) as service:
        taken_ms = evaluation_overhead(service, Path(folder) / "bench")
        worker = service.pids()["worker.process"]
        os.kill(worker, signal.SIGSTOP)
        latencies, errors = asyncio.run(post_open_loop(service.port, seconds))
        p99 = sorted(latencies)[int(len(latencies) * 0.99)] * 1e3
        what = f"`POST /evaluate`, {CONNECTIONS} connections, {POSTS_PER_SECOND} a second, {len(latencies)} posts"
        rows.append((f"{what}: 99 %", f"{p99:.0f} ms, {errors} errors", "100 ms, 0 errors"))
        taken, errors = asyncio.run(post_burst(service.port))
        rows.append((f"burst of {BURST} posts", f"{taken:.2f} s, {errors} errors", "2 s"))
        answer = httpx.post(f"{service.address}/evaluate", json=json.loads(body("read"))).json()
        rate = asyncio.run(read_statuses(service.port, answer["task_id"], min(seconds, 10)))
        rows.append(("status reads", f"{rate:.0f} a second", "1000 a second"))
        fill(service, count)
        for path in ("/leaderboard", "/leaderboard/double", "/submissions", f"/submissions/{5:032x}"):
            taken = page_seconds(service, path)
            rows.append((f"page {path[:24]}, {count} submissions", f"{taken * 1e3:.0f} ms", "200 ms"))
        os.kill(worker, signal.SIGCONT)
        for name, what in (("evaluator", "the same work without the service"), ("run", "`fib-bench run`")):
            overhead = taken_ms["service"] - taken_ms[name]
            numbers = f"{overhead:.1f} ms ({taken_ms['service']:.1f} - {taken_ms[name]:.1f})"
            rows.append((f"overhead per evaluation against {what}", numbers, "20 ms"))
        service.kill()
    print_table("Numbers", rows)


if __name__ == "__main__":
    main()
