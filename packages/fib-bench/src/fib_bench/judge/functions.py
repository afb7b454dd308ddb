"""Functions that the judge calls: a solution, a definition's reference or a baseline, each in a worker of its own.

`FunctionWorker` builds, seals and asks the worker; `BoundFunction` is the function on one workload, with its slots,
single calls and their checks; `passes` times its calls. A worker's code and its seal are checked from outside.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Self, TypeVar

import attrs
import torch
from fib_schema import Definition, EvaluationStatus, Solution, format_json

from ..checking.comparison import Comparison
from ..evaluators.protocol import Observation, Verdict
from ..secure_random import SECRET
from ..timing.handshake.native import TABLE_BYTES
from ..transport import messages
from ..transport.arenas import CallLayout, Slots
from ..worker.client import ForkServerClient, Rejected, Worker, WorkerLost
from ..worker.outside_checks import NotPermitted, memory_digest, modified_text, open_memory_files, seccomp_filters
from .device import DeviceContext, lacks_memory
from .prepared import InputSet, PreparedWorkload, other_values, write_tensors

_MOST_TUNING_CALLS, _ALL_LIMITS = 16, 3  # time limits, in which all calls on a workload and what surrounds them end
POISON = 0xC3
"""The byte that outputs of single calls hold before the call; as a float of any width it is finite and large or odd."""
_TOGETHER_SECONDS, _MOST_TOGETHER_SECONDS = 2.0, 20.0  # for calls on the same inputs: while cheap, and in any case
_ENOUGH_FAILURES = 2  # each costs a worker
_TELLING_BYTES = 4  # fewer can equal the fill byte by chance
_MIN_UNWRITTEN_SHARE = 0.01  # fewer elements may hold the fill value by chance: as float16 it is an ordinary number
_SEEN_BY_SETUP = "setup() gets other floating values than run(), and must not compute with them"
_HIDDEN_FROM_SETUP = "setup() saw other integers: an output depends on them alone"
R = TypeVar("R")


class FunctionWorker:
    """A function and the worker that holds it; a lost worker is replaced by a fresh one."""

    def __init__(self, server: ForkServerClient, request: messages.Build, context: DeviceContext) -> None:
        self._server, self._request, self.context = server, request, context
        self.worker: Worker = server.spawn()
        self.has_captured = False
        """Whether calls on some workload were captured."""
        self.not_captured: dict[str, str] = {}
        """Reasons that calls on workloads cannot be captured, by UUID."""
        self.padding_problem = ""
        """Reason that it is not right with padded indices; empty unless a check has failed."""
        self.has_setup = False
        self.may_seal = True
        """Whether it is sealed before timing; not after a sealed worker failed where another one did not."""
        self.is_sealed = False
        self.table, self.table_digest = 0, ""
        """The address of the native module's table, and its digest before a solution was loaded."""
        self._is_used = self._is_built = self.was_killed = False
        self._compile_error = ""

    def why_not_captured(self, workload: str) -> str:
        """Reason not to capture calls on a workload, or empty; without a capture, two of a solution decide for all."""
        is_hopeless = len(self.not_captured) >= _ENOUGH_FAILURES and self._request.solution and not self.has_captured
        return self.not_captured.get(workload, next(iter(self.not_captured.values())) if is_hopeless else "")

    def is_first_kill(self, lost: WorkerLost) -> bool:
        """Whether something has killed its worker for the first time, which is no verdict yet."""
        is_first = lost.is_killed and not self.was_killed
        self.was_killed |= lost.is_killed
        return is_first

    @property
    def is_ready(self) -> bool:
        """Whether its worker has built the function and may be given further workloads."""
        return self._is_built and not self.worker.is_closed and not self.is_sealed

    def build(self) -> None:
        """Build and load the function, in a fresh worker if it has been built before; what does not compile, once."""
        if self._compile_error:
            raise Rejected(EvaluationStatus.COMPILE_ERROR, self._compile_error)
        if self._is_used:
            self.worker.close()
            self.worker = self._server.spawn()
        self.worker.is_of_harness = self._request.solution is None
        self._is_used, self._is_built, self.is_sealed = True, False, False
        if self.context.is_cuda:
            with self.context.device_work():
                self._open_device()
        try:
            with self.context.no_device_work():  # it may compile
                built = self._ask(self._request, messages.Built)
        except Rejected as error:
            if error.status is EvaluationStatus.COMPILE_ERROR and not lacks_memory(error.message):
                self._compile_error = error.message
            raise
        if self.worker.is_of_harness and self.context.takes_turns:
            self.worker.is_wanted, self.worker.give_way = self.context.is_wanted, self.context.give_way
        self.has_setup = built.has_setup and not self.worker.is_of_harness  # a reference is not set up
        self._is_built = True

    def seal(self) -> None:
        """Seal the worker of a CUDA device."""
        if self.context.is_cuda:  # on the CPU honest functions start threads when they are called; it is not ranked
            before = _filter_counts(self.worker)
            self._ask(messages.Seal(), messages.Done)
            after = _filter_counts(self.worker)
            self.is_sealed = bool(after) and min(after.values()) > max(before.values(), default=0)

    def _ask(self, request: messages.WorkerRequest, answer: type[R]) -> R:
        return self.worker.request(request, answer, seconds=self.context.begin_request())

    def _open_device(self) -> None:
        """Record the digest of the native module's table before a solution is loaded."""
        self.table, self.table_digest = self._ask(messages.OpenDevice(self._request), messages.DeviceOpened).table, ""
        with suppress(NotPermitted, ProcessLookupError):
            if self.table:
                self.table_digest = memory_digest(self.worker.pid, self.table, TABLE_BYTES)


def build_request(
    device: str, definition: Definition, solution: Solution | None, cache_key: str = ""
) -> messages.Build:
    """The build request of a solution, which does not see the definition's reference, or of the reference."""
    if solution is None:
        return messages.Build(device, format_json(definition), None)
    without = attrs.evolve(definition, reference="def run(*inputs):\n    raise NotImplementedError\n")
    return messages.Build(device, format_json(without), format_json(solution), cache_key=cache_key)


class InputsChanged(Rejected):
    """An input tensor was written to."""

    def __init__(self, layout: CallLayout, found: torch.Tensor, loaded: torch.Tensor) -> None:
        names = ", ".join(layout.differing_inputs(found, loaded))
        changed = f"input {names}" if names else "memory between inputs"
        problem = f"{changed} was changed; a function must not write to its inputs"
        super().__init__(EvaluationStatus.RUNTIME_ERROR, problem)


class BoundFunction:
    """One function on one workload.

    A function that shares inputs with another one, which outlives it, reads the same memory. Timed calls get the same
    integers in a slot each time if `keeps_integers`, or if this function or one that shares the inputs has a ``setup``,
    which sees neither generated values of `prepared` nor integers on which its outputs may depend alone.
    """

    def __init__(
        self,
        function: FunctionWorker,
        layout: CallLayout,
        slots: int,
        *,
        shares_inputs_with: BoundFunction | None = None,
        keeps_integers: bool = False,
        prepared: PreparedWorkload | None = None,
    ) -> None:
        self.worker, self.context, self.has_setup = function.worker, function.context, function.has_setup
        self.layout, self._prepared, shared = layout, prepared, shares_inputs_with
        self.slots: Slots = Slots(layout, slots, self.context.device, None if shared is None else shared.slots)
        self.keeps_integers: bool = self.has_setup or keeps_integers or (shared is not None and shared.keeps_integers)
        self.comparisons: list[Comparison] = []
        """Comparisons of all outputs so far."""
        self.findings: dict[str, Mapping[str, object]] = {}
        """Results of checks of many calls together."""
        self._setup_ns: list[float] = []
        self._waited_before, self._tuning_calls = self.worker.waited_seconds, 0

    def __enter__(self) -> Self:
        try:
            self.ask(self.slots.message, messages.Done, descriptors=self.slots.descriptors)
        except BaseException:
            self.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        error = self.release()
        if error is not None and kind is None and not self.worker.is_of_harness:  # its own failures are told elsewhere
            raise error

    def release(self) -> WorkerLost | Rejected | None:
        """Have the worker unmap the slots, and free them; a worker that fails to is ended, and the failure returned."""
        try:
            self.worker.request(messages.Release(), messages.Done, seconds=self.context.begin_request())
        except (WorkerLost, Rejected) as error:
            self.worker.close()
            return error
        finally:
            self.slots.close()
        return None

    def ask(
        self,
        request: messages.WorkerRequest,
        reply: type[R],
        *,
        extra_seconds: float = 0.0,
        descriptors: tuple[int, ...] = (),
    ) -> R:
        """Send a request to the worker, with file descriptors, and return its reply; raises like `Worker.request`."""
        seconds = self.begin_request() + extra_seconds
        return self.worker.request(request, reply, descriptors, seconds=seconds)

    def begin_request(self) -> float:
        """The bound on a request that is sent now; `WorkerLost` if those of a solution have taken too long together."""
        limit = _ALL_LIMITS * self.context.timeout_seconds
        if self.worker.waited_seconds - self._waited_before > limit and not self.worker.is_of_harness:
            self.worker.close()
            problem = f"all calls on a workload together took more than {limit:g} s; the worker was killed"
            raise WorkerLost(problem, is_timeout=True)
        return self.context.begin_request()

    def call(self, inputs: torch.Tensor, slot: int | None = None, *, is_first: bool = False) -> torch.Tensor:
        """Call once on inputs, ``[bytes]``; returns a copy of the outputs' memory, ``[bytes]``.

        Args:
            inputs: Laid out like a slot.
            slot: None takes a secret one.
            is_first: Whether the function and its ``setup`` may compile: they then do so while others use the device,
                and kernels that have to be tuned are called once more with the device alone.
        """
        slot = SECRET.randrange(self.slots.count) if slot is None else slot
        if self.has_setup:
            self.set_up([slot], self._seen_by_setup(inputs), is_first=is_first)
        return self._call_on(slice(slot, slot + 1), inputs[None], is_first=is_first)[0]

    def call_each(self, inputs: torch.Tensor) -> torch.Tensor:
        """Call once on each of several inputs, ``[calls, bytes]``, in the first slots; there is no ``setup``."""
        return self._call_on(slice(0, len(inputs)), inputs)

    def _call_on(self, slots: slice, inputs: torch.Tensor, *, is_first: bool = False) -> torch.Tensor:
        """Call once on each slot. Requests are sent ahead, so that the worker does not wait for the judge meanwhile."""
        self.slots.inputs[slots] = inputs
        self.slots.outputs[slots].fill_(POISON)
        requests = [messages.Call(slot) for slot in range(slots.start, slots.stop)]
        if is_first:
            self._call_first(slots.start)
        else:
            seconds, most_seconds = self.begin_request(), self.context.timeout_seconds
            replies = self.worker.request_each(requests, messages.Called, seconds=seconds, most_seconds=most_seconds)
            for request, reply in zip(requests, replies, strict=True):
                if reply.untuned:
                    self._call_first(request.slot)
        outputs = self.slots.outputs[slots].clone()  # later writes do not count
        self.check_inputs(slots, inputs)
        return outputs

    def _call_first(self, slot: int) -> None:
        while self._tuning_calls < _MOST_TUNING_CALLS:  # a kernel that depends on another's choice compiles after that
            self._tuning_calls += 1
            with self.context.no_device_work():
                is_tuned = not self.ask(messages.Call(slot, is_first=True), messages.Called).untuned
            if is_tuned:
                return
            self.slots.outputs[slot].fill_(POISON)
            with self.context.exclusive():
                if not self.ask(messages.Call(slot), messages.Called).untuned:
                    return
        raise Rejected(EvaluationStatus.RUNTIME_ERROR, "each call compiles other kernels than the one before")

    def check_inputs(self, slots: int | slice, inputs: torch.Tensor) -> None:
        """Compare the inputs in slots with those that were loaded; raises `InputsChanged` if they differ."""
        found = self.slots.inputs[slots]
        if not torch.equal(found, inputs):
            raise InputsChanged(self.layout, found, inputs)

    def compare(self, item: InputSet, outputs: torch.Tensor, where: str) -> None:
        """Compare the outputs of a call, ``[bytes]``, with those that are right; `where` names it in messages."""
        verdict = item.compare(outputs)
        if verdict.problems:
            problems = (*explain_unwritten(self.layout.output_tensors(outputs), POISON), *verdict.problems)
            notes = [_SEEN_BY_SETUP] if self.has_setup else []
            is_hidden = self.has_setup and self._prepared and self._prepared.hidden_from_setup
            notes += [_HIDDEN_FROM_SETUP] if is_hidden else []
            _raise_if_wrong(attrs.evolve(verdict, problems=problems), where, notes)
        self.comparisons += verdict.comparisons

    def check_together(self, prepared: PreparedWorkload) -> None:
        """Call many times on inputs of each distribution and check the outputs together, if the checks have trials."""
        items = list({item.distribution: item for item in reversed(prepared.trials) if item.check.trials}.values())
        if not items:
            return
        begin, seen = self.context.seconds(), []
        for index in range(max(item.check.most_trials for item in items)):
            taken = self.context.seconds() - begin
            is_enough = index >= max(item.check.trials for item in items)
            if taken > (_TOGETHER_SECONDS if is_enough else _MOST_TOGETHER_SECONDS):
                break
            for item in items:
                outputs = self.call(item.inputs)
                self.compare(item, outputs, f"trial {index} on the same inputs")
                seen.append(item.observe(outputs))
        self.judge_together(prepared, seen, "many calls on the same inputs")

    def judge_together(self, prepared: PreparedWorkload, seen: Sequence[Observation], where: str) -> None:
        """Check the outputs of many calls together; `where` names the calls in messages and findings."""
        if seen:
            verdict = prepared.checker.guarded(lambda: prepared.checker.evaluator.judge_together(seen))
            _raise_if_wrong(verdict, where)
            self.findings[where] = verdict.extra

    def set_up(self, slots: Sequence[int], inputs: torch.Tensor, *, is_first: bool = False) -> None:
        """Run the function's ``setup`` on slots that hold these inputs, ``[bytes]``; `is_first` as for `call`."""
        for slot in slots:
            self.slots.inputs[slot] = inputs
        with self.context.no_device_work() if is_first else nullcontext():
            reply = self.ask(messages.SetUp(tuple(slots)), messages.HasSetUp)
        if len(reply.taken_ns) != len(slots) or not all(0 <= taken < math.inf for taken in reply.taken_ns):
            raise WorkerLost(f"the worker answered a request to set up with {reply!r:.200}", is_forgery=True)
        self._setup_ns += reply.taken_ns

    def _seen_by_setup(self, inputs: torch.Tensor) -> torch.Tensor:
        recipes, hidden = (self._prepared.recipes, self._prepared.hidden_from_setup) if self._prepared else ({}, None)
        changed = other_values(recipes, self.layout, inputs)
        write_tensors(self.layout.input_tensors(changed), hidden() if hidden else {})
        return changed

    def load_all(self, inputs: torch.Tensor) -> None:
        """Put one input set into all slots, and run ``setup`` on them if there is one."""
        if self.has_setup:
            self._setup_ns.clear()
            self.set_up(range(self.slots.count), self._seen_by_setup(inputs))
        self.slots.inputs[:] = inputs
        self.slots.base[:] = inputs

    @property
    def setup_ms(self) -> float | None:
        """The median time of ``setup`` on the slots, by the worker's clock; None without one."""
        return statistics.median(self._setup_ns) / 1e6 if self._setup_ns else None


def _raise_if_wrong(verdict: Verdict, where: str, notes: Sequence[str] = ()) -> None:
    """Raise for a verdict with problems; the place ends the first line of each, whose beginning tells most."""
    if verdict.problems:
        parts = (problem.partition("\n") for problem in verdict.problems)
        lines = [f"{first}; {where}{separator}{rest}" for first, separator, rest in parts]
        raise Rejected(EvaluationStatus.INCORRECT_NUMERICAL, "\n".join([*lines, *notes]), verdict.comparisons)


def explain_unwritten(outputs: Mapping[str, torch.Tensor], fill: int) -> list[str]:
    """Messages about wrong outputs that still hold the byte `fill` from before the call, all or in part."""
    found = []
    for name, tensor in outputs.items():
        if tensor.nbytes < _TELLING_BYTES:
            continue
        total = tensor.numel()
        is_unwritten = (tensor.reshape(-1).view(torch.uint8).reshape(total, -1) == fill).all(dim=1)
        count = int(is_unwritten.sum())
        if count == total:
            found.append(f"{name}: never written; destination_passing_style=true ignores returned values")
        elif tensor.element_size() > 1 and count >= _MIN_UNWRITTEN_SHARE * total:
            first = [int(index) for index in torch.unravel_index(is_unwritten.to(torch.uint8).argmax(), tensor.shape)]
            found.append(f"{name}: {count} of {total} elements never written; the first one is {first}")
    return found


# -- checks from outside -------------------------------------------------------------------------------------


def _filter_counts(worker: Worker) -> Mapping[int, int]:
    """The number of system call filters of each thread of a worker; empty where the system does not report it."""
    try:
        return seccomp_filters(worker.pid)
    except (NotPermitted, ProcessLookupError):
        return {}


def check_code(worker: Worker, trusted: Worker | None, table: int, digest: str) -> str:
    """Check that nobody has changed the code of a worker; returns why that could not be checked, if so.

    Its libraries are compared with those of a trusted worker, so that one which patches itself accuses nobody.
    `trusted` has never run code of a solution; `digest` is that of the native module's table before one was there.
    """
    try:
        found = open_memory_files(worker.pid)
        if (changed := modified_text(worker.pid)) and trusted is not None:
            expected = {_place(line) for line in modified_text(trusted.pid)}
            changed = [line for line in changed if _place(line) not in expected]
        found += changed
        if digest and memory_digest(worker.pid, table, TABLE_BYTES) != digest:
            found.append("the table of driver functions differs from what it was")
    except NotPermitted as error:
        return str(error)
    except ProcessLookupError:
        return "the worker has ended"
    if found:
        raise Rejected(EvaluationStatus.REWARD_HACK, f"the worker's code was changed: {'; '.join(found[:5])}")
    return "" if digest else "the table of driver functions could not be read before the solution was loaded"


def _place(line: str) -> str:
    return os.path.basename(line.partition(" at ")[0])  # noqa: PTH119 a name in a sentence
