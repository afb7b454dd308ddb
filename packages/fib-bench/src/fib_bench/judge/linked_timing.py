"""Linked timer. The latency of captured calls over verified, sequentially dependent calls.

Two clocks show it. Trusted device code takes the time from the end of each flush to the start of the digest, which is
fine but lies in the worker's memory: a claim. The judge's own clock over the whole pass is out of the worker's reach
and bounds it. The larger one is published: the claim, or the bound less the tolerated uncertainty, which also covers
what the two clocks honestly differ by.

Every pass counts only if all of its calls wrote all outputs, its digest is that of the outputs in the slots, and
nothing else ran on the device or in the worker meanwhile. A secret sample of its calls is compared with fresh answers
of the reference.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import attrs
import torch
from fib_schema import EvaluationStatus

from ..config.model import ResolvedEvalConfig
from ..events import Phase
from ..inputs.variation import vary
from ..secure_random import SECRET
from ..timing import Measurement, StopRule
from ..timing.linked import native
from ..timing.measurement import median_error
from ..transport.messages import Warm, WarmUp
from .known_calls import BoundKnownCalls, Reading
from .linked_passes import LinkedPasses, TimedPass, linked_inputs
from .prepared import InputSet, PreparedWorkload, two_of
from .rpc import NotCapturable, Rejected
from .setup_inputs import write_tensors
from .throttling import ThrottlingFilter
from .timed_function import TimedFunction
from .verification import Verifier

_LEAST_PASSES, _MOST_PASSES = 6, 60
_SAME_LENGTH_FACTOR = 2.0  # a function uses passes of the known calls' length if its own would differ by less
_FEW_CALLS, _PASS_NS = 2, 1.8e6  # a pass of long calls has fewer calls, but at least two
_MAX_DEVICE_SECONDS = 0.02  # device time of all passes of one function
_ERROR_SHARE, _ERROR_SHARE_OF_BOUNDS = 0.9, 0.35  # of the tolerated uncertainty; where the bound is published, less
_FINE_NS = 15.0  # a narrower interval of the median suffices for any latency
_MOST_DISTURBED = 20
_ACTIVE_SHARE = 0.1  # share of a pass that threads of the worker may run in total; driver threads wake up at times
_VERIFIED_CALLS = 90  # of each published latency, where the reference is cheap
_VERIFY_SECONDS = 0.15
_PENDING_BYTES, _BATCH_BYTES = 1 << 30, 1 << 28
_IMPOSSIBLE_ERRORS = 5.0  # a bound is impossible if it is negative by so many uncertainties, and by the next share
_IMPOSSIBLE_OVERHEAD_SHARE = (
    0.2  # of the pass overhead: bounds of honest functions are up to 3.5 us (a fifteenth) too low
)
_SYSTEMATIC_NS = 40.0  # an allowance for errors of the calibration; not measured


@attrs.frozen
class _Estimate:
    """A latency, and half its 95 % interval plus an allowance for systematic errors."""

    latency_ns: float
    error_ns: float


def _tolerated_ns(latency_ns: float) -> float:
    """The uncertainty of the judge's clock that is aimed at."""
    return max(0.02 * latency_ns, 150.0)


class LinkedTimer:
    """Times a function by linked passes.

    Args:
        function: What to time; its slots are bound.
        verifier: Verifies its calls.
        known: Known calls in the same slots; None where the function is only warmed up.
    """

    def __init__(self, function: TimedFunction, verifier: Verifier, known: BoundKnownCalls | None) -> None:
        self.method = "linked"
        self.verifier = verifier
        verifier.is_captured = True
        self._function, self._known = function, known
        self._passes: LinkedPasses | None = None
        self._base: InputSet | None = None
        self._nodes, self._calls = 0, 0
        self._host_ns = 0.0
        self._readings: list[Reading] = []
        self._seconds = self._busy_seconds = 0.0
        self._disturbed = 0
        self._filter = ThrottlingFilter(function.context.watch)
        self._candidates: torch.Tensor | None = None
        self._pending: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Inputs and outputs of calls that are to be verified, ``[bytes]`` each."""

    def warm_up(self, prepared: PreparedWorkload, config: ResolvedEvalConfig) -> None:
        """Load the slots, call until compilers and caches have settled, and compose passes.

        Raises:
            NotCapturable: Use `HostTimer` in a fresh worker.
            Rejected: The function raised.
            WorkerLost: The worker ended.
        """
        known = self._function.load_all(prepared)
        self._base = known[0] if self._function.keeps_integers else prepared.bases[0]
        request = WarmUp(config.warmup_runs, config.measure_seconds / 4)
        self._host_ns = self._function.ask(request, Warm, extra_seconds=request.max_seconds).host_ns
        inputs = linked_inputs(self._function, prepared)
        self.method = "linked" if inputs else "unlinked"
        self._passes = LinkedPasses(self._function, inputs)
        self._refresh(prepared)
        self._calls = self._choose_calls()

    def _choose_calls(self) -> int:
        """Compose passes of a suitable length; returns the number of calls of a pass."""
        assert self._passes is not None
        few = min(_FEW_CALLS, self._passes.slots)
        self._nodes = self._passes.compose(native.SOLUTION, few)
        self._passes.run(native.SOLUTION, few)  # loads code; does not count
        if self._known is None:
            return few
        call_ns = self._passes.run(native.SOLUTION, few).taken_ns / few
        calls = max(few, min(self._passes.slots, int(_PASS_NS / call_ns)))
        if calls / _SAME_LENGTH_FACTOR <= self._known.preferred_calls <= _SAME_LENGTH_FACTOR * calls:
            calls = self._known.preferred_calls
        if calls != few:
            self._passes.compose(native.SOLUTION, calls)
            self._passes.run(native.SOLUTION, calls)
        return calls

    def sample(self, prepared: PreparedWorkload) -> None:
        """Make one pass, and one of known calls every other time; verify it.

        Raises:
            NotCapturable: Outputs are wrong, for which the capture may be to blame.
            Rejected: The pass was not the one that was composed, or something else ran meanwhile, again and again.
            WorkerLost: The worker ended.
        """
        first, context = time.monotonic(), self._function.context
        assert self._passes is not None
        assert self._known is not None
        with context.phases.during(Phase.INPUTS):
            self._refresh(prepared)
        if self._known.count(self._calls) <= min(len(self._readings), _LEAST_PASSES - 1):
            self._known.sample(self._calls)
        begin = time.monotonic()
        made = self._passes.run(native.SOLUTION, self._calls)
        self._busy_seconds += made.taken_ns / 1e9
        self._verify(made)
        if self._is_undisturbed(made) and self._filter.accepts(begin):
            self._readings.append(Reading.of(made))
        self._seconds += time.monotonic() - first

    def _refresh(self, prepared: PreparedWorkload) -> None:
        """Draw new candidates."""
        function, base = self._function, self._base
        assert base is not None
        function.slots.candidates[:] = base.inputs
        if len(prepared.integer_sets) > 1 and not function.keeps_integers:
            for memory, integers in zip(
                function.slots.candidates, SECRET.sample(list(prepared.integer_sets), 2), strict=True
            ):
                write_tensors(function.layout.input_tensors(memory), integers)
        if prepared.varying:
            layout, (first, second) = function.layout, two_of(prepared.bases)
            generator = torch.Generator(function.context.device).manual_seed(SECRET.getrandbits(62))
            sources = layout.input_tensors(first.inputs), layout.input_tensors(second.inputs)
            vary(layout.input_tensors(function.slots.candidates), *sources, prepared.varying, generator)
        self._candidates = function.slots.candidates.clone()
        function.context.synchronize()

    def _is_undisturbed(self, made: TimedPass) -> bool:
        """Whether nothing else was on the device.

        Raises:
            Rejected: Something was, too often.
        """
        expected = torch.cuda.get_device_properties(self._function.context.device).multi_processor_count
        ran_ns = sum((*made.activity.ran.values(), *made.activity.started.values()))
        is_occupied, is_active = made.free_multiprocessors < expected, ran_ns > _ACTIVE_SHARE * made.taken_ns
        if not is_occupied and not is_active:
            return True
        self._disturbed += 1
        if self._disturbed <= _MOST_DISTURBED:
            return False
        found = (
            f"another kernel occupied {expected - made.free_multiprocessors} of {expected} multiprocessors while the "
            "cache was flushed"
            if is_occupied
            else f"threads of the worker ran although it had nothing to do ({made.activity})"
        )
        problem = f"background activity in {self._disturbed} timed passes: {found}; work must end when a call does"
        raise Rejected(EvaluationStatus.REWARD_HACK, problem)

    # -- verification --------------------------------------------------------------------------------

    def _verify(self, made: TimedPass) -> None:
        """Recompute the links of a pass, check that all outputs were written, and choose calls to compare."""
        assert self._passes is not None
        assert self._base is not None
        unwritten = self._passes.recompute(made)
        if unwritten:
            raise NotCapturable(f"{len(unwritten)} of {made.calls} timed calls left outputs unwritten")
        size = self._function.layout.size_bytes
        wanted = -(-_VERIFIED_CALLS // _LEAST_PASSES)
        room = max(_PENDING_BYTES // max(size, 1) - len(self._pending), 0)
        count = min(wanted, made.calls, max(room, 2 if len(self._pending) < 2 else 0))
        slots, chosen = self._function.slots, SECRET.sample(range(made.calls), count)
        if not chosen:
            return
        assert self._candidates is not None
        read = self._passes.inputs_of(chosen, self._base.inputs, self._candidates)
        places = torch.tensor(chosen, device=read.device)
        if not torch.equal(read, slots.inputs[places]):
            problem = "an input tensor was changed; a function must not write to its inputs"
            raise Rejected(EvaluationStatus.RUNTIME_ERROR, problem)
        self._pending += zip(read, slots.outputs[places], strict=True)

    def finish(self, prepared: PreparedWorkload) -> None:
        """Compare the chosen calls with fresh answers of the reference, outside the exclusive time.

        Raises:
            NotCapturable: Outputs are wrong, for which the capture may be to blame.
            WorkerLost: The worker ended.
        """
        SECRET.shuffle(self._pending)
        waiting, self._pending = self._pending[:_VERIFIED_CALLS], []
        most = max(1, min(self._function.slots.count, _BATCH_BYTES // max(self._function.layout.size_bytes, 1)))
        begin, done, count = time.monotonic(), 0, min(2, most)
        while waiting and (done < 2 or count > 0):
            some, waiting = waiting[: max(count, 1)], waiting[max(count, 1) :]
            inputs, outputs = (torch.stack(memories) for memories in zip(*some, strict=True))
            self.verifier.verify_many(prepared, inputs, outputs)
            done, spent = done + len(some), max(time.monotonic() - begin, 1e-6)
            count = min(most, int((_VERIFY_SECONDS - spent) * done / spent))
        self._check_other_distributions(prepared)
        self.verifier.check_together(prepared)

    def _check_other_distributions(self, prepared: PreparedWorkload) -> None:
        """Make a pass on inputs of each other distribution: the calls that were timed are right on them as well.

        Raises:
            NotCapturable: Outputs are wrong.
        """
        assert self._passes is not None
        slots = self._function.slots
        for item in prepared.trials:
            if item.distribution == "normal" or self._function.has_setup:
                continue
            slots.inputs[:] = item.inputs
            slots.candidates[:] = item.inputs
            made = self._passes.run(native.SOLUTION, self._calls)
            unwritten, slot = self._passes.recompute(made), SECRET.randrange(made.calls)
            where = f"captured calls on inputs of distribution {item.distribution}"
            if unwritten:
                raise NotCapturable(f"{where} left outputs unwritten")
            (read,) = self._passes.inputs_of([slot], item.inputs, item.inputs.expand(2, -1))
            if not torch.equal(slots.inputs[slot], read):
                problem = "an input tensor was changed; a function must not write to its inputs"
                raise Rejected(EvaluationStatus.RUNTIME_ERROR, problem)
            if not torch.equal(read, item.inputs):
                continue  # a link has swapped adjacent elements: nobody has answered that
            try:
                self._function.compare(item, slots.outputs[slot].clone(), where)
            except Rejected as error:
                raise NotCapturable(error.message) from error

    # -- results -------------------------------------------------------------------------------------

    def is_done(self, rule: StopRule) -> bool:
        """Whether there are enough passes."""
        count = len(self._readings)
        if count < _LEAST_PASSES:
            return self._seconds > 10 * rule.max_seconds and count > 0
        if count >= _MOST_PASSES or self._seconds > rule.max_seconds:
            return True
        bound = self._bound()
        share = _ERROR_SHARE_OF_BOUNDS if self._raised_ns(bound) > 0 else _ERROR_SHARE
        target = max(rule.confidence * bound.latency_ns, _FINE_NS, share * _tolerated_ns(bound.latency_ns))
        return bound.error_ns <= target or self._busy_seconds > _MAX_DEVICE_SECONDS

    def _raised_ns(self, bound: _Estimate) -> float:
        """Nanoseconds to add to the claim so that it is not below the bound less the tolerance."""
        return max(bound.latency_ns - _tolerated_ns(bound.latency_ns) - self._claim().latency_ns, 0.0)

    def _bound(self) -> _Estimate:
        """The latency by the judge's clock."""
        return self._estimate(lambda reading: reading.pass_ns)

    def _claim(self) -> _Estimate:
        """The latency by the device's clock, which lies in the worker's memory."""
        return self._estimate(lambda reading: reading.span_ns)

    def _estimate(self, nanoseconds: Callable[[Reading], float]) -> _Estimate:
        """The latency by one of the two clocks of a reading."""
        assert self._known is not None
        overhead = self._known.overhead(self._calls)
        found = [nanoseconds(reading) for reading in self._readings]
        return _Estimate(
            statistics.median(found) - nanoseconds(overhead.per_call),
            math.hypot(median_error(found), nanoseconds(overhead.error), _SYSTEMATIC_NS),
        )

    def measurement(self) -> Measurement:
        """The latency with its samples, one for each pass.

        Raises:
            Rejected: It is less than nothing by far more than its uncertainty.
        """
        assert self._known is not None
        bound, overhead = self._bound(), self._known.overhead(self._calls).per_call
        if bound.latency_ns < -max(_IMPOSSIBLE_ERRORS * bound.error_ns, _IMPOSSIBLE_OVERHEAD_SHARE * overhead.pass_ns):
            problem = (
                f"impossible latency: {bound.latency_ns / 1e3:.2f} +- {bound.error_ns / 1e3:.2f} us by the judge's "
                "clock; a pass took less time than its links, flushes and digests alone"
            )
            raise Rejected(EvaluationStatus.REWARD_HACK, problem)
        overhead_ns = overhead.span_ns - self._raised_ns(bound)
        return Measurement(
            samples_ns=tuple(max(reading.span_ns - overhead_ns, 1.0) for reading in self._readings),
            method=self.method,
            chain=self._calls,
            host_ns=self._host_ns,
            overhead_ns=overhead_ns,
        )

    def to_extra(self) -> dict[str, object]:
        """The timing fields of a trace beside the measurement."""
        assert self._known is not None
        verified, claim, bound = self.verifier.verified_calls, self._claim(), self._bound()
        extra: dict[str, object] = {
            "verified_calls": verified,
            "detected_share": round(1 - 0.01 ** (1 / verified), 4) if verified else None,
            "uncertainty_ms": max(bound.error_ns, _tolerated_ns(bound.latency_ns)) / 1e6,
            "claim_ms": claim.latency_ns / 1e6,
            "claim_uncertainty_ms": claim.error_ns / 1e6,
            "bound_ms": bound.latency_ns / 1e6,
            "bound_uncertainty_ms": bound.error_ns / 1e6,
            "pass_overhead_ms": self._known.overhead(self._calls).per_call.pass_ns / 1e6,
            "nodes": self._nodes,
            "exclusive_ms": round(self._seconds * 1e3, 3),
        }
        if self._disturbed:
            extra["disturbed_passes"] = self._disturbed
        return {**extra, **self._filter.to_extra()}
