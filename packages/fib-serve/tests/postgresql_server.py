"""A real PostgreSQL server in a temporary folder, on a port of its own."""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_START_SECONDS = 60.0
_INSTALLED = Path("/usr/lib/postgresql")
_ACCOUNTS = ("postgres", "nobody")


def find_program(name: str) -> str | None:
    """A program of PostgreSQL: on the path, or where Debian has it."""
    versions = sorted(_INSTALLED.glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(versions[-1]) if versions else None)


def missing() -> str:
    """The reason why no server can be started here; empty if one can."""
    programs = [name for name in ("initdb", "postgres") if find_program(name) is None]
    if programs:
        return f"needs {' and '.join(programs)} of PostgreSQL"
    if os.getuid() == 0 and not _accounts():
        return f"needs an account without privileges: {' or '.join(_ACCOUNTS)}"
    return "" if importlib.util.find_spec("psycopg") else "needs the extra `postgresql`"


def _accounts() -> list[pwd.struct_passwd]:
    return [found for found in pwd.getpwall() if found.pw_name in _ACCOUNTS and found.pw_uid]


class PostgreSql:
    """Starts a server, which refuses to run as root, and removes it at the end."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fib-serve-postgresql-"))
        self._account: dict[str, Any] = {}
        if os.getuid() == 0:
            account = _accounts()[0]
            self._account = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            os.chown(self._folder, account.pw_uid, account.pw_gid)
        self.password = secrets.token_hex(8)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        password = self._folder / "password"
        password.write_text(self.password)
        password.chmod(0o644)
        options = ["--auth=scram-sha-256", f"--pwfile={password}", "--username=fib", "--encoding=UTF8", "--locale=C"]
        self._run("initdb", "--no-sync", *options, "--pgdata", str(self._folder / "data"))
        self.process: subprocess.Popen[bytes]
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()
        shutil.rmtree(self._folder)

    @property
    def url(self) -> str:
        """The URL of the first database."""
        return f"postgresql://fib:{self.password}@127.0.0.1:{self.port}/postgres"

    @property
    def version(self) -> str:
        """The version of the server."""
        import psycopg

        with psycopg.connect(self.url) as connection:
            return f"{connection.info.server_version // 10000}"

    def make_database(self, name: str) -> str:
        """The URL of a new, empty database."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return self.url.rpartition("/")[0] + f"/{name}"

    def start(self) -> None:
        """Start it, and wait until it answers.

        Raises:
            RuntimeError: It does not.
        """
        options = ["-c", f"port={self.port}", "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        with (self._folder.parent / f"{self._folder.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(find_program("postgres")), "-D", str(self._folder / "data"), *options],
                stdout=log,
                stderr=log,
                cwd="/",
                env={"PATH": os.defpath},  # nothing that marks processes of the test that starts it
                **self._account,
            )
        Path(log.name).unlink()
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL does not start: status {self.process.poll()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it; the processes of its connections end when they notice."""
        self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [str(find_program(program)), *words], capture_output=True, text=True, check=False, cwd="/", **self._account
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}")
