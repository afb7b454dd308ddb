"""Disturb a small server for minutes, and compare it with one without FIB: ``python serving_chaos.py --seconds 600``.

In each round two servers answer the same requests at the same time, one of them routed to solutions that crash, hang,
raise or take long to load. Both get the same disturbance: SIGTERM, SIGKILL, or none until they finish; the routed one
also a cache on a full disk, a cache that cannot be written, or a data set that changes meanwhile. Wall clocks jump in
both. All rounds share one build cache, so that what a killed server left there is met again.

It fails if an answer is wrong, if no call is served by a solution, if an exit code differs from that of the other
server, if a request takes more than 50 ms longer than the longest of the other server in the whole run, or if a process
outlives its server.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
from support.chaos.data_set import NEVER_COMPILES, SOURCES, write_data_set

SERVER = Path(__file__).parent / "support" / "chaos" / "server.py"
RATE = 500.0
DISTURBANCES = ("none", "full disk", "unwritable cache", "changing set")
ENDS = ("finished", "SIGTERM", "SIGTERM", "SIGKILL")
_FULL_DISK_BYTES = 4_096
_MARK = "FIB_CHAOS_ROUND"


@attrs.define
class Server:
    """A running server and what became of it."""

    process: subprocess.Popen[str]
    log: Path
    code: int | None = None
    answers: Mapping[str, Any] | None = None
    """Printed output; None after SIGKILL."""

    def wait(self):
        out, _ = self.process.communicate(timeout=300)
        self.code = self.process.returncode
        lines = [line for line in out.splitlines() if line.startswith('{"requests"')]
        self.answers = json.loads(lines[-1]) if lines else None


@attrs.define
class Totals:
    requests: int = 0
    hits: int = 0
    wrong: int = 0
    longest_ms: dict[str, float] = attrs.field(factory=lambda: {"plain": 0.0, "routed": 0.0})
    rounds: Counter[str] = attrs.field(factory=Counter)
    problems: list[str] = attrs.field(factory=list)


def start(words, environment, log, *, has_full_disk):
    """Start a server in a session of its own."""

    def limit():
        if has_full_disk:  # files end in the middle of a write, with an error, as on a full disk
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL_DISK_BYTES, _FULL_DISK_BYTES))

    pipe = subprocess.PIPE
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(SERVER), *words],
            env=dict(environment),
            stdin=pipe,
            stdout=pipe,
            stderr=errors if not has_full_disk else subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            preexec_fn=limit,  # noqa: PLW1509 this process has one thread
        )
    return Server(process, log)


def play(number, folder, chance, totals):
    mode, disturbance, end = chance.choice(("environment", "call")), chance.choice(DISTURBANCES), chance.choice(ENDS)
    seconds = chance.uniform(2, 16)
    if not number:  # undisturbed, with an empty cache
        mode, disturbance, end, seconds = "call", "none", "finished", 25.0
    name = f"round {number}: {mode}, {disturbance}, {end}"
    root = folder / f"set{number}"
    write_data_set(root, {name: text for name, text in SOURCES.items() if mode == "call" or name != "raises"})
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "FIB_CACHE_PATH": str(folder / "cache"),
        "FIB_DATASET_PATH": str(root),
        "CXX": str(folder / "c++"),
        _MARK: f"{os.getpid()}-{number}",
    }
    if disturbance == "unwritable cache":
        (folder / "file").touch()
        environment["FIB_CACHE_PATH"] = str(folder / "file" / "cache")
    words = [str(RATE), str(seconds), str(number)]
    is_full = disturbance == "full disk"
    servers = {
        "plain": start(words, environment, folder / "plain.log", has_full_disk=is_full),
        "routed": start(
            [*words, mode, str(root)],
            {**environment, "FIB_ENABLE_APPLY": "1"} if mode == "environment" else environment,
            folder / f"routed{number}.log",
            has_full_disk=is_full,
        ),
    }
    for server in servers.values():
        server.process.stdout.readline()
    for server in servers.values():
        with suppress(BrokenPipeError):  # it has ended, which its exit code tells
            server.process.stdin.write("begin\n")
            server.process.stdin.flush()
    if disturbance == "changing set":
        time.sleep(chance.uniform(0.1, 1))
        shutil.rmtree(root / "solutions" / "tester" / "elementwise" / "workspace")
    if end != "finished":
        time.sleep(chance.uniform(0, seconds - 1))
        for server in servers.values():
            server.process.send_signal(getattr(signal, end))
    for server in servers.values():
        server.wait()
    judge(name, servers, totals)
    left = left_over(environment[_MARK])
    if left:
        totals.problems.append(f"{name}: left running: {left}")
    totals.rounds[f"{disturbance}, {end}"] += 1
    shutil.rmtree(root)


def judge(name, servers, totals):
    codes = {kind: server.code for kind, server in servers.items()}
    if codes["plain"] != codes["routed"]:
        tail = servers["routed"].log.read_text(errors="replace")[-2_000:]
        totals.problems.append(f"{name}: exit codes {codes}\n{tail}")
    for kind, server in servers.items():
        if server.answers is None:
            continue
        totals.longest_ms[kind] = max(totals.longest_ms[kind], server.answers["longest_ms"])
        if kind == "routed":
            totals.requests += server.answers["requests"]
            totals.hits += server.answers["hits"]
            totals.wrong += server.answers["wrong"]
            if server.answers["wrong"]:
                totals.problems.append(f"{name}: {server.answers['wrong']} wrong answers")
    print(f"{name}: {codes['routed']}, {servers['routed'].answers}", flush=True)


def left_over(mark):
    """Processes of a round that are still there after a minute."""
    end = time.monotonic() + 60
    while True:
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                if int(entry.name) != os.getpid() and f"{_MARK}={mark}".encode() in (entry / "environ").read_bytes():
                    found.append(f"{entry.name} {(entry / 'cmdline').read_bytes()[:200]!r}")
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds", type=float, default=600.0, metavar="S", help="how long rounds begin (default: 600)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all choices (default: 0)")
    parser.add_argument("--stall-ms", type=float, default=50.0, metavar="MS", help="the limit of stalls (default: 50)")
    options = parser.parse_args()
    chance, totals = random.Random(options.seed), Totals()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        compiler = folder / "c++"
        compiler.write_text(
            '#!/bin/sh\nfor word in "$@"; do\n'
            f'  case "$word" in *.cpp) grep -q "{NEVER_COMPILES}" "$word" && exec sleep 1000;; esac\n'
            'done\nexec /usr/bin/env c++ "$@"\n'
        )
        compiler.chmod(0o755)
        begin, number = time.monotonic(), 0
        while time.monotonic() < begin + options.seconds:
            play(number, folder, chance, totals)
            number += 1
    extra = totals.longest_ms["routed"] - totals.longest_ms["plain"]
    if extra > options.stall_ms:
        totals.problems.append(f"the longest request took {extra:.1f} ms more than that of the plain server")
    if not totals.hits:
        totals.problems.append("no call was served by a solution")
    requests, counted = f"{totals.requests:,} requests", f"{totals.hits:,} of them counted as served by solutions"
    print(f"\n{number} rounds, {requests}, {counted}, {totals.wrong} wrong answers")
    print(f"longest request: plain {totals.longest_ms['plain']:.1f} ms, routed {totals.longest_ms['routed']:.1f} ms")
    for name, count in sorted(totals.rounds.items()):
        print(f"  {count:3} {name}")
    for problem in totals.problems:
        print(f"PROBLEM {problem}")
    return int(bool(totals.problems))


if __name__ == "__main__":
    sys.exit(main())
