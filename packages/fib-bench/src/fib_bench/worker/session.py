"""What runs inside a worker: it builds one function, calls it and times it, as the judge says.

The solution lives in this process, so nothing here is believed: every reply is a claim.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from io import FileIO, TextIOWrapper
from pathlib import Path
from typing import Any

import torch
from fib_compile import BuilderRegistry, BuildError, Runnable, jit_environment
from fib_schema import Definition, Solution, parse_json

from ..buffers import Arena
from ..wire import (
    MAX_DESCRIPTORS,
    MAX_REQUEST_BYTES,
    AbsentSlot,
    Bind,
    Bound,
    Build,
    Built,
    Call,
    Called,
    ChannelClosed,
    Failed,
    InputSet,
    InputSlot,
    Measure,
    Measured,
    Receiver,
    ScalarSlot,
    TensorSlot,
    WorkerReply,
    WorkerRequest,
    WrongOutput,
    send,
)
from .stopwatch import time_calls

_MAX_TEXT = 16_000


def run_session(channel: int, output: int, folder: str) -> int:
    """Serve the judge until it closes the channel; returns the exit status."""
    _settle(output, folder)
    connection = socket.socket(fileno=channel)
    receiver = Receiver(connection, WorkerRequest, MAX_REQUEST_BYTES, MAX_DESCRIPTORS)
    session = Session(receiver)
    try:
        while True:
            send(connection, session.answer(receiver.receive()))
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
    os.environ.update(HOME=folder, TMPDIR=folder)
    Path("/proc/self/oom_score_adj").write_text("1000")  # short of memory, this process goes first
    faulthandler.enable(sys.stderr)
    faulthandler.register(signal.SIGUSR1, sys.stderr, all_threads=True)
    random.seed()
    torch.seed()


def _unbuffered(descriptor: int) -> TextIOWrapper:
    """A stream that holds nothing back: the process may be killed at any time."""
    raw = FileIO(descriptor, "w", closefd=False)
    return TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)


class WrongOutputError(Exception):
    """What a function returned does not fit the definition."""

    def __init__(self, aspect: str, problem: str) -> None:
        super().__init__(problem)
        self.reply = WrongOutput(aspect, problem[:_MAX_TEXT])


class Session:
    """The state of one worker: a built function and the tensors of one workload."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._function: Runnable
        self._definition: Definition
        self._calls: list[PreparedCall] = []

    def answer(self, request: object) -> WorkerReply:
        """Do what the judge asks; a solution's failure is an answer like any other."""
        stage = "build" if isinstance(request, Build) else "run"
        try:
            return self._answer(request)
        except WrongOutputError as error:
            return error.reply
        except BuildError as error:
            return Failed("build", _first_line(error), str(error)[:_MAX_TEXT])
        except BaseException as error:  # noqa: BLE001 the border: whatever a solution raises is a result
            return Failed(stage, _first_line(error), _solution_lines(error))

    def _answer(self, request: object) -> WorkerReply:
        match request:
            case Build():
                self._build(request)
                return Built()
            case Bind():
                self._calls = [self._prepare(request.device, item) for item in request.sets]
                return Bound()
            case Call(set_index=index):
                call = self._calls[index]
                call.collect(call.invoke())
                return Called()
            case Measure():
                return self._measure(request)
        raise AssertionError(f"unexpected request {request!r}")

    def _build(self, request: Build) -> None:
        self._definition = parse_json(request.definition, Definition)
        registry = BuilderRegistry.get_instance()
        if request.solution is None:
            self._function = registry.build_reference(self._definition)
        else:
            solution = parse_json(request.solution, Solution)
            os.environ.update(jit_environment(solution))  # what it compiles while it runs, nobody else loads
            self._function = registry.build(self._definition, solution)

    def _prepare(self, device: str, item: InputSet) -> PreparedCall:
        inputs, outputs = map(Arena.attach, self._receiver.take_descriptors(2))
        del device  # the CPU is the only one so far; its arenas are memory files
        arguments = [_argument(slot, inputs) for slot in item.inputs]
        buffers = {
            name: outputs.tensor(slot) for name, slot in zip(self._definition.outputs, item.outputs, strict=True)
        }
        for arena in (inputs, outputs):
            arena.close()  # mapped; a worker that goes through many workloads would run out of descriptors
        return PreparedCall(self._function, arguments, buffers)

    def _measure(self, request: Measure) -> Measured:
        samples_ns, calls_per_sample, last_results = time_calls(
            [call.invoke for call in self._calls],
            warmup_runs=request.warmup_runs,
            samples=request.samples,
            max_seconds=request.max_seconds,
            clock_ns=time.perf_counter_ns,
        )
        for call, result in zip(self._calls, last_results, strict=True):
            call.collect(result)
        return Measured(tuple(samples_ns), calls_per_sample)


class PreparedCall:
    """One call with its arguments bound: all that is left to do is to invoke it.

    Args:
        function: The built function.
        arguments: The inputs in the definition's order.
        buffers: The output buffers, by name, in the definition's order.
    """

    def __init__(self, function: Runnable, arguments: Sequence[Any], buffers: Mapping[str, torch.Tensor]) -> None:
        self._buffers = buffers
        self._is_dps = function.metadata.destination_passing_style
        bound = (*arguments, *buffers.values()) if self._is_dps else tuple(arguments)
        self.invoke: Callable[[], Any] = lambda: function(*bound)

    def collect(self, result: Any) -> None:
        """Bring what an invocation returned into the output buffers.

        Raises:
            WrongOutputError: It does not fit the definition.
        """
        if self._is_dps:
            return
        for name, value in zip(self._buffers, self._in_order(result), strict=True):
            _store(name, value, self._buffers[name])

    def _in_order(self, result: Any) -> list[Any]:
        names = list(self._buffers)
        if isinstance(result, Mapping):
            if result.keys() != set(names):
                problem = f"returned a dict of {sorted(map(str, result))}, expected {sorted(names)}"
                raise WrongOutputError("kind", problem)
            return [result[name] for name in names]
        values = list(result) if isinstance(result, (tuple, list)) else [result]
        if len(values) != len(names) or (not names and result is not None):
            problem = f"returned {len(values)} values, expected {len(names)}: {', '.join(names)}"
            raise WrongOutputError("kind", problem)
        return values


def _argument(slot: InputSlot, arena: Arena) -> Any:
    match slot:
        case TensorSlot():
            return arena.tensor(slot)
        case ScalarSlot(value=value):
            return value
        case AbsentSlot():
            return None


def _store(name: str, value: Any, buffer: torch.Tensor) -> None:
    if buffer.ndim == 0 and type(value) in (int, float, bool):
        buffer.fill_(value)
        return
    if type(value) is not torch.Tensor:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise WrongOutputError("kind", f"output {name!r} is a {kind}, expected a torch.Tensor")
    if value.shape != buffer.shape:
        found, wanted = tuple(value.shape), tuple(buffer.shape)
        raise WrongOutputError("shape", f"output {name!r} has shape {found}, expected {wanted}")
    if value.dtype != buffer.dtype:
        problem = f"output {name!r} has dtype {value.dtype}, expected {buffer.dtype}"
        raise WrongOutputError("dtype", problem)
    buffer.copy_(value.detach())


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    first = text.splitlines()[0] if text else ""
    return f"{type(error).__name__}: {first}"[:500]


def _solution_lines(error: BaseException) -> str:
    """The traceback without this package's own frames: the solution's lines are what helps."""
    ours = str(Path(__file__).parent.parent)
    report = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in report.stack if not frame.filename.startswith(ours)]
    report.stack = traceback.StackSummary.from_list(frames)
    text = "".join(report.format())
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT // 2] + "\n...\n" + text[-_MAX_TEXT // 2 :]
