"""The linked timer: the latency of a captured function over verified calls, each of which depends on the one before.

Two clocks measure it:

- The *claim*: trusted device code reads the device's clock from the end of each flush to the start of the digest, the
  *span*. It resolves single calls, but lies in the worker's memory.
- The *bound*: the judge's clock over a whole pass, minus that of a pass of known calls right before it. It is out of
  the worker's reach.

The larger of the claim and of the bound minus the tolerated uncertainty is published. The tolerance also covers honest
differences of the two clocks. The claim of a trusted function, the reference, needs no bound; it is published in the
same way as that of the function that it is compared with.

Every pass counts only if all of its calls wrote all outputs, its digest is that of the outputs in the slots, and
nothing else ran on the device or in the worker meanwhile. A secret sample of its calls is compared with fresh answers
of the reference.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence

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
from .known_calls import BoundKnownCalls
from .linked_passes import LinkedPasses, TimedPass, linked_inputs
from .pass_verification import MIN_PASSES, PassVerification
from .prepared import MOVED, InputSet, PreparedWorkload, two_of
from .rpc import Rejected
from .setup_inputs import write_tensors
from .throttling import ThrottlingFilter
from .timed_function import TimedFunction
from .verification import Verifier

_MIN_CALLS, _MAX_PASSES_FOR_CALLS = 60, 12  # few calls fit into a pass where their tensors are large
_MAX_PASSES = 60
_FEW_CALLS, _PASS_NS = 2, 1.5e6  # a pass of long calls has fewer calls, but at least two
_BURST_NS = 1e8  # other judges wait meanwhile
_MAX_DEVICE_SECONDS = 0.025  # device time of all passes of one function
_ERROR_SHARE, _ERROR_SHARE_OF_BOUNDS = 0.9, 0.35  # of the tolerated uncertainty; where the bound is published, less
_FINE_NS = 15.0  # a narrower interval of the median suffices for any latency
_MAX_DISTURBED = 20
_INTERRUPTED_NS, _INTERRUPTED_SHARE = 1e5, 0.02  # a device stays with another process for longer
_ACTIVE_SHARE = 0.1  # share of a pass that threads of the worker may run in total; driver threads wake up at times
_IMPOSSIBLE_ERRORS, _IMPOSSIBLE_OVERHEAD_SHARE = 5.0, 0.2
"""A bound is impossible if it is below zero by more than five uncertainties and by more than a fifth of the pass
overhead; bounds of honest functions are up to 3.5 us, a fifteenth of the overhead, too low."""
_SYSTEMATIC_NS = 40.0  # an allowance for errors of the calibration; not measured


@attrs.frozen
class Reading:
    """Nanoseconds of a pass for each call."""

    pass_ns: float
    """Time of the whole pass by the judge's clock."""
    span_ns: float
    """Time of a call by the device's clock, from the end of the flush to the start of the digest."""
    overhead_ns: float
    """Time by the judge's clock of a pass of known calls, without the calls."""


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
        function: The function to time; its slots are bound.
        verifier: Verifies its calls.
        known: Known calls in the same slots; None where the function is only warmed up.
        is_trusted: Whether its worker runs no code of a solution.
    """

    def __init__(
        self,
        function: TimedFunction,
        verifier: Verifier,
        known: BoundKnownCalls | None,
        *,
        is_trusted: bool = False,
    ) -> None:
        self.method = "linked"
        self._is_trusted = is_trusted
        self.verifier = verifier
        verifier.is_captured = True
        self._function, self._known = function, known
        self._passes: LinkedPasses | None = None
        self._base: InputSet | None = None
        self._nodes, self._calls, self._pass_ns = 0, 0, 0.0
        self._host_ns = 0.0
        self._readings: list[Reading] = []
        self._seconds = self._busy_seconds = self._exclusive_seconds = 0.0
        self._disturbed = 0
        self._filter = ThrottlingFilter(function.context.watch)
        self._drawn: list[torch.Tensor] = []
        self._verification: PassVerification

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
        self._verification = PassVerification(self._function, self._passes, self._base, self.verifier)
        self._function.slots.candidates.copy_(self._draw(prepared))
        self._calls = self._choose_calls()

    def _choose_calls(self) -> int:
        """Compose passes of a suitable length; returns the number of calls of a pass."""
        assert self._passes is not None
        few = min(_FEW_CALLS, self._passes.slots)
        flush_ns = 0 if self._known is None else self._known.empty.flush_ns
        self._nodes = self._passes.compose(native.SOLUTION, few, flush_ns)
        self._passes.run(native.SOLUTION, few, is_timed=False)  # loads code
        if self._known is None:
            return few
        call_ns = self._passes.run(native.SOLUTION, few).taken_ns / few
        calls = max(few, min(self._passes.slots, int(_PASS_NS / call_ns)))
        if calls != few:
            self._passes.compose(native.SOLUTION, calls, flush_ns)
            self._passes.run(native.SOLUTION, calls, is_timed=False)
        self._pass_ns = calls * call_ns
        self._known.compose(calls)
        return calls

    def changed_names(self, prepared: PreparedWorkload) -> frozenset[str]:
        """The inputs that have differed between replays that were compared."""
        if self._passes is None:
            return frozenset()
        moved = prepared.moved_integers if MOVED in self._verification.distributions else frozenset()
        return self._passes.linked_names | moved

    # -- passes --------------------------------------------------------------------------------------

    def draw_passes(self, prepared: PreparedWorkload, passes: int) -> int:
        """Draw the inputs of the next passes, as many of these as memory allows; returns how many."""
        assert self._known is not None
        self._known.forget()
        slots = self._function.slots
        passes = min(passes, max(int(_BURST_NS / self._pass_ns), 1))
        passes = self._verification.room_for(passes, slots.candidates.nbytes + slots.outputs[: self._calls].nbytes)
        with self._function.context.phases.during(Phase.INPUTS):
            self._drawn = [self._draw(prepared) for _ in range(passes)]
        return passes

    def sample(self, prepared: PreparedWorkload) -> None:
        """Make one pass, after one of known calls; `verify` verifies it.

        Raises:
            Rejected: Something else ran meanwhile, again and again.
            WorkerLost: The worker ended.
        """
        context = self._function.context
        first = context.seconds()
        assert self._passes is not None
        assert self._known is not None
        candidates = self._drawn.pop() if self._drawn else self._draw(prepared)
        self._function.slots.candidates.copy_(candidates)
        overhead_ns = self._known.overhead_ns(self._calls)
        begin = time.monotonic()
        made = self._passes.run(native.SOLUTION, self._calls)
        self._busy_seconds += made.taken_ns / 1e9
        self._verification.add(made, candidates)
        if self._is_undisturbed(made) and self._filter.accepts(begin):
            self._readings.append(Reading(made.taken_ns / made.calls, made.span_ns, overhead_ns))
        self._exclusive_seconds += context.seconds() - first
        self._seconds += context.seconds() - first

    def _draw(self, prepared: PreparedWorkload) -> torch.Tensor:
        """New candidates, ``[2, bytes]``."""
        function, base = self._function, self._base
        assert base is not None
        function.context.give_way()  # which does nothing in a burst
        candidates = base.inputs.expand(2, -1).clone()
        if len(prepared.integer_sets) > 1 and not function.keeps_integers:
            for memory, integers in zip(candidates, SECRET.sample(list(prepared.integer_sets), 2), strict=True):
                write_tensors(function.layout.input_tensors(memory), integers)
        if prepared.varying:
            layout, (first, second) = function.layout, two_of(prepared.bases)
            generator = torch.Generator(function.context.device).manual_seed(SECRET.getrandbits(62))
            sources = layout.input_tensors(first.inputs), layout.input_tensors(second.inputs)
            vary(layout.input_tensors(candidates), *sources, prepared.varying, generator)
        return candidates

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
        if self._disturbed <= _MAX_DISTURBED:
            return False
        found = (
            f"another kernel occupied {expected - made.free_multiprocessors} of {expected} multiprocessors while the "
            "cache was flushed"
            if is_occupied
            else f"threads of the worker ran although it had nothing to do ({made.activity})"
        )
        problem = f"background activity in {self._disturbed} timed passes: {found}; work must end when a call does"
        raise Rejected(EvaluationStatus.REWARD_HACK, problem)

    def verify(self, prepared: PreparedWorkload) -> None:
        """Verify the passes since the last time.

        Raises:
            NotCapturable: Outputs are missing, for which the capture may be to blame.
            Rejected: A pass was not the one that was composed, or inputs were changed.
        """
        del prepared
        begin = self._function.context.seconds()
        self._verification.verify()
        self._seconds += self._function.context.seconds() - begin

    def finish(self, prepared: PreparedWorkload) -> None:
        """Compare secret calls with fresh answers of the reference, outside the exclusive time.

        Raises:
            NotCapturable: Outputs are wrong, for which the capture may be to blame.
            WorkerLost: The worker ended.
        """
        is_replayed_with_others = self.method == "linked" and not self._function.keeps_integers
        further = None if self._is_trusted or not is_replayed_with_others else self._draw
        self._verification.finish(prepared, self._calls, draw=further)

    # -- results -------------------------------------------------------------------------------------

    def is_done(self, rule: StopRule) -> bool:
        """Whether there are enough passes."""
        count = len(self._quiet_readings())
        if count < self._min_passes:
            return self._seconds > 10 * rule.max_seconds and count > 0
        if count >= _MAX_PASSES or self._seconds > rule.max_seconds:
            return True
        bound, spans = self._bound(), [reading.span_ns for reading in self._quiet_readings()]
        fine_ns = max(rule.confidence * statistics.median(spans), _FINE_NS)
        is_precise = self._is_trusted or bound.error_ns <= _tolerated_ns(bound.latency_ns)
        if self._busy_seconds > _MAX_DEVICE_SECONDS and is_precise:
            return True
        share = _ERROR_SHARE_OF_BOUNDS if self.is_raised else _ERROR_SHARE
        is_bound_known = self._is_trusted or bound.error_ns <= max(fine_ns, share * _tolerated_ns(bound.latency_ns))
        return is_bound_known and median_error(spans) <= fine_ns

    @property
    def _min_passes(self) -> int:
        """The smallest number of passes; more where a pass has few calls: those of a large gemm vary by percents."""
        return max(MIN_PASSES, min(-(-_MIN_CALLS // max(self._calls, 1)), _MAX_PASSES_FOR_CALLS))

    def _quiet_readings(self) -> Sequence[Reading]:
        """Readings of passes that no other process interrupted; all readings if these are too few and less than half.

        The device works for one process at a time. Where it turned to another one, a pass takes longer, but not its
        calls by the device's clock.
        """
        longest = max((reading.pass_ns for reading in self._readings), default=0.0)
        tolerated_ns = max(_INTERRUPTED_NS / max(self._calls, 1), _INTERRUPTED_SHARE * longest)
        beside = [reading.pass_ns - reading.span_ns for reading in self._readings]
        known = [reading.overhead_ns for reading in self._readings]
        limits = min(beside, default=0.0) + tolerated_ns, min(known, default=0.0) + tolerated_ns
        found = zip(self._readings, beside, known, strict=True)
        quiet = [reading for reading, one, other in found if one <= limits[0] and other <= limits[1]]
        return quiet if len(quiet) >= MIN_PASSES or 2 * len(quiet) >= len(beside) else self._readings

    @property
    def is_raised(self) -> bool:
        """Whether the bound is published, because the claim is lower by more than the tolerated uncertainty."""
        return self._raised_ns(self._bound()) > 0

    def _raised_ns(self, bound: _Estimate) -> float:
        """Nanoseconds to add to the claim so that it is not below the bound less the tolerance."""
        return max(bound.latency_ns - _tolerated_ns(bound.latency_ns) - self._claim().latency_ns, 0.0)

    def _bound(self) -> _Estimate:
        """The latency by the judge's clock."""
        found = [reading.pass_ns - reading.overhead_ns for reading in self._quiet_readings()]
        return _Estimate(statistics.median(found), math.hypot(median_error(found), _SYSTEMATIC_NS))

    def _claim(self) -> _Estimate:
        """The latency by the device's clock, which lies in the worker's memory."""
        assert self._known is not None
        empty, spans = self._known.empty, [reading.span_ns for reading in self._quiet_readings()]
        error_ns = math.hypot(median_error(spans), empty.error_ns, _SYSTEMATIC_NS)
        return _Estimate(statistics.median(spans) - empty.gap_ns, error_ns)

    def _overhead_ns(self) -> float:
        return statistics.median(reading.overhead_ns for reading in self._quiet_readings())

    def measurement(self, beside: object | None = None) -> Measurement:
        """The latency with its samples, one for each pass.

        Args:
            beside: For a trusted function: the one that it is compared with. A bound is published only beside a bound.

        Raises:
            Rejected: It is less than nothing by far more than its uncertainty.
        """
        assert self._known is not None
        bound = self._bound()
        min_ns = -max(_IMPOSSIBLE_ERRORS * bound.error_ns, _IMPOSSIBLE_OVERHEAD_SHARE * self._overhead_ns())
        if not self._is_trusted and bound.latency_ns < min_ns:
            problem = (
                f"impossible latency: {bound.latency_ns / 1e3:.2f} +- {bound.error_ns / 1e3:.2f} us by the judge's "
                "clock; a pass took less time than its links, flushes and digests alone"
            )
            raise Rejected(EvaluationStatus.REWARD_HACK, problem)
        may_raise = not self._is_trusted or (isinstance(beside, LinkedTimer) and beside.is_raised)
        overhead_ns = self._known.empty.gap_ns - (self._raised_ns(bound) if may_raise else 0.0)
        return Measurement(
            samples_ns=tuple(max(reading.span_ns - overhead_ns, 1.0) for reading in self._quiet_readings()),
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
            "pass_overhead_ms": self._overhead_ns() / 1e6,
            "nodes": self._nodes,
            "exclusive_ms": round(self._exclusive_seconds * 1e3, 3),
        }
        if self._disturbed:
            extra["disturbed_passes"] = self._disturbed
        if interrupted := len(self._readings) - len(self._quiet_readings()):
            extra["interrupted_passes"] = interrupted
        return {**extra, **self._filter.to_extra()}
