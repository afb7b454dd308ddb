"""Session of a worker: it builds, calls and times one function on request of the judge, who trusts no reply of it."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import socket
import sys
import sysconfig
import tempfile
import time
import traceback
from contextlib import suppress
from io import FileIO, TextIOWrapper
from pathlib import Path

import fib_compile
import torch
from fib_compile import BuilderRegistry, BuildError, Runnable, interpreter_environment, jit_environment
from fib_schema import Definition, Solution, parse_json
from fib_schema.display import shortened
from fib_schema.files import explain_os_error

from ..caches import CacheOwner, own_cache
from ..sandbox.landlock import forget_kernel_files
from ..sandbox.model import NotPossible, SandboxPaths, SandboxPolicy
from ..sandbox.policy import isolate
from ..sandbox.processes import reserve_uid
from ..sandbox.seccomp import seal_process
from ..timing.handshake.native import CannotCapture, HostNative, Native, open_native
from ..transport import messages
from ..transport.arenas import Arena, release_unused
from ..transport.protocol import MAX_DESCRIPTORS, MAX_REQUEST_BYTES, ChannelClosed, Receiver, send
from .autotuning import Compiler, take_first_configuration
from .passes import Passes, PreparedCall, WrongOutputError, settle
from .tamper_check import Watch

_MAX_TEXT, _MAX_LINE = 16_000, 120
_PAUSE_SECONDS = 0.001  # between two looks whether a pause has ended; another thread may have got the signal
_MAX_UNUSED_BYTES = 256 << 20  # of a worker between two workloads: other judges share the device
_CALLING = messages.Call | messages.ComposePass | messages.LaunchPass | messages.RunCalls
_OURS = (str(Path(__file__).parent.parent), str(Path(fib_compile.__file__).parent))
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def run_session(channel: int, output: int, folder: str, policy: SandboxPolicy) -> int:
    """Serve the judge until it closes the channel; returns the exit status."""
    _settle(output, folder)
    connection = socket.socket(fileno=channel)
    receiver = Receiver(connection, messages.WorkerRequest, MAX_REQUEST_BYTES, MAX_DESCRIPTORS)
    session = Session(receiver, connection)
    try:
        request = receiver.receive()
        send(connection, _confine(policy, Path(folder), request))
        while True:
            send(connection, session.answer(request))
            request = receiver.receive()
    except ChannelClosed:
        return 0


def _settle(output: int, folder: str) -> None:
    """Give the process a session, streams, a folder and random numbers of its own."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(output)
    raw = (FileIO(descriptor, "w", closefd=False) for descriptor in (1, 2))
    # They hold nothing back: the process may be killed at any time.
    sys.stdout, sys.stderr = (TextIOWrapper(each, "utf-8", "backslashreplace", write_through=True) for each in raw)
    os.chdir(folder)
    os.environ.update(HOME=folder, TMPDIR=folder, USER="worker", LOGNAME="worker")  # its user may have no name
    tempfile.tempdir = None  # an import may have cached another folder
    Path("/proc/self/oom_score_adj").write_text("1000")  # short of memory, this process goes first
    faulthandler.enable(sys.stderr)
    faulthandler.register(signal.SIGUSR1, sys.stderr, all_threads=True)
    random.seed()
    torch.seed()
    torch.set_float32_matmul_precision("highest")  # a solution that uses TF32 turns it on itself
    torch.backends.cudnn.allow_tf32 = False


def _confine(policy: SandboxPolicy, folder: Path, request: object) -> messages.Settled:
    """Apply the sandbox to this process, before it reads a solution; returns the report for the judge."""
    build = request.build if isinstance(request, messages.OpenDevice) else request
    assert isinstance(build, messages.Build), "a worker first gets its build"
    owner = CacheOwner.of(build)  # which decides the cache
    uid, why_no_uid, cache = None, "no process holds the lock of its uid", folder
    if policy.uid_channel is not None:
        with socket.socket(fileno=policy.uid_channel) as channel:  # the solution does not get the descriptor
            try:
                uid, why_no_uid = reserve_uid(policy, owner.name, channel), ""
            except (NotPossible, OSError) as error:
                why_no_uid = str(error)
    try:
        cache = own_cache(owner, os.getuid() if uid is None else uid)
    except OSError as error:
        print(f"builds of this run are not kept: {explain_os_error(error)} (FIB_CACHE_PATH names it)")
    os.environ["FIB_CACHE_PATH"] = str(cache)
    isolation = isolate(SandboxPaths(policy, folder, cache, uid, why_no_uid))
    forget_kernel_files()  # the solution gets no descriptors
    return messages.Settled(isolation)


class Session:
    """The state of one worker: a built function and the slots of one workload."""

    def __init__(self, receiver: Receiver, connection: socket.socket) -> None:
        self._receiver, self._connection = receiver, connection
        self._compiler: Compiler | None = None  # of a CUDA device
        self._device = torch.device("cpu")
        self._set_aside = 0  # of the L2 cache, in bytes
        self._function: Runnable | None = None
        self._definition: Definition
        self._calls: list[PreparedCall] = []
        self._arenas: list[Arena] = []
        self._native: HostNative | None = None
        self._bound: messages.Bind | None = None
        self._passes: Passes | None = None
        self._is_paused = False
        self._watch = Watch()

    def answer(self, request: object) -> messages.WorkerReply:
        """Serve a request, then run the tamper check."""
        reply = self._answer_alone(request)
        findings = self._watch.findings()
        may_set_aside = isinstance(request, _CALLING) and self._device.type == "cuda"
        if may_set_aside and (size := _persisting_bytes()) != self._set_aside:
            findings.append(f"set {size} bytes of the L2 cache aside for lines that outlast a flush")
        problem = f"in its process the solution {'; '.join(findings)}"
        return messages.Failed("tampered", problem[:_MAX_TEXT]) if findings else reply

    def _answer_alone(self, request: object) -> messages.WorkerReply:
        """Serve a request; a failure of the solution becomes a reply."""
        try:
            return self._answer(request) or messages.Done()
        except WrongOutputError as error:
            return messages.Failed(error.kind, str(error)[:_MAX_TEXT])
        except (BuildError, CannotCapture) as error:
            return messages.Failed("build" if isinstance(error, BuildError) else "capture", str(error)[:_MAX_TEXT])
        except BaseException as error:  # noqa: BLE001 process border: any exception of a solution is a result
            return messages.Failed("build" if isinstance(request, messages.Build) else "run", _solution_lines(error))

    def _answer(self, request: object) -> messages.WorkerReply | None:
        """Serve a request; None if there is nothing to report."""
        match request:
            case messages.OpenDevice(build=build):
                self._use_device(build.device)
                return messages.DeviceOpened(self._native.table_address if isinstance(self._native, Native) else 0)
            case messages.Build():
                return messages.Built(self._build(request))
            case messages.Bind():
                self._bind(request)
            case messages.Release():
                self._release()
            case messages.SetUp(slots=slots):
                return messages.HasSetUp(tuple(self._set_up(self._calls[slot]) for slot in slots))
            case messages.Call(slot=slot, is_first=is_first):
                call, untuned = self._calls[slot].run, 0
                if self._compiler is None:
                    call()
                else:
                    untuned = self._compiler.call(call, is_first=is_first)
                self._finish()
                return messages.Called(untuned)
            case messages.Seal():
                seal_process()
            case messages.WarmUp():
                return messages.Warm(settle(self._calls, self._device, request.runs, request.max_seconds))
            case messages.OpenPasses():
                self._open_passes(request)
            case messages.ComposePass() if self._passes is not None:
                return self._passes.compose(request)
            case messages.LaunchPass() if self._passes is not None:
                self._passes.launch(request)
            case messages.RunCalls() if self._passes is not None:
                self._passes.run_calls(request)
            case _:
                raise AssertionError(f"unexpected request {request!r}")
        return None

    def _use_device(self, name: str) -> None:
        self._device = torch.device(name)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            self._set_aside = _persisting_bytes(is_reset=True)
            torch.zeros(1, device=self._device)  # makes the context
        if self._native is None:
            self._native = open_native(self._device)

    def _build(self, request: messages.Build) -> bool:
        """Load the function; returns whether it has a ``setup``."""
        self._use_device(request.device)
        self._definition = parse_json(request.definition, Definition)
        registry = BuilderRegistry.get_instance()
        if request.solution is None:
            self._function = registry.build_reference(self._definition)
            signal.signal(messages.PAUSE, self._pause)
            signal.signal(messages.GO_ON, self._go_on)
        else:
            solution = parse_json(request.solution, Solution)
            os.environ.update(jit_environment(solution))  # a JIT cache of its own
            if self._device.type == "cpu":
                os.environ.update(interpreter_environment(solution))
            self._function = registry.build(self._definition, solution)
        if self._device.type == "cuda":
            self._compiler = Compiler(self._connection)
        else:
            take_first_configuration()
        return self._function.setup is not None

    def _bind(self, request: messages.Bind) -> None:
        self._release()
        for handle in (request.inputs, request.outputs):
            descriptor = -1 if handle.ipc_handle else self._receiver.take_descriptors(1)[0]
            self._arenas.append(Arena.attach(handle, descriptor, self._device))
            self._arenas[-1].close_descriptor()  # a worker that goes through many workloads would run out
        self._bound = request
        inputs, outputs = self._arenas[0].slots(request.slots + messages.BASES), self._arenas[1].slots(request.slots)
        assert self._function is not None, "a function is built before slots are bound"
        self._calls = [
            PreparedCall(self._function, self._definition, request.layout, *pair)
            for pair in zip(inputs[: request.slots], outputs, strict=True)
        ]

    def _open_passes(self, request: messages.OpenPasses) -> None:
        assert self._bound is not None, "slots are bound before passes are opened"
        assert self._native is not None, "the device is opened first"
        (mailbox,) = self._receiver.take_descriptors(1)
        if self._passes is not None:
            self._passes.close()
        if isinstance(self._native, Native):
            self._native.seed(request.pattern)
        inputs = self._arenas[0].slots(self._bound.slots + messages.BASES)
        self._passes = Passes(self._native, self._calls, inputs, self._bound.layout, request.recipes, mailbox)

    def _pause(self, *_: object) -> None:
        """Stand still between two operations of a call: references can take seconds."""
        self._is_paused = True
        with suppress(Exception):  # of the call, which meets it again
            self._finish()
        send(self._connection, messages.Paused())
        while self._is_paused:
            time.sleep(_PAUSE_SECONDS)

    def _go_on(self, *_: object) -> None:
        self._is_paused = False

    def _set_up(self, call: PreparedCall) -> float:
        taken_ns = call.set_up()
        self._finish()
        return taken_ns

    def _release(self) -> None:
        if self._passes is not None:
            self._passes.close()
            self._passes = None
        self._calls = []
        for arena in self._arenas:
            arena.close()
        if self._arenas and self._device.type == "cuda":
            release_unused(self._device, _MAX_UNUSED_BYTES)
        self._arenas = []

    def _finish(self) -> None:
        """Wait for the device. The launch makes torch report a launch before it that failed without a word."""
        if self._device.type == "cuda":
            torch.zeros(1, device=self._device)
            torch.cuda.synchronize(self._device)


def _persisting_bytes(*, is_reset: bool = False) -> int:
    """Bytes of the L2 cache that are set aside for persisting lines, which a flush does not evict; resets them to 0."""
    from cuda.bindings import driver

    if is_reset:
        driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0)
    status, size = driver.cuCtxGetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE)
    return int(size) if status.value == 0 else 0


def _solution_lines(error: BaseException) -> str:
    """The failure in one line, then the traceback without the frames above the solution."""
    report = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in report.stack if not frame.filename.startswith(_OURS)]
    report.stack = traceback.StackSummary.from_list(frames)
    text = "".join([f"{_first_line(error)}\n", *report.format()])
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT // 2] + "\n...\n" + text[-_MAX_TEXT // 2 :]


def _first_line(error: BaseException) -> str:
    """The line of the solution, and the first line of the error that caused all others."""
    while error.__cause__ is not None:
        error = error.__cause__
    files = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    foreign = (*_OURS, *_LIBRARIES)
    own = [f"{Path(name).name}:{line}: " for name, line in files if name[:1] == "/" and not name.startswith(foreign)]
    lines = (line for line in traceback.format_exception_only(error) if not line.startswith(" "))
    return shortened(f"{own[-1] if own else ''}{next(lines).splitlines()[0]}", _MAX_LINE)
