"""Fork server: a process that imports torch once and then forks each worker in milliseconds.

It runs no solution code, holds no CUDA context and starts no thread, so that its forks are sound. It is the subreaper
of all that its workers start, kills what a worker leaves behind, and holds the lock of its uid. It ends with the judge.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path

import attrs
from fib_compile.device import architectures_of_machine, identify_compilers
from fib_compile.registry import BUILDERS_GROUP
from fib_schema import FibError
from fib_schema.entry_points import find_entry_points

from ..sandbox.model import SandboxPolicy
from ..sandbox.policy import limit_from_environment, prepare
from ..sandbox.processes import most_tasks, tasks_on_machine
from ..sandbox.syscalls import PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, PR_SET_PDEATHSIG, prctl, protect_memory
from ..temporary_folders import remove_folder
from ..timing.handshake.native import preload
from ..transport.messages import Exited, Kill, Ping, Pong, ServerRequest, Spawn, Spawned
from ..transport.protocol import MAX_DESCRIPTORS, MAX_REQUEST_BYTES, ChannelClosed, Receiver, send
from . import outside_checks

_TASK_COUNT_SECONDS = 0.2
_HIGHEST_PRIORITY = -20
_LOOKS_PER_COUNT = 10  # some systems, as gVisor, do not report the tasks on the machine
_TRITON_MODULES = ("triton.runtime.cache", "triton.compiler.compiler")  # of its digest, in newer and older versions


def main() -> None:
    """Serve the judge. Arguments: a socket's descriptor, the device, and folders to hide from workers."""
    descriptor, device, *hidden = sys.argv[1:]
    channel = socket.socket(fileno=int(descriptor))
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    protect_memory()
    try:
        _import_ahead(device)
    except (FibError, OSError) as error:  # a full disk, a compiler that is missing
        sys.exit(f"fib-bench: {error}")
    policy = SandboxPolicy(device, tuple(map(Path, hidden)), limit_from_environment())
    prepare(policy)
    # Only workers of solutions need these, which take up to seconds (nvcc). On the CPU they would disturb timing.
    later = (partial(identify_compilers, device), lambda: identify_triton(architectures_of_machine()))
    server = Server(channel, policy, later if device.startswith("cuda") else ())
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _HIGHEST_PRIORITY)  # it ends a worker that starts ever more processes
    try:
        server.serve()
    except ChannelClosed:
        pass  # the judge has ended
    finally:
        _end_all(outside_checks.children)
        for folder in server.folders.values():  # of workers that run: the judge may have been killed
            remove_folder(Path(folder))
        gc.unfreeze()  # otherwise extension modules report leaks at exit


def _import_ahead(device: str) -> None:
    """Import the modules of workers, do their first steps, and query what a sandboxed worker cannot read."""
    import torch

    from . import session  # noqa: F401

    for optional in ("triton", "tvm_ffi", "cuda.bindings.driver"):  # the builder or the device reports a missing one
        with suppress(ImportError):
            import_module(optional)
    find_entry_points(BUILDERS_GROUP)  # forks need not look for them
    torch.seed()  # torch reads sources of its own for the stack that it keeps; it initialises no device
    is_cuda = device.startswith("cuda")
    if not is_cuda:
        identify_compilers(device)
    preload(architectures_of_machine() if is_cuda else ())  # cached: nvidia-smi needs more than a worker may do
    gc.collect()
    gc.freeze()  # collections in workers skip these objects


def identify_triton(architectures: Iterable[str]) -> None:
    """Compute what identifies Triton and its compiler: each process that compiles would take 0.4 s and start ptxas.

    Triton keeps both, and so do forks. The build reports a Triton that does not work. Architectures: such as ``9.0a``.
    """
    failures = (ImportError, AttributeError, OSError, RuntimeError, subprocess.SubprocessError)
    for module in _TRITON_MODULES:
        with suppress(*failures):
            import_module(module).triton_key()
    for architecture in architectures:
        with suppress(*failures):
            number = int("".join(filter(str.isdigit, architecture)))
            import_module("triton.backends.nvidia.compiler").get_ptxas_version(number)


class Server:
    """Forks workers, reports their exits, and kills processes they leave behind.

    Functions of `later` are called while the first worker runs, one after another and requests in between.
    """

    def __init__(self, channel: socket.socket, policy: SandboxPolicy, later: Iterable[Callable[[], None]]) -> None:
        self._channel, self._policy, self._later = channel, policy, deque(later)
        self._receiver = Receiver(channel, ServerRequest, MAX_REQUEST_BYTES, MAX_DESCRIPTORS)
        self.folders: dict[int, str] = {}
        """The folders of the workers that run, by process."""
        self._uid_locks: dict[int, socket.socket] = {}  # never read: their messages hold the locks
        self._reasons: dict[int, str] = {}
        self._looks = 0
        self._niceness = os.getpriority(os.PRIO_PROCESS, 0)
        self._wakeup, self._wakeup_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wakeup_end)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Serve the judge until it closes the channel; first tell it that everything is imported."""
        send(self._channel, Pong())
        sources = (self._channel, self._wakeup)
        while True:
            ready = wait(sources, (0.0 if self._later else _TASK_COUNT_SECONDS) if self.folders else None)
            if not ready and self.folders and self._later:
                self._later.popleft()()
            if self._channel in ready:
                self._receiver.fill()
            if self._wakeup in ready:
                os.read(self._wakeup, 4096)
            self._answer()
            self._reap()
            self._end_bombs()

    def _answer(self) -> None:
        while self._receiver.messages:
            match self._receiver.messages.popleft():
                case Spawn(folder=folder):
                    self._spawn(folder)
                case Kill(pid=pid) if pid in self.folders:
                    os.kill(pid, signal.SIGKILL)
                case Ping():
                    send(self._channel, Pong())
                case _:
                    pass  # a Kill that crossed with the worker's end

    def _spawn(self, folder: str) -> None:
        channel, output = self._receiver.take_descriptors(2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork beside idle library threads
            uid_lock, uid_channel = socket.socketpair()
            pid = os.fork()
        if pid == 0:
            uid_lock.close()
            self._become_worker(channel, output, folder, uid_channel.detach())
        uid_channel.close()
        self._uid_locks[pid] = uid_lock
        os.close(channel)
        os.close(output)
        self.folders[pid] = folder
        send(self._channel, Spawned(pid))

    def _become_worker(self, channel: int, output: int, folder: str, uid_channel: int) -> None:
        status = 70
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.setpriority(os.PRIO_PROCESS, 0, self._niceness)
            prctl(PR_SET_DUMPABLE, 1)  # unlike the server, it needs its own files in /proc
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (self._wakeup, self._wakeup_end):
                os.close(descriptor)
            for held in (self._channel, *self._uid_locks.values()):
                held.close()
            from .session import run_session

            status = run_session(channel, output, folder, attrs.evolve(self._policy, uid_channel=uid_channel))
        except BaseException:  # noqa: BLE001 no frame above this one belongs to a worker
            traceback.print_exc()
        finally:
            os._exit(status)

    def _reap(self) -> None:
        """Reap processes that have ended; after a worker, kill the processes it left behind."""
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self.folders:
                del self.folders[pid]
                with suppress(ProcessLookupError):  # nobody else was in its group
                    os.killpg(pid, signal.SIGKILL)
                _end_all(self._strays)
                self._uid_locks.pop(pid).close()  # no process has the uid any more
                send(self._channel, Exited(pid, wait_status, self._reasons.pop(pid, "")))

    def _end_bombs(self) -> None:
        """Kill a worker that has too many processes and threads; the system does not limit root's."""
        most = most_tasks() * 3 // 4  # below the limit of the system for all processes
        self._looks += 1
        if not self.folders or (tasks_on_machine() <= most and self._looks % _LOOKS_PER_COUNT):
            return
        tasks, worker = max((outside_checks.count_tasks([pid]), pid) for pid in self.folders)
        if tasks + outside_checks.count_tasks(self._strays()) > most:  # any worker may have started the strays
            self._reasons[worker] = f"the worker was ended: it had more than {most} processes and threads"
            outside_checks.kill(lambda: [worker, *self._strays()])

    def _strays(self) -> list[int]:
        return [pid for pid in outside_checks.children() if pid not in self.folders]


def _end_all(listed: Callable[[], list[int]]) -> None:
    """Kill children, and processes reparented to this one when they end, until none are listed."""
    while processes := listed():
        outside_checks.kill(listed)
        for pid in processes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # unloading torch takes 0.3 CPU seconds, for which the judge would wait
