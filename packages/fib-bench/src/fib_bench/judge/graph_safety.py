"""Graph safety and padded indices: whether a solution may be called in a CUDA graph of an engine.

Engines keep page numbers in buffers longer than their total, whose contents change between the replays of a graph. The
padding check makes such calls in one place: all tensors keep their addresses and shapes, and the integers change in
place. On a CUDA device the first call is captured and the others are its replays; on the CPU each of them is a call.
First, valid pages stand behind the total, so that a solution that reads them is wrong; then numbers that are not pages.
A solution that fails may leave a worker that must not be used any more, so this precedes all timing.

Timed passes replay captured calls with inputs that the judge makes anew, integers included, and compare some with fresh
answers. Booleans are never drawn anew. Offsets of requests that all have the same length cannot be drawn anew without
other sizes; the padding check does that. `graph_fields` decides from what both did.

The results are properties of a solution beside its verdict: nothing is rejected here but tampering.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from fib_schema import EvaluationStatus

from ..errors import EvaluatorFailed
from ..timing.handshake import native
from ..worker.client import WorkerLost
from .functions import BoundFunction, FunctionWorker, NotCapturable, Rejected
from .passes import MIN_VERIFIED, Launch, Order, Passes, Sample
from .prepared import PaddedCalls, PreparedWorkload
from .timer import DEVICE, Timer

_SLOTS = 2


def graph_fields(
    function: BoundFunction, prepared: PreparedWorkload, timer: Timer, *, is_padding_right: bool
) -> dict[str, object]:
    """The fields of a trace's timing about CUDA graphs; none on the CPU.

    Integers and booleans among the inputs are offsets, page numbers and masks, by which kernels choose their work: all
    must have changed that have several valid values.

    All calls of the timer have been compared. `is_padding_right` is about calls with padded indices, if there are any.
    """
    if not function.context.is_cuda:
        return {}
    changed = timer.passes.changed_names | (prepared.padded_integers if is_padding_right else frozenset())
    inputs = prepared.checker.definition.inputs
    names = prepared.layout.inputs.keys() - prepared.determined_integers - changed
    fixed = [name for name in names if (spec := inputs[name]).is_integer or spec.dtype == "bool"]
    verified = timer.verification.compared[Sample.PUBLISHED]
    if timer.method != DEVICE:
        problem = f"it was timed by the method {timer.method!r}, which replays no captured call with changed inputs"
    elif waits := [*timer.passes.reads, *timer.passes.waits]:
        problem = f"it waits for the device in {waits[0]}"
    elif function.has_setup:
        problem = "its setup makes a plan on the host"
    elif function.keeps_integers:
        problem = "its integers were not redrawn, because the baseline has a setup"
    elif fixed:
        problem = f"integer or boolean inputs were not redrawn: {', '.join(sorted(fixed))}"
    elif verified < MIN_VERIFIED:
        problem = f"only {verified} replays were compared with fresh answers"
    else:
        return {"graph_safe": True}
    return {"graph_safe": False, "graph_unsafe_reason": problem}


def padding_problem(candidate: FunctionWorker, prepared: PreparedWorkload, padded: PaddedCalls) -> str:
    """Reason why a solution was not shown to be right with padded indices; empty if it was.

    The worker is closed if it may be unusable.
    """
    if candidate.has_setup:
        return "its setup makes a plan on the host"
    worker, context = candidate.worker, candidate.context
    try:
        with BoundFunction(worker, padded.layout, _SLOTS, context) as function:
            _check_calls(function, prepared, padded, is_captured=context.is_cuda and candidate.may_capture)
    except EvaluatorFailed as error:
        return f"its outputs could not be compared: {error.problem}"
    except NotCapturable as error:
        worker.close()
        return f"it cannot be captured: {_summary(str(error))}"
    except Rejected as error:
        if error.status is EvaluationStatus.REWARD_HACK:
            raise
        if error.status is not EvaluationStatus.INCORRECT_NUMERICAL and context.is_cuda:
            worker.close()  # an error on the device spoils the process
        return _summary(error.message)
    except WorkerLost as lost:
        if lost.is_forgery or (lost.is_killed and not candidate.was_killed):
            raise
        worker.close()
        return f"its worker ended: {_summary(str(lost))}"
    return ""


def _check_calls(
    function: BoundFunction, prepared: PreparedWorkload, padded: PaddedCalls, *, is_captured: bool
) -> None:
    _, first = next(padded.input_sets(prepared, is_poisoned=False))
    replay = _captured(function, first.inputs) if is_captured else partial(function.call, slot=0)
    for is_poisoned in (False, True):
        for draw, item in padded.input_sets(prepared, is_poisoned=is_poisoned):
            what = "no pages" if is_poisoned else "pages of other requests"
            where = f"a call with {draw.total} indices in a longer buffer, {what} behind them"
            function.compare(item, replay(item.inputs), where)


def _captured(function: BoundFunction, first: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Capture a call on inputs; returns what replays it on others in their place, with a copy of the outputs."""
    slots = function.slots
    function.call(first, 0, is_first=True)  # compiles
    passes = Passes(function, {}, first)
    slots.inputs[:] = first
    passes.compose(native.SOLUTION, Order.COLD)

    def replay(inputs: torch.Tensor) -> torch.Tensor:
        slots.inputs[:] = inputs
        made = passes.run(native.SOLUTION, Order.COLD, Launch.DEVICE)
        if passes.recompute(made, slots.outputs[: passes.calls]):
            raise NotCapturable("a replay left outputs unwritten")
        outputs = slots.outputs[0].clone()
        function.check_inputs(0, inputs)
        return outputs

    return replay


def _summary(text: str) -> str:
    """The last line of a traceback, which names the error; else the first line."""
    lines = text.strip().splitlines()
    return (lines[-1] if "Traceback" in lines[0] else lines[0]) if lines else "no reason was given"
