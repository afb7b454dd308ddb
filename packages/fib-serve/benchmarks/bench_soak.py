"""Mixed load for minutes: honest and hostile submissions, cancellations, readers. Memory, processes, queue at the end.

usage: bench_soak.py [SECONDS], by default 1800.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx
from memory import resident_mib, slope_with_error
from service import GOOD, Service, machine, plain_solution, print_table, processes_with, write_data_set

SOLUTIONS = {
    "honest": GOOD,
    "wrong": "def run(x):\n    return x * 3\n",
    "raises": "def run(x):\n    raise RuntimeError('no')\n",
    "exits": "import os\ndef run(x):\n    os._exit(1)\n",
    "forks": "import os\ndef run(x):\n    [os.fork() for _ in range(8)]\n    return x * 2\n",
    "fills memory": "def run(x):\n    return bytearray(1 << 40)\n",
    "prints": "def run(x):\n    print('x' * 10_000_000)\n    return x * 2\n",
    "does not parse": "def run(x:\n",
}
SAMPLE_SECONDS = 5.0


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1800.0
    chance = random.Random(0)
    points: dict[str, list[tuple[float, float]]] = {"web.process": [], "worker.process": [], "judge_process": []}
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        data_set = write_data_set(Path(folder) / "data")
        service = Service(data_set, "--max-running", "1000", "--timeout", "10")
        service.wait_until_ready()
        with httpx.Client(base_url=service.address, timeout=60) as client:
            begin = time.monotonic()
            sampled, index, ids = 0.0, 0, []
            while (now := time.monotonic() - begin) < seconds:
                index += 1
                kind = chance.choice(list(SOLUTIONS))
                body = {"solution": plain_solution(f"{SOLUTIONS[kind]}# {index}\n")}
                made = client.post("/v1/submissions", json=body).json()["id"]
                ids.append(made)
                counts[kind] += 1
                if chance.random() < 0.02:
                    client.delete(f"/v1/submissions/{made}")
                for path in ("/leaderboard/double", f"/v1/submissions/{chance.choice(ids)}", "/metrics", "/nope"):
                    client.get(path)
                if now - sampled > SAMPLE_SECONDS:
                    sampled, running = now, service.pids()
                    for name, found in points.items():
                        with suppress(KeyError, FileNotFoundError):  # a judge may be restarting
                            found.append((now, resident_mib(running[name])))
                client.get(f"/tasks/{made}?timeout=5")
            deadline = time.monotonic() + 300
            while client.get("/health").json()["queue_size"] and time.monotonic() < deadline:
                time.sleep(0.5)
            left = client.get("/health").json()["queue_size"]
        service.__exit__(None, None, None)
        remaining = processes_with(str(data_set))
    print(f"# Mixed load\n\n{machine()}; `benchmarks/bench_soak.py {seconds:g}`")
    rows = [("number", "measured", "limit")]
    rows.append(
        ("submissions", f"{sum(counts.values())}: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()), "")
    )
    for name, found in points.items():
        slope, error = (3600 * value for value in slope_with_error(found[len(found) // 2 :]))
        last = found[-1][1] if found else 0.0
        rows.append(
            (f"memory of {name}", f"{last:.0f} MiB, {slope:+.1f} MiB an hour ± {error:.1f}", "not different from 0")
        )
    rows.append(("queued at the end", f"{left}", "0"))
    rows.append(("processes left behind", f"{len(remaining)}", "0"))
    print_table("Numbers", rows)


if __name__ == "__main__":
    main()
