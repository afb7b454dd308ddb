"""One case: a kind of damage and a command, run in a fork of a process that has imported everything."""

import atexit
import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from fib_bench.report.page import VEGA_LITE

from .commands import Case
from .healthy import write_healthy

_CAPABILITIES = (1, 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: by these, root reads files without permissions."""
_DATA_BYTES = 3 << 30
_FILE_BYTES = 1 << 30
"""A command that copies a sparse file of 10 GB fails instead of filling the disk."""
MAIN = {}
"""The commands' main functions."""


def preload(*, has_torch):
    """Import the commands and what they use, so that forks start at once.

    Args:
        has_torch: Whether to import what runs kernels too; a fork of a process with torch takes 25 ms, else 4 ms.
    """
    import fib_apply
    import fib_bench.cli.main
    import rich.table
    import vl_convert

    assert fib_apply
    assert fib_bench
    assert rich
    for name in ("fib-bench", "fib-apply", "fib-compile", "fib-tracer", "fib-integrations", "fib-compat"):
        (found,) = entry_points(group="console_scripts", name=name)
        MAIN[name] = found.load()
    if has_torch:
        import fib_bench.benchmark
        import fib_tracer
        import torch._dynamo

        assert fib_tracer
        torch.set_num_threads(1)
    else:
        script = _result_in_fork(vl_convert.javascript_bundle)  # the threads that it starts end with the fork
        vl_convert.javascript_bundle = lambda *_, **__: script


def _result_in_fork(function):
    with tempfile.NamedTemporaryFile() as file:
        if (pid := os.fork()) == 0:
            Path(file.name).write_text(function(vl_version=VEGA_LITE))
            os._exit(0)
        os.waitpid(pid, 0)
        return Path(file.name).read_text()


@dataclass(frozen=True)
class Outcome:
    """Observed behaviour of a command.

    Attributes:
        code: Its exit code; negative: the signal that ended it; None: it ran into its limit of time.
        output: Both streams.
        is_shown: It processed the rest of the set.
        seconds: How long it ran.
        page: The text file that it wrote to `Case.out`, if it is one.
    """

    code: int | None
    output: str
    is_shown: bool
    seconds: float
    page: str = ""


class Running:
    """A case that runs in a process group of its own, below a folder of its own.

    Args:
        folder: An empty folder.
        cache: FIB_CACHE_PATH of the command.
    """

    def __init__(self, kind, command, folder, cache):
        self.kind, self.command, self.folder = kind, command, folder
        self._started = time.monotonic()
        self._process = os.fork()
        if self._process == 0:
            _run_in_fork(kind, command, folder, cache)

    def outcome(self):
        """Output, once the command has ended or its time is over."""
        ended, status = os.waitpid(self._process, os.WNOHANG)
        seconds = time.monotonic() - self._started
        if not ended and seconds < self.command.seconds:
            return None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process, signal.SIGKILL)  # also what the command has left behind
        code = os.waitstatus_to_exitcode(status) if ended else None
        if not ended:
            os.waitpid(self._process, 0)
        output = (self.folder / "output").read_bytes().decode("utf-8", "surrogateescape")
        return Outcome(code, output, self._is_shown(output), seconds, self._page())

    def _page(self):
        file = self._written()
        is_text = file is not None and (self.command.writes == "." or file.suffix == ".txt")
        return file.read_text("utf-8", "surrogateescape") if file is not None and is_text and file.is_file() else ""

    def _is_shown(self, output):
        return self.command.shows in output and (not self.command.writes or self._written() is not None)

    def _written(self):
        """Files that the command was to write, if it did."""
        out = self.folder / "out"
        if self.command.writes in ("", "."):
            return out if self.command.writes and out.exists() else None
        return next(out.glob(self.command.writes), None)

    def remove(self):
        """Remove the folder; `shutil` cannot remove deeply nested ones."""
        subprocess.run(["rm", "-rf", str(self.folder)], check=True)


def _run_in_fork(kind, command, folder, cache):
    code = 1
    try:
        os.setsid()
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
            os.dup2(descriptor, number)
        case = _prepare(kind, folder)
        _limit(kind, folder, cache)
        code = _call(command, case)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - the border of a process
        traceback.print_exc()
    finally:
        _end(code)


def _prepare(kind, folder):
    write_healthy(folder / "set")
    write_healthy(folder / "other")
    path = str(folder / kind.path) if kind.path else ""
    kind.damage(folder / "set")
    (folder / "home").mkdir(mode=0o777)
    return Case(path, folder / "out", folder / "other")


def _limit(kind, folder, cache):
    if kind.is_unprivileged:
        obey_permissions()
    resource.setrlimit(resource.RLIMIT_DATA, (_DATA_BYTES, _DATA_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(folder / "home")
    temporary = folder / "home" / "tmp"
    temporary.mkdir()
    os.environ |= {"FIB_CACHE_PATH": str(cache), "HOME": str(folder / "home"), "TMPDIR": str(temporary)}
    os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def obey_permissions():
    """Have root obey the permissions of files, as other users do; other users have nothing to drop."""
    if os.getuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice
    if libc.capget(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    for capability in _CAPABILITIES:
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: nor do programs that are started have them
        for word in range(3):
            sets[word] &= ~(1 << capability)
    if libc.capset(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _call(command, case):
    if command.function is not None:
        return command.function(case)
    words = command.arguments(case)
    sys.argv = words
    return int(MAIN[words[0]]() or 0)


def _end(code):
    """End as the interpreter does, but without freeing all modules."""
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - the border of a process
        traceback.print_exc()
    finally:
        os._exit(code)
