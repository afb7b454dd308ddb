"""Runs a compiler: bounded in time, its output in a file, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .builder import Limits


class CommandTimeout(Exception):
    """A command ran longer than it may; it was killed with all its children."""


def run_logged(command: Sequence[str], folder: Path, log: Path, limits: Limits) -> int:
    """Run a command in a folder, append its output to a log, and return its exit code.

    Raises:
        CommandTimeout: It ran into the limit.
        OSError: It cannot be started.
    """
    if limits.memory_bytes is not None:
        command = ("/bin/sh", "-c", 'ulimit -v "$0" && exec "$@"', str(limits.memory_bytes // 1024), *command)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C"},  # messages in one language, so that errors are found in them
            start_new_session=True,
        )
        try:
            return process.wait(limits.seconds)
        except subprocess.TimeoutExpired as error:
            raise CommandTimeout from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
