"""Compilation of sources into one shared library, and extraction of error lines from the output.

Each command has a limit of time, writes its output to a file, and is killed with all its children.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs

from .builder import Limits, watch_exit
from .cache import CANCELLED, Failure
from .toolchain import compiler_environment

_ERROR = re.compile(r"\berror\b|undefined reference|multiple definition|cannot find|No such file", re.IGNORECASE)
_NO_SPACE = os.strerror(errno.ENOSPC)
_SCARCE_BYTES = 2**20  # with less free space, the message about it may be missing from the log
_TRANSIENT = re.compile(
    r"[Cc]annot allocate|out of memory|memory exhausted|Killed|internal compiler error|cannot execute|not found"
    r"|No such file|cannot open|Permission denied|temporarily unavailable|Too many open files|quota|Input/output error"
)
"""Errors whose cause is the machine: its memory, its files, its compiler."""
_ESCAPED = re.compile(r"\\([ #:])|\$\$")
_TRACED = re.compile(r"^\(?(/[^()\n]+)", re.MULTILINE)
_SOURCES_AT_FAULT = (1, 2)  # exit codes for errors in sources; a killed compiler has others
_MAX_ERROR_LINES = 12
_POLL_SECONDS = 0.2
"""Between two checks whether a command was cancelled."""


@attrs.frozen
class CompileError(Exception):
    """A command that failed."""

    failure: Failure
    is_final: bool
    """Whether the sources are the cause, and not memory, disk or limits of this machine."""


class CommandKilled(Exception):
    """A command reached its time limit or was cancelled, and was killed with all its children."""


@attrs.frozen
class CompileJob:
    """The command lines of one library."""

    sources: tuple[str, ...]
    """Relative to `folder`."""
    folder: Path
    linker: tuple[str, ...]
    cxx: tuple[str, ...]
    """The compiler with its flags."""
    nvcc: tuple[str, ...]
    link: tuple[str, ...]
    """The arguments behind the objects on the linker's command line."""
    limits: Limits


def compile_library(job: CompileJob, library: Path, log: Path) -> set[str]:
    """Compile every source and link the objects.

    Returns:
        The absolute paths of all files that compilers and linker read.

    Raises:
        CompileError: A command failed or was killed.
        OSError: The folder cannot be written, or the disk is full.
    """
    watch_exit()
    stopped = threading.Event()
    job = attrs.evolve(job, limits=job.limits.until(stopped))
    with ThreadPoolExecutor(max_workers=min(len(job.sources), os.cpu_count() or 1)) as pool:
        try:
            objects = list(pool.map(lambda index: _compile_one(job, index, log), range(len(job.sources))))
        except BaseException:  # the pool would wait for the compilers of the other sources
            stopped.set()
            raise
    try:
        output = _run(job, [*job.linker, "-shared", "-Wl,--trace", *objects, *job.link, "-o", str(library)], log)
    except CompileError as error:  # a library may be missing or incomplete
        raise attrs.evolve(error, is_final=False) from error
    read = {path for path in _TRACED.findall(output) if Path(path).is_file()}
    for name in objects:
        read |= _headers_in((job.folder / f"{name}.d").read_text("utf-8", "surrogateescape"))
    return read


def error_lines(output: str) -> tuple[str, ...]:
    """The first error in a compiler's output and the lines after it, else the last lines."""
    lines = output.splitlines()
    first = next((index for index, line in enumerate(lines) if _ERROR.search(line) and not line.startswith("$ ")), None)
    if first is None:
        return tuple(lines[-_MAX_ERROR_LINES:])
    return tuple(lines[first : first + _MAX_ERROR_LINES])


def is_final_failure(code: int, output: str) -> bool:
    """Whether the sources are the cause of a failed command, and not the machine."""
    return code in _SOURCES_AT_FAULT and not _TRANSIENT.search(output)


def check_space(output: str, folder: Path) -> None:
    """Raise an error if a command failed because the disk is full.

    Raises:
        OSError: The output says so, or little space is left, so that it may be incomplete.
    """
    if _NO_SPACE in output or shutil.disk_usage(folder).free < _SCARCE_BYTES:
        raise OSError(errno.ENOSPC, _NO_SPACE)


def _compile_one(job: CompileJob, index: int, log: Path) -> str:
    source = job.sources[index]
    target = f".object{index}.o"
    compiler = job.nvcc if source.endswith(".cu") else job.cxx
    _run(job, [*compiler, "-MD", "-MF", f"{target}.d", "-c", source, "-o", target], log)
    return target


def _headers_in(rules: str) -> set[str]:
    """The absolute paths in the rules for ``make`` that a compiler wrote."""
    text = rules.replace("\\\n", " ").partition(": ")[2]
    words = re.split(r"(?<!\\)\s+", text)
    return {path for word in words if (path := _ESCAPED.sub(lambda found: found[1] or "$", word)).startswith("/")}


def _run(job: CompileJob, command: Sequence[str], log: Path) -> str:
    """Run a command and return its output; `CompileError` if it failed or was killed."""
    part = log.with_name(f"{log.name}.{command[-1].rpartition('/')[2]}")  # commands run concurrently
    part.write_text(f"$ {shlex.join(command)}\n", "utf-8")
    code, killed = None, ""
    try:
        code = run_logged(command, job.folder, part, job.limits)
    except CommandKilled as error:
        killed = str(error)
    output = part.read_text("utf-8", "replace")
    part.unlink()
    with log.open("a", encoding="utf-8") as file:
        file.write(output)
    if code == 0:
        return output
    check_space(output, job.folder)
    lines = (killed,) if killed else error_lines(output)
    is_final = code is not None and is_final_failure(code, output)
    raise CompileError(Failure(lines, shlex.join(command), code, str(log)), is_final)


def run_logged(command: Sequence[str], folder: Path, log: Path, limits: Limits) -> int:
    """Run a command in a folder, append its output to a log, and return its exit code.

    Raises:
        CommandKilled: It reached its time limit, or was cancelled.
        OSError: It cannot be started.
    """
    if limits.is_stopped():
        raise CommandKilled(CANCELLED)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=compiler_environment(),
            start_new_session=True,
        )
        try:
            return _await(process, limits)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _await(process: subprocess.Popen[bytes], limits: Limits) -> int:
    deadline = time.monotonic() + limits.seconds
    while True:
        try:
            return process.wait(min(_POLL_SECONDS, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            if time.monotonic() >= deadline:
                raise CommandKilled(f"killed after {limits.seconds:.0f} s") from error
            if limits.is_stopped():
                raise CommandKilled(CANCELLED) from error
