"""Padding check: whether a solution is right with index inputs that are longer than their total.

Engines keep page numbers in buffers of fixed size, whose contents change between the replays of a CUDA graph. The
check makes such calls in one place: all tensors keep their addresses and shapes, and the integers change in place. On a
CUDA device the first call is captured and the others are its replays; on the CPU each of them is a call. First, valid
pages stand behind the total, so that a solution that reads them is wrong; then numbers that are not pages.

The result is a property of a solution beside its verdict: nothing is rejected here but tampering. A solution that
fails may leave a worker that must not be used any more, so this precedes all timing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from fib_schema import EvaluationStatus
from fib_schema.padded_indices import PADDED_INDICES

from ..timing.handshake import native
from ..worker.client import WorkerLost
from .function_worker import FunctionWorker
from .output_checker import EvaluatorRaised
from .passes import Launch, Order, Passes
from .prepared import InputSet, PaddedCalls, PreparedWorkload
from .rpc import NotCapturable, Rejected
from .timed_function import TimedFunction

_SLOTS = 2
Replay: TypeAlias = Callable[[InputSet], torch.Tensor]
"""Puts inputs into the place of the calls and returns a copy of the outputs' memory, ``[bytes]``."""


def padding_fields(problem: str) -> dict[str, object]:
    """The fields of a trace's timing, for a workload with padded calls."""
    if not problem:
        return {PADDED_INDICES: True}
    return {PADDED_INDICES: False, f"{PADDED_INDICES}_problem": problem}


def padding_problem(candidate: FunctionWorker, prepared: PreparedWorkload, bind: Callable[..., TimedFunction]) -> str:
    """Reason why a solution was not shown to be right with padded indices; empty if it was.

    The worker is closed if it may be unusable.

    Args:
        candidate: Holds the built solution.
        prepared: A workload with padded calls.
        bind: Makes the timed function from a layout and a number of slots.

    Raises:
        Rejected: The worker was tampered with.
        WorkerLost: It forged a reply.
    """
    assert prepared.padded is not None, "the workload has padded calls"
    if candidate.has_setup:
        return "its setup makes a plan on the host"
    try:
        with bind(prepared.padded.layout, _SLOTS) as function:
            _check_calls(function, prepared, prepared.padded, may_capture=candidate.may_capture)
        function.raise_if_lost()
    except EvaluatorRaised as error:
        return f"its outputs could not be compared: {error}"
    except NotCapturable as error:
        candidate.worker.close()
        return f"it cannot be captured: {_summary(str(error))}"
    except Rejected as error:
        if error.status is EvaluationStatus.REWARD_HACK:
            raise
        if error.status is not EvaluationStatus.INCORRECT_NUMERICAL and candidate.request.device != "cpu":
            candidate.worker.close()  # an error on the device spoils the process
        return _summary(error.message)
    except WorkerLost as lost:
        if lost.is_forgery:
            raise
        candidate.worker.close()
        return f"its worker ended: {_summary(str(lost))}"
    return ""


def _check_calls(
    function: TimedFunction, prepared: PreparedWorkload, padded: PaddedCalls, *, may_capture: bool
) -> None:
    """Make all calls in one place and compare their outputs.

    Raises:
        Rejected: Outputs are wrong, or the function raised.
        NotCapturable: It cannot be captured.
        WorkerLost: The worker ended.
    """
    base = prepared.layout.input_tensors(prepared.bases[0].inputs)
    first = padded.input_set(base, padded.calls[0], is_poisoned=False)
    replay = _captured(function, first) if function.context.is_cuda and may_capture else _called(function)
    for is_poisoned in (False, True):
        for call in padded.calls:
            item = padded.input_set(base, call, is_poisoned=is_poisoned)
            what = "no pages" if is_poisoned else "pages of other requests"
            where = f"a call with {call.total} indices in a longer buffer, {what} behind them"
            function.compare(item, replay(item), where)


def _called(function: TimedFunction) -> Replay:
    """Calls in one slot, whose inputs change in place."""
    return lambda item: function.call(item, 0)


def _captured(function: TimedFunction, first: InputSet) -> Replay:
    """Capture a call on inputs and return what replays it.

    Raises:
        Rejected: The function raised.
        NotCapturable: It cannot be captured.
        WorkerLost: The worker ended.
    """
    slots = function.slots
    function.call(first, 0, is_first=True)  # compiles
    passes = Passes(function, {}, first.inputs)
    slots.load(slice(None), first.inputs)
    passes.compose(native.SOLUTION, Order.COLD)

    def replay(item: InputSet) -> torch.Tensor:
        slots.load(slice(None), item.inputs)
        made = passes.run(native.SOLUTION, Order.COLD, Launch.DEVICE, [0] * passes.calls)
        if passes.recompute(made, slots.outputs[: passes.calls]):
            raise NotCapturable("a replay left outputs unwritten")
        outputs = slots.outputs[0].clone()
        function.check_inputs(0, item)
        return outputs

    return replay


def _summary(text: str) -> str:
    """The last line of a traceback, which names the error; else the first line."""
    lines = text.strip().splitlines()
    return (lines[-1] if "Traceback" in lines[0] else lines[0]) if lines else "no reason was given"
