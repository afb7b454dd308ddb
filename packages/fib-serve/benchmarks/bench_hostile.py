"""Hostile requests: the longest time that ``/health`` takes beside them, and the growth of the service's memory.

usage: bench_hostile.py [--rounds N]; exits with 1 beyond 0.5 s or 200 MB. A process of its own sends the requests,
so that ``/health`` does not wait for it; the load of the machine at the beginning and at the end is printed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
from service import GOOD, Service, machine, plain_solution, print_table, write_data_set

_MOST_SECONDS, _MOST_MEGABYTES = 0.5, 200
_SIZE = 3_500_000
_CONNECTIONS, _AT_ONCE = 400, 40


def make_token(data_set: Path) -> str:
    words = ["token", "create", str(data_set), "--user", "mallory"]
    command = [sys.executable, "-m", "fib_serve.cli.main", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def memory(process: int) -> float:
    """The resident memory of a process in MB."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096 / 1e6


def bodies() -> dict[str, bytes]:
    """Hostile bodies of submissions, by name."""

    def submission(**changes: object) -> bytes:
        return json.dumps({"solution": plain_solution("") | changes}).encode()

    return {
        "a list of texts as sources": submission(sources=["x"] * (_SIZE // 5)),
        "empty lists": submission(sources=[[]] * (_SIZE // 4)),
        "nested lists": b'{"solution": ' + b"[" * (_SIZE // 2) + b"]" * (_SIZE // 2) + b"}",
        "a long name": submission(name="n" * _SIZE),
        "blank lines": submission(sources=[{"path": "kernel.py", "content": "\n" * (_SIZE // 2)}]),
        "many hardware names": submission(
            spec=plain_solution("")["spec"] | {"target_hardware": ["cpu"] * (_SIZE // 7)}
        ),
        "lists below the limits": submission(sources=["x"] * 190_000),
    }


def request(token: str, method: str, path: str, body: bytes = b"", accept: str = "application/json") -> bytes:
    """The bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", f"Accept: {accept}"]
    lines += [f"Authorization: Bearer {token}"] if token else []
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def send_at_once(port: int, sent: bytes, count: int = _AT_ONCE) -> None:
    """Send a request over many connections at the same time, and read the answers."""

    def send() -> None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
            with suppress(OSError):  # refused before all of it was sent
                connection.sendall(sent)
            while connection.recv(1 << 16):
                pass

    threads = [threading.Thread(target=send) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def send_without_token(port: int) -> None:
    """Send the beginnings of large bodies over many connections, and keep these open."""
    sent = request("", "POST", "/v1/submissions", b"x" * _SIZE)[:-1]
    with ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5)) for _ in range(_CONNECTIONS)
        ]
        for connection in opened:
            with suppress(OSError):  # refused before all of it was sent
                connection.sendall(sent)


def submit_blank_lines(service: Service, token: str) -> str:
    """Submit a C++ source of blank lines, which is slow to highlight; returns the id."""
    source = {"path": "kernel.cpp", "content": "\n" * 59_000 + "#include <x>\n"}
    plain = plain_solution(GOOD) | {"sources": [source]}
    plain["spec"] |= {"language": "cpp", "entry_point": "kernel.cpp::run"}
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.post(f"{service.address}/v1/submissions", json={"solution": plain}, headers=headers)
    return str(answer.raise_for_status().json()["id"])


def attacks(service: Service, token: str) -> dict[str, Callable[[], None]]:
    """All attacks, by name."""

    def post(path: str, body: bytes) -> Callable[[], None]:
        return lambda: send_at_once(service.port, request(token, "POST", path, body))

    found = {name: post("/v1/submissions", body) for name, body in bodies().items()}
    identifier = submit_blank_lines(service, token)
    view = request(token, "GET", f"/submissions/{identifier}", accept="text/html")
    batch = json.dumps({"task_ids": [identifier] * 1000, "timeout": 2}).encode()
    wait = request(token, "GET", f"/v1/submissions/{identifier}?timeout=3")
    found["views of a source of blank lines"] = lambda: send_at_once(service.port, view)
    found["batches of 1,000 tasks that wait"] = post("/tasks/batch", batch)
    found[f"{_CONNECTIONS} requests that wait"] = lambda: send_at_once(service.port, wait, _CONNECTIONS)
    found["no token"] = lambda: send_without_token(service.port)
    return found


def measure(service: Service, attack: Callable[[], None]) -> tuple[float, float]:
    """The longest time of ``/health`` during an attack, and the growth of memory."""
    before, slowest, most = memory(service.process.pid), 0.0, 0.0
    attacker = multiprocessing.get_context("fork").Process(target=attack)
    attacker.start()
    with httpx.Client(base_url=service.address, timeout=120) as client:
        while attacker.is_alive():
            begin = time.monotonic()
            client.get("/health")
            slowest = max(slowest, time.monotonic() - begin)
            most = max(most, memory(service.process.pid) - before)
            time.sleep(0.02)
    return slowest, most


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1)
    rounds = parser.parse_args().rounds
    found: dict[str, list[tuple[float, float]]] = {}
    begin = load()
    with tempfile.TemporaryDirectory() as folder:
        data_set = write_data_set(Path(folder) / "data")
        token = make_token(data_set)
        with Service(data_set, has_auth=True) as service:
            alone = [measure(service, lambda: time.sleep(3))]
            for name, attack in attacks(service, token).items():
                found[name] = [measure(service, attack) for _ in range(rounds)]
    found = {"none": alone, **found}
    rows: list[tuple[str, ...]] = [("requests", "longest `/health`, s", "memory, MB")]
    for name, each in found.items():
        rows.append((name, " ".join(f"{seconds:.2f}" for seconds, _ in each), f"{max(size for _, size in each):+.0f}"))
    print_table(f"Hostile requests, {_AT_ONCE} at once; {machine()}, load {begin} to {load()}", rows)
    is_good = all(
        seconds <= _MOST_SECONDS and size <= _MOST_MEGABYTES for each in found.values() for seconds, size in each
    )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
