"""One of several replicas: runs all scenarios of `test_replicas` and writes what its calls were served by.

Usage: python replica_worker.py FOLDER PORT, with the rank in RANK.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from fib_apply import ApplyConfig, ApplyRuntime, ReplicaGroup
from torch import distributed

RANK, SIZE = int(os.environ["RANK"]), 4
TIMEOUT_SECONDS = 20.0
FOUND: dict[str, Any] = {}


def served_by(runtime: ApplyRuntime) -> str:
    """Name of the solution that served a call, or ``fallback``: each solution adds another number."""
    x = torch.zeros(1, 4)
    found = runtime.dispatch("scale", (x,), fallback=lambda x: x)
    return {0: "fallback", 1: "fast", 2: "second", 3: "newest"}[int(found[0, 0])]


def started(name: str, data_set: Path, **settings: Any) -> ApplyRuntime:
    config = ApplyConfig(**settings)
    return ApplyRuntime(data_set, config, replicas=ReplicaGroup.of_process_group(name=name)).start()


def synchronized(runtime: ApplyRuntime, timeout_seconds: float = TIMEOUT_SECONDS) -> tuple[bool, str, str]:
    result = runtime.synchronize(timeout_seconds)
    return result.is_agreed, result.problem, served_by(runtime)


def all_agree(folder: Path) -> None:
    runtime = started("agree", folder / "plain")
    FOUND["agree"] = [served_by(runtime), *synchronized(runtime)]


def other_table(folder: Path) -> None:
    runtime = started("other table", folder / ("newer" if RANK == 1 else "plain"))
    FOUND["other table"] = synchronized(runtime)


def failing_build(folder: Path) -> None:
    runtime = started("failing build", folder / "fails on rank 2")
    FOUND["failing build"] = synchronized(runtime)


def quarantine(folder: Path) -> None:
    runtime = started("quarantine", folder / "plain")
    found = [synchronized(runtime)]
    dispatcher = runtime.dispatcher("scale")
    assert dispatcher is not None
    if RANK == 1:
        dispatcher.quarantine("fast", "it is wrong")
    found.append(served_by(runtime))
    found.append(synchronized(runtime))
    found.append(runtime.left_out())
    FOUND["quarantine"] = found


def error_in_a_call(folder: Path) -> None:
    runtime = started("error", folder / "raises on rank 1", on_error="fallback")
    runtime.synchronize(TIMEOUT_SECONDS)
    try:
        first = served_by(runtime)
    except RuntimeError as error:
        first = str(error)
    FOUND["error"] = [first, *synchronized(runtime)]


def reload_on_one(folder: Path) -> None:
    own = folder / f"reloaded {RANK}"
    runtime = started("reload", own)
    found: list[Any] = [synchronized(runtime)]
    trace = own / "traces" / "newest.jsonl"
    (own / "newest.jsonl").rename(trace)
    if RANK == 1:
        runtime.reload()
    found.append(served_by(runtime))
    found.append(synchronized(runtime))
    runtime.reload()
    found.append(served_by(runtime))
    found.append(synchronized(runtime))
    FOUND["reload"] = found


def late_rank(folder: Path) -> None:
    runtime = started("late", folder / "plain")
    distributed.barrier()
    begin = time.monotonic()
    if RANK == 3:
        time.sleep(4.0)
    first = synchronized(runtime, 1.0)
    waited = time.monotonic() - begin
    FOUND["late"] = [first, waited, synchronized(runtime)]


def killed_rank(folder: Path) -> None:
    runtime = started("killed", folder / "plain")
    distributed.barrier()
    if RANK == 3:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    if RANK == 2:
        time.sleep(1.5)
    begin = time.monotonic()
    FOUND["killed"] = [synchronized(runtime, 4.0), time.monotonic() - begin]


def main() -> None:
    folder, port = Path(sys.argv[1]), sys.argv[2]
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=RANK, world_size=SIZE)
    scenarios = (all_agree, other_table, failing_build, quarantine, error_in_a_call, reload_on_one, late_rank)
    for scenario in scenarios:
        scenario(folder)
    distributed.barrier()
    (folder / f"{RANK}.json").write_text(json.dumps(FOUND))
    killed_rank(folder)
    (folder / f"{RANK}.json").write_text(json.dumps(FOUND))
    if RANK == 0:  # it hosts the store
        time.sleep(3.0)
    os._exit(0)


if __name__ == "__main__":
    main()
