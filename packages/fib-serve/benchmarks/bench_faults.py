"""Faults at random points: an honest and a wrong kernel are submitted, and something fails while they are evaluated.

usage: bench_faults.py [--seconds N] [--seed N] [--only NAME ...]; exits with 1 after a false verdict or a lost record.
Run it as root: all files are on a small file system of its own, which one of the faults fills. A kernel is evaluated on
two workloads. Counted are verdicts that are not the kernel's own, submissions that ended without one, and acknowledged
records that the API or the trace files lack or have twice.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs
import httpx
from service import GOOD, Service, machine, plain_solution, print_table, write_data_set

_WRONG = "def run(x):\n    return x * 2 + 1\n"
_SLOW = "import time\ntime.sleep({seconds:.2f})\n"
_BUILT = """#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
void Double(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  for (int64_t i = 0; i < x.size(0); ++i)
    static_cast<float*>(y.data_ptr())[i] = 2 * static_cast<float*>(x.data_ptr())[i];
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Double);
"""
_SIZE_MB = 256
_ENDS_SECONDS = 300.0
_WEIGHTS = {"worker": 6, "fork server": 6, "judge": 5, "web": 4, "database": 2, "disk": 4, "disk and a build": 1}
_LOCKS_SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 33.0)  # a writer waits 30 s for the lock


@attrs.define
class Tally:
    """Outcomes of the trials with one fault."""

    trials: int = 0
    missed: int = 0
    """Trials whose process had gone when it was to be killed."""
    false: int = 0
    unevaluated: int = 0
    lost: int = 0


@contextlib.contextmanager
def small_file_system() -> Iterator[Path]:
    """A folder of a file system that can be filled."""
    folder = Path(tempfile.mkdtemp())
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SIZE_MB}m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def descendants(process: int) -> list[tuple[int, int, str]]:
    """The processes below a process: id, depth and command, nearest first."""
    below: dict[int, list[tuple[int, str]]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            command = (path / "cmdline").read_bytes().decode(errors="replace")
            below.setdefault(parent, []).append((int(path.name), command))
    found, pending = [], [(process, 0)]
    while pending:
        parent, depth = pending.pop(0)
        for child, command in below.get(parent, []):
            found.append((child, depth + 1, command))
            pending.append((child, depth + 1))
    return found


def kill(service: Service, kind: str, choice: random.Random) -> bool:
    """Kill a process of a kind; False if there is none."""
    judges = [each for each, _, command in descendants(service.process.pid) if "judge_process" in command]
    servers = [each for each, _, command in descendants(service.process.pid) if "fork_server" in command]
    forked = [each for server in servers for each, _, _ in descendants(server)]
    chosen = {"judge": judges, "fork server": [each for each in servers if each not in forked], "worker": forked}[kind]
    with contextlib.suppress(ProcessLookupError):
        if chosen:
            os.kill(choice.choice(chosen), signal.SIGKILL)
            return True
    return False


def lock_database(state: Path, seconds: float) -> None:
    with contextlib.closing(sqlite3.connect(state / "serve.sqlite3", isolation_level=None, timeout=30)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        time.sleep(seconds)
        connection.execute("ROLLBACK")


def fill_disk(folder: Path, seconds: float) -> None:
    """Leave no byte free on the file system of a folder for some seconds."""
    path = folder / "filling"
    try:
        with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            size = 1 << 20
            while size:
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    size //= 2
        time.sleep(seconds)
    finally:
        path.unlink(missing_ok=True)


class Trials:
    """A service, and the trials that it goes through."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.choice = folder, random.Random(seed)
        self.data_set = write_data_set(folder / "data")
        self.state = folder / "data.fib-serve"
        self.service = self.start()
        self.tallies = {kind: Tally() for kind in _WEIGHTS}
        self.expected: dict[str, str] = {}
        """The verdict that each submission must have."""
        self.of: dict[str, Tally] = {}
        self.count = 0

    def start(self) -> Service:
        service = Service(self.data_set)
        service.wait_until_ready()
        return service

    def submit(self, source: str, verdict: str, tally: Tally, *, language: str = "python") -> str:
        self.count += 1
        mark = "//" if language == "cpp" else "#"
        plain = plain_solution(f"{source}{mark} {self.count}\n")
        if language == "cpp":
            plain["sources"][0]["path"] = "kernel.cpp"
            plain["spec"] |= {"language": "cpp", "entry_point": "kernel.cpp::run", "destination_passing_style": True}
        while True:  # not acknowledged before: it is no loss that one is refused
            with contextlib.suppress(httpx.TransportError):
                answer = httpx.post(f"{self.service.address}/v1/submissions", json={"solution": plain}, timeout=120)
                if answer.status_code in (200, 201):
                    identifier = str(answer.json()["id"])
                    self.expected[identifier], self.of[identifier] = verdict, tally
                    return identifier
            time.sleep(0.2)

    def state_of(self, identifier: str) -> dict[str, object]:
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.get(f"{self.service.address}/v1/submissions/{identifier}", timeout=120)
            if answer.status_code in (200, 404):
                return dict(answer.json())
        return {"state": "unknown"}

    def run(self, kind: str) -> None:
        """One trial."""
        tally = self.tallies[kind]
        tally.trials += 1
        pause = _SLOW.format(seconds=self.choice.uniform(0, 0.5))
        if kind == "disk and a build":
            submitted = [self.submit(_BUILT, "PASSED", tally, language="cpp")]
        else:
            submitted = [self.submit(pause + GOOD, "PASSED", tally), self.submit(_WRONG, "INCORRECT_NUMERICAL", tally)]
        self.follow(submitted[0], "queued", "unknown")
        time.sleep(self.choice.uniform(0, 12 if kind == "disk and a build" else 2))
        self.fail(kind, tally)
        for identifier in submitted:
            self.follow(identifier, "queued", "running", "unknown")

    def follow(self, identifier: str, *states: str) -> None:
        """Wait while a submission has one of these states."""
        deadline = time.monotonic() + _ENDS_SECONDS
        while self.state_of(identifier)["state"] in states and time.monotonic() < deadline:
            time.sleep(0.05)

    def fail(self, kind: str, tally: Tally) -> None:
        """Let something fail."""
        if kind in ("worker", "fork server", "judge"):
            tally.missed += not kill(self.service, kind, self.choice)
        elif kind == "web":
            self.service.kill()
            self.service = self.start()
        elif kind == "database":
            lock_database(self.state, self.choice.choice(_LOCKS_SECONDS))
        else:
            fill_disk(self.folder, self.choice.uniform(0.1, 3))

    def check(self) -> list[str]:
        """Count verdicts and records; returns what is wrong."""
        problems, in_files = [], Counter[tuple[str, str]]()
        for path in self.data_set.glob("traces/**/*.jsonl"):
            for line in path.read_text().splitlines():
                trace = json.loads(line)
                in_files[trace["evaluation"]["extra"].get("submission"), trace["workload"]["uuid"]] += 1
        for identifier, verdict in self.expected.items():
            tally, found = self.of[identifier], self.state_of(identifier)
            url = f"{self.service.address}/v1/submissions/{identifier}/traces"
            items = httpx.get(url).json().get("items", [])
            shown = Counter((identifier, item["workload"]["uuid"]) for item in items)
            written = {key: count for key, count in in_files.items() if key[0] == identifier}
            is_whole = found.get("state") != "completed" or sorted(written.values()) == [1, 1]
            if found.get("id") != identifier or dict(shown) != written or not is_whole:
                tally.lost += 1
                problems.append(f"lost: {found}, files {written}, answer {dict(shown)}")
            if found.get("state") != "completed":
                tally.unevaluated += 1
                problems.append(f"not evaluated: {found.get('state')}: {found.get('error')}")
            statuses = {item["evaluation"]["status"] for item in items}
            if found.get("verdict") not in (None, verdict) or statuses - {verdict}:
                tally.false += 1
                log = next(item["evaluation"]["log"] for item in items if item["evaluation"]["status"] != verdict)
                problems.append(f"false: {found['verdict']} is {verdict}: {log[-600:]}")
        return problems


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(_WEIGHTS), choices=list(_WEIGHTS))
    arguments = parser.parse_args()
    weights = {kind: _WEIGHTS[kind] for kind in arguments.only}
    with small_file_system() as folder:
        for name in ("cache", "temporary"):
            (folder / name).mkdir()
        os.environ |= {"FIB_CACHE_PATH": str(folder / "cache"), "TMPDIR": str(folder / "temporary")}
        trials = Trials(folder, arguments.seed)
        deadline, begin = time.monotonic() + arguments.seconds, os.getloadavg()[0]
        while time.monotonic() < deadline:
            kind = trials.choice.choices(list(weights), list(weights.values()))[0]
            started = time.monotonic()
            trials.run(kind)
            print(f"{kind}: {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
        problems = trials.check()
        log = trials.service.log.read_text()
        trials.service.kill()
    print(*problems, log if problems else "", sep="\n", file=sys.stderr)
    rows: list[tuple[str, ...]] = [
        ("what failed", "trials", "missed", "false verdicts", "not evaluated", "lost records")
    ]
    for kind, tally in trials.tallies.items():
        rows.append((kind, *map(str, attrs.astuple(tally))))
    print_table(f"Faults; {machine()}, load {begin:.1f} to {os.getloadavg()[0]:.1f}", rows)
    return int(any(tally.false or tally.lost for tally in trials.tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
