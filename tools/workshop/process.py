"""Run commands: quietly into a log with a line of progress, or in the foreground."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from workshop.errors import Missing, StepFailed

INTERRUPTED = 130
TAIL_LINES = 25

_NO_NETWORK = re.compile(
    r"NewConnectionError|Failed to establish a new connection|Temporary failure in name resolution"
    r"|Name or service not known|Network is unreachable|Connection refused|ConnectTimeoutError|ReadTimeoutError"
    r"|ProxyError|Max retries exceeded"
)
_NOT_OFFERED = re.compile(r"No matching distribution found for (?P<requirement>.+)")


class Console:
    """Progress for people: one line per step, with the time it took."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock

    def say(self, text: str) -> None:
        """Print a line at once."""
        print(text, flush=True)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Announce a step, and say how long it took once it is over."""
        start = self._clock()
        print(f"  {name} ... ", end="", flush=True)
        try:
            yield
        except BaseException as error:
            word = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            print(f"{word} after {self._clock() - start:.1f} s", flush=True)
            raise
        print(f"{self._clock() - start:.1f} s", flush=True)

    def shared(self) -> "Console":
        """The same for steps that go on side by side: whole lines."""
        return _SharedConsole(self._clock)


class _SharedConsole(Console):
    """Says in a line of its own when a step begins, and when it is over."""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        start = self._clock()
        self.say(f"  {name} ...")
        try:
            yield
        except BaseException:
            self.say(f"  {name}: failed after {self._clock() - start:.1f} s")
            raise
        self.say(f"  {name}: {self._clock() - start:.1f} s")


def run_logged(step: str, command: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str]) -> None:
    """Run a command with its output in `log`.

    Raises:
        Missing: It was pip, and pip could not reach an index.
        StepFailed: It ended with another code than 0.
    """
    code = record(command, log=log, cwd=cwd, env=env)
    if code:
        output = log.read_text(errors="replace")
        raise explain_pip_failure(output, log) or StepFailed(step, code, log, tail(output))


def record(command: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str]) -> int:
    """Run a command with all its output in `log`, and return its exit code."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        child = subprocess.Popen(
            command, cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
        return _wait(child)


def run_foreground(command: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> int:
    """Run a command on this terminal, and return its exit code."""
    sys.stdout.flush()
    child = subprocess.Popen(command, cwd=cwd, env=dict(env))
    try:
        return _wait(child)
    except KeyboardInterrupt:
        return INTERRUPTED


def _wait(child: "subprocess.Popen[bytes]") -> int:
    """Wait for a child; on Ctrl-C, which reached it too, give it a moment to end and then end it."""
    try:
        return child.wait()
    except KeyboardInterrupt:
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise


def explain_pip_failure(output: str, log: Path) -> Missing | None:
    """What pip's output says about the network, or None where it failed for another reason."""
    refused = _NOT_OFFERED.search(output)
    if _NO_NETWORK.search(output):
        what = "the network is missing: pip could not reach its package index."
    elif refused and "(from versions: none)" in output:
        what = f"a package is missing: pip's index offers no version of {refused['requirement'].strip()}."
    else:
        return None
    return Missing(
        what,
        "the first run, and a run after a manifest has changed, installs packages.",
        f"check `pip config list`, the PIP_ variables and the connection, then run again; pip's output: {log}",
    )


def tail(output: str, lines: int = TAIL_LINES) -> str:
    """The last lines of an output that say something."""
    return "\n".join([line for line in output.splitlines() if line.strip()][-lines:])
