"""Hostile requests: the longest time that ``/health`` takes beside them, and the growth of the service's memory.

usage: bench_hostile.py; exits with 1 beyond 0.5 s or 200 MB.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
from service import Service, machine, plain_solution, print_table, write_data_set

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


def post_at_once(service: Service, token: str, body: bytes) -> None:
    """Send a body over many connections at the same time."""

    def post() -> None:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        with suppress(httpx.TransportError):  # refused before all of it was sent
            httpx.post(f"{service.address}/v1/submissions", content=body, headers=headers, timeout=120)

    threads = [threading.Thread(target=post) for _ in range(_AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def send_without_token(service: Service) -> None:
    """Send the beginnings of large bodies over many connections, and keep these open."""
    head = f"POST /v1/submissions HTTP/1.1\r\nHost: x\r\nContent-Length: {_SIZE}\r\n\r\n".encode()
    open_ones = [socket.create_connection(("127.0.0.1", service.port), timeout=5) for _ in range(_CONNECTIONS)]
    for connection in open_ones:
        with suppress(OSError):  # refused before all of it was sent
            connection.sendall(head + b"x" * (_SIZE - 1))
    for connection in open_ones:
        connection.close()


def measure(service: Service, attack: Callable[[], None]) -> tuple[float, float]:
    """The longest time of ``/health`` during an attack, and the growth of memory."""
    before, slowest, most = memory(service.process.pid), 0.0, 0.0
    thread = threading.Thread(target=attack)
    thread.start()
    with httpx.Client(base_url=service.address, timeout=120) as client:
        while thread.is_alive():
            begin = time.monotonic()
            client.get("/health")
            slowest = max(slowest, time.monotonic() - begin)
            most = max(most, memory(service.process.pid) - before)
            time.sleep(0.02)
    return slowest, most


def main() -> int:
    rows: list[tuple[str, ...]] = [("requests", "longest `/health`, s", "memory, MB")]
    is_good = True
    with tempfile.TemporaryDirectory() as folder:
        data_set = write_data_set(Path(folder) / "data")
        token = make_token(data_set)
        with Service(data_set, has_auth=True) as service:
            attacks = {name: lambda body=body: post_at_once(service, token, body) for name, body in bodies().items()}
            attacks["no token"] = lambda: send_without_token(service)
            for name, attack in attacks.items():
                seconds, megabytes = measure(service, attack)
                is_good = is_good and seconds <= _MOST_SECONDS and megabytes <= _MOST_MEGABYTES
                rows.append((name, f"{seconds:.2f}", f"{megabytes:+.0f}"))
    print_table(f"Hostile requests, {_AT_ONCE} at once; {machine()}", rows)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
