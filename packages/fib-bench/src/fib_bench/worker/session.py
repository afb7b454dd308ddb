"""Session of a worker: it builds one function, calls it and times it on request of the judge.

The solution runs in this process, so every reply is untrusted.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import socket
import sys
import tempfile
import traceback
from io import FileIO, TextIOWrapper
from pathlib import Path

import fib_compile
import torch
from fib_compile import BuilderRegistry, BuildError, Runnable, interpreter_environment, jit_environment
from fib_schema import Definition, Solution, parse_json
from fib_schema.files import explain_os_error

from ..sandbox.landlock import forget_kernel_files
from ..sandbox.model import NotPossible, SandboxPaths, SandboxPolicy
from ..sandbox.policy import isolate
from ..sandbox.processes import reserve_uid
from ..sandbox.seccomp import seal_process
from ..timing.cuda import CannotCapture, kernels_of, persisting_bytes, set_no_lines_aside
from ..timing.handshake.native import HostNative, Native, open_native
from ..transport import messages
from ..transport.arenas import Arena, release_unused, tensor_in
from ..transport.protocol import MAX_DESCRIPTORS, MAX_REQUEST_BYTES, ChannelClosed, Receiver, send
from .autotuning import tune_briefly, untuned_kernels
from .caches import CacheOwner, own_cache
from .calls import PreparedCall, WrongOutputError
from .passes import Passes, PassMemory, settle
from .tamper_check import Watch

_MAX_TEXT = 16_000
_MAX_UNUSED_BYTES = 256 << 20  # of a worker between two workloads: other judges share the device
_CALLING = messages.Call | messages.ComposePass | messages.LaunchPass | messages.RunCalls
_OURS = (str(Path(__file__).parent.parent), str(Path(fib_compile.__file__).parent))


def run_session(channel: int, output: int, folder: str, policy: SandboxPolicy) -> int:
    """Serve the judge until it closes the channel; returns the exit status."""
    _settle(output, folder)
    connection = socket.socket(fileno=channel)
    receiver = Receiver(connection, messages.WorkerRequest, MAX_REQUEST_BYTES, MAX_DESCRIPTORS)
    session = Session(receiver)
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
    sys.stdout, sys.stderr = _unbuffered(1), _unbuffered(2)
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
    """Apply the sandbox to this process, before it reads a solution.

    Args:
        policy: The settings of all workers.
        folder: The worker's home and temporary folder.
        request: The judge's first request, which decides the cache.

    Returns:
        The message that reports the measures to the judge.
    """
    build = request.build if isinstance(request, messages.OpenDevice) else request
    assert isinstance(build, messages.Build), "a worker first gets its build"
    owner = CacheOwner.of(build)
    uid, why_no_uid = _reserve(policy, owner.name)
    cache = folder
    try:
        cache = own_cache(owner, os.getuid() if uid is None else uid)
    except OSError as error:
        print(f"builds of this run are not kept: {explain_os_error(error)} (FIB_CACHE_PATH names it)")
    os.environ["FIB_CACHE_PATH"] = str(cache)
    isolation = isolate(SandboxPaths(policy, folder, cache, uid, why_no_uid))
    forget_kernel_files()  # the solution gets no descriptors
    return messages.Settled(dict(isolation.held), dict(isolation.missing))


def _reserve(policy: SandboxPolicy, name: str) -> tuple[int | None, str]:
    """A uid of its own, or None with the reason; the solution does not get the descriptor of the channel."""
    if policy.uid_channel is None:
        return None, "no process holds the lock of its uid"
    with socket.socket(fileno=policy.uid_channel) as channel:
        try:
            return reserve_uid(policy, name, channel), ""
        except (NotPossible, OSError) as error:
            return None, str(error)


def _unbuffered(descriptor: int) -> TextIOWrapper:
    """A stream that holds nothing back: the process may be killed at any time."""
    raw = FileIO(descriptor, "w", closefd=False)
    return TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)


class Session:
    """The state of one worker: a built function and the slots of one workload."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._device = torch.device("cpu")
        self._set_aside = 0  # of the L2 cache, in bytes
        self._function: Runnable | None = None
        self._definition: Definition
        self._calls: list[PreparedCall] = []
        self._arenas: list[Arena] = []
        self._last: tuple[PreparedCall, object] | None = None
        self._native: HostNative | None = None
        self._bound: messages.Bind | None = None
        self._passes: Passes | None = None
        self._watch = Watch()

    def answer(self, request: object) -> messages.WorkerReply:
        """Serve a request, then run the tamper check."""
        reply = self._answer_alone(request)
        findings = self._watch.findings()
        if isinstance(request, _CALLING) and self._device.type == "cuda":
            size = persisting_bytes()
            if size != self._set_aside:
                findings.append(f"set {size} bytes of the L2 cache aside for lines that outlast a flush")
        return messages.Tampered("; ".join(findings)[:_MAX_TEXT]) if findings else reply

    def _answer_alone(self, request: object) -> messages.WorkerReply:
        """Serve a request; a failure of the solution becomes a reply."""
        stage = "build" if isinstance(request, messages.Build) and not request.is_ahead else "run"
        try:
            return self._answer(request)
        except WrongOutputError as error:
            return error.reply
        except CannotCapture as error:
            return messages.Uncapturable(str(error)[:_MAX_TEXT])
        except BuildError as error:
            return messages.Failed("build", str(error)[:_MAX_TEXT])
        except BaseException as error:  # noqa: BLE001 process border: any exception of a solution is a result
            return messages.Failed(stage, _solution_lines(error))

    def _answer(self, request: object) -> messages.WorkerReply:
        match request:
            case messages.OpenDevice(build=build):
                self._use_device(build.device)
                return messages.DeviceOpened(self._native.table_address if isinstance(self._native, Native) else 0)
            case messages.Build(is_ahead=True):
                self._build_ahead(request)
                return messages.Built(False)
            case messages.Build():
                return messages.Built(self._build(request))
            case messages.Bind():
                self._bind(request)
                return messages.Done()
            case messages.Release():
                self._release()
                return messages.Done()
            case messages.SetUp(slots=slots):
                return messages.HasSetUp(tuple(self._set_up(self._calls[slot]) for slot in slots))
            case messages.Call(slot=slot, is_first=True) if self._device.type == "cuda":
                with untuned_kernels(self._device) as kernels:
                    self._call(self._calls[slot])
                return messages.Called(kernels.count)
            case messages.Call(slot=slot):
                self._call(self._calls[slot])
                return messages.Called()
            case messages.Seal():
                seal_process()
                return messages.Done()
            case messages.CollectAgain():
                self._collect_again()
                return messages.Done()
            case messages.WarmUp():
                return self._warm_up(request)
            case messages.OpenPasses():
                self._open_passes(request)
                return messages.Done()
            case messages.ComposePass():
                return self._opened_passes.compose(request)
            case messages.LaunchPass(index=index):
                self._opened_passes.launch(index)
                return messages.Done()
            case messages.RunCalls():
                self._opened_passes.run_calls(request)
                return messages.Done()
            case messages.Profile():
                return messages.Profiled(kernels_of(self._calls[0].invoke, self._device))
        raise AssertionError(f"unexpected request {request!r}")

    @property
    def _opened_passes(self) -> Passes:
        assert self._passes is not None, "passes are opened before they are used"
        return self._passes

    def _use_device(self, name: str) -> None:
        self._device = torch.device(name)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            self._set_aside = set_no_lines_aside()
            torch.zeros(1, device=self._device)  # makes the context
        if self._native is None:
            self._native = open_native(self._device, makes_passes=True)

    def _build_ahead(self, request: messages.Build) -> None:
        """Run compilers, and make the device ready.

        Raises:
            BuildError: The solution does not compile.
        """
        self._use_device(request.device)
        if request.solution is not None:
            definition, solution = parse_json(request.definition, Definition), parse_json(request.solution, Solution)
            (outcome,) = BuilderRegistry.get_instance().build_many([(definition, solution)], jobs=1)
            if outcome.error is not None:
                raise outcome.error

    def _build(self, request: messages.Build) -> bool:
        """Load the function; returns whether it has a ``setup``."""
        self._use_device(request.device)
        self._definition = parse_json(request.definition, Definition)
        registry = BuilderRegistry.get_instance()
        if request.solution is None:
            self._function = registry.build_reference(self._definition)
        else:
            solution = parse_json(request.solution, Solution)
            os.environ.update(jit_environment(solution))  # a JIT cache of its own
            if self._device.type == "cpu":
                os.environ.update(interpreter_environment(solution))
            self._function = registry.build(self._definition, solution)
        if self._device.type == "cuda":
            tune_briefly()
        return self._function.setup is not None

    def _bind(self, request: messages.Bind) -> None:
        self._release()
        for handle in (request.inputs, request.outputs):
            descriptor = -1 if handle.ipc_handle else self._receiver.take_descriptors(1)[0]
            self._arenas.append(Arena.attach(handle, descriptor, self._device))
            self._arenas[-1].close_descriptor()  # a worker that goes through many workloads would run out
        self._bound = request
        inputs, outputs = self._arenas[0].slots(request.slots + messages.BASES), self._arenas[1].slots(request.slots)
        if self._function is not None:
            self._calls = [
                PreparedCall(self._function, self._definition, request.layout, *pair)
                for pair in zip(inputs[: request.slots], outputs, strict=True)
            ]

    def _open_passes(self, request: messages.OpenPasses) -> None:
        """Map the memory that passes use."""
        assert self._bound is not None, "slots are bound before passes are opened"
        assert self._native is not None, "the device is opened first"
        (mailbox,) = self._receiver.take_descriptors(1)
        if self._passes is not None:
            self._passes.close()
        if isinstance(self._native, Native):
            self._native.seed(request.pattern)
        inputs, outputs = self._arenas
        layout, count = self._bound.layout, self._bound.slots
        memory = inputs.slots(count + messages.BASES)
        places = PassMemory(
            inputs=memory[:count],
            base=memory[count],
            layout=[place if isinstance(place, messages.TensorSlot) else None for place in layout.inputs],
            outputs=[[tensor_in(slot, place) for place in layout.outputs] for slot in outputs.slots(count)],
        )
        self._passes = Passes(self._native, self._device, self._calls, places, request.recipes, mailbox)

    def _set_up(self, call: PreparedCall) -> float:
        taken_ns = call.set_up()
        self._finish()
        return taken_ns

    def _call(self, call: PreparedCall) -> None:
        self._last = None
        call.prepare()
        result = call.invoke()
        call.collect(result)
        self._finish()
        self._last = call, result

    def _collect_again(self) -> None:
        if self._last is not None:
            call, result = self._last
            call.collect(result)
            self._finish()

    def _release(self) -> None:
        if self._passes is not None:
            self._passes.close()
            self._passes = None
        self._calls = []
        self._last = None
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

    def _warm_up(self, request: messages.WarmUp) -> messages.Warm:
        self._last = None
        taken_ns = settle(self._calls, self._device, request.runs, request.max_seconds)
        defers_work = any(call.defers_work for call in self._calls)
        for call in self._calls:
            call.defers_work = defers_work  # not each of them was called
        return messages.Warm(taken_ns)


def _solution_lines(error: BaseException) -> str:
    """The traceback without the frames above the solution."""
    report = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in report.stack if not frame.filename.startswith(_OURS)]
    report.stack = traceback.StackSummary.from_list(frames)
    text = "".join(report.format())
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT // 2] + "\n...\n" + text[-_MAX_TEXT // 2 :]
