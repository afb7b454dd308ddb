"""Timer: the latency of one function on one workload, by the judge's clock around each of its calls.

Two latencies of a CUDA function are measured. The *device latency* is that of calls that were captured and are
launched by the device; the *call latency* is what an eager caller waits for, with calls that the host launches. On the
CPU there is only the latter, by the worker's own clock between the same words: it is not ranked. Each is the median
time of calls less that of passes without calls in the same process.

Device latencies are measured in both orders of key and flush (`passes`). That of *cold* is published, unless it is
lower than that of *fresh* by more than honest calls are: in *fresh* nothing can be computed before the clock runs.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence

import attrs
import torch
from fib_schema import EvaluationStatus

from ..config.model import ResolvedEvalConfig
from ..secure_random import SECRET
from ..timing import Measurement
from ..timing.handshake import native
from ..timing.measurement import median_error
from ..transport.messages import Warm, WarmUp
from ..worker.client import WorkerLost
from .generated import write_tensors
from .passes import Launch, Order, Passes, TimedPass
from .prepared import InputSet, PreparedWorkload
from .rpc import Rejected
from .throttling import ThrottlingFilter
from .timed_function import TimedFunction
from .verification import FreshAnswers, Verification

DEVICE, EAGER, CPU = "handshake", "eager", "cpu"
"""The methods of a latency: of captured calls, of eager calls on a CUDA device, and on the CPU."""
_EXACT_NS, _EAGER_EXACT_NS, _EAGER_SHARE = 100.0, 2000.0, 0.03  # an uncertainty that suffices
_MAX_EAGER_CALLS, _FEW_PASSES = 128, 6
_MOVED_CALLS = 4  # with pages that have moved between requests; they are compared and not timed
_MAX_DISTURBED, _DISTURBED_SHARE = 20, 0.25  # of the passes of a function; a host and a driver disturb some
_ACTIVE_SHARE, _ACTIVE_NS = 0.1, 50_000  # of a pass, in which threads of the worker may run; the driver's do at times
_WRITE_BACK_BYTES_PER_NS = 6000  # of a device; a lower number allows more
_STRUCTURES, _STRUCTURE_BYTES = 128, 1 << 27  # sets of structural integers for the passes of a burst
_LATE_END_NS = 25_000  # a pass ends within this of its last digest, or something ran behind it
_TRUSTED_NULL_NS = 150.0  # by which a pass without calls may take longer than one of a trusted worker
_FRESH_SHARE, _FRESH_NS, _FRESH_EAGER_NS = 0.15, 2000.0, 12_000.0
"""By which honest calls may take longer in the order *fresh*: the device has had no time to load their code while it
waited for the clock. Measured on an H200: 13 % of 8 us, 7 % of 26 us. Beside eager calls the host launches two kernels
more."""
_SYSTEMATIC_NS = 40.0  # an allowance for errors of the method; not measured
_IMPOSSIBLE_ERRORS, _LEAST_SHARE = 5.0, 0.7
_ENOUGH_NOTHING = 96  # passes without calls and of empty kernels, and calls in the order *fresh*
_BURST_SECONDS = 0.1  # other judges wait meanwhile


@attrs.define
class _Series:
    """Nanoseconds of the calls of passes of one kind, and of passes without calls."""

    nothing: list[float]
    calls: list[float] = attrs.field(factory=list)
    is_host: bool = False
    """Whether calls run on the CPU, where other work delays single passes by far more than a call takes."""
    least_nothing_ns: float = math.inf
    """The time of a pass without calls in a trusted worker; no more is subtracted, beyond an allowance."""

    @property
    def overhead_ns(self) -> float:
        """Nanoseconds to subtract from each call."""
        if self.is_host:
            return min(self.nothing)
        return min(statistics.median(self.nothing), self.least_nothing_ns + _TRUSTED_NULL_NS)

    @property
    def latency_ns(self) -> float:
        """The median of the calls, without the overhead."""
        return statistics.median(self.calls) - self.overhead_ns

    @property
    def error_ns(self) -> float:
        """Half the 95 % interval of the latency, with an allowance for systematic errors."""
        return math.hypot(median_error(self.calls), median_error(self.nothing), _SYSTEMATIC_NS)


class Timer:
    """Times a function.

    Args:
        function: Its slots are bound.
        answers: The reference, which timed calls are compared with; None if there is none.
        may_capture: Whether CUDA graphs may be tried: a failed capture can leave the worker unusable.
        is_trusted: Whether the worker runs no code of a solution: nothing is verified.
    """

    def __init__(
        self,
        function: TimedFunction,
        answers: FreshAnswers | None = None,
        *,
        may_capture: bool = True,
        is_trusted: bool = False,
    ) -> None:
        self._function, self._is_trusted = function, is_trusted
        is_cuda = function.context.is_cuda
        self.method = CPU if not is_cuda else DEVICE if may_capture else EAGER
        self.verification = Verification(function, answers)
        self.verification.is_captured = self.method == DEVICE
        self._orders = (Order.COLD,) if is_trusted else (Order.COLD, Order.FRESH)
        self._series: dict[tuple[Launch, Order], _Series] = {}
        self._nothing: dict[Order, list[float]] = {}
        self._empty: list[float] = []
        self._least_ns = 0.0
        self._passes: Passes
        self._prepared: PreparedWorkload
        self._config: ResolvedEvalConfig
        self._base: InputSet
        self._structures: list[Mapping[str, torch.Tensor]] = [{}]
        self._current: Sequence[int] = (0,)
        self._seconds = self._exclusive_seconds = 0.0
        self._call_ns = 0.0
        self._disturbed = self._made = 0
        self._why: list[str] = []
        self._filter = ThrottlingFilter(function.context.watch)

    # -- preparation ---------------------------------------------------------------------------------

    def warm_up(self, prepared: PreparedWorkload, config: ResolvedEvalConfig) -> None:
        """Load the slots, call until compilers and caches have settled, and compose passes.

        Raises:
            NotCapturable: Time it in a fresh worker without captures.
            Rejected: The function raised.
            WorkerLost: The worker ended.
        """
        function, self._prepared, self._config = self._function, prepared, config
        self._base = function.load_all(prepared)
        self._redraw_structure()
        request = WarmUp(config.warmup_runs, config.measure_seconds / 4)
        self._call_ns = function.ask(request, Warm, extra_seconds=request.max_seconds).call_ns
        if not 0 <= self._call_ns < math.inf:
            raise WorkerLost("the worker answered a request to warm up with no duration", is_forgery=True)
        self._passes = Passes(function, prepared.recipes, self._base.inputs)
        self.verification.bind(self._passes, self._fixed)
        for launch, order in self._wanted():
            self._load(native.NOTHING, order, self._launch_of_nothing)
            self._load(native.SOLUTION, order, launch)
        if self._is_trusted and function.context.is_cuda:
            for order in Order:
                self._load(native.NOTHING, order, Launch.DEVICE)
            self._load(native.EMPTY, Order.COLD, Launch.DEVICE)

    @property
    def _launch_of_nothing(self) -> Launch:
        """A CUDA device launches passes without calls, also beside eager calls: an eager caller launches no digest."""
        return Launch.DEVICE if self._function.context.is_cuda else Launch.HOST

    def _load(self, kind: int, order: Order, launch: Launch) -> None:
        """Make a first pass of a kind, which loads code."""
        if launch is Launch.DEVICE:
            self._passes.compose(kind, order)
        self._run(kind, order, launch)

    def _wanted(self) -> list[tuple[Launch, Order]]:
        """The series to take; the first one decides the published latency."""
        eager = [(Launch.HOST, order) for order in (self._orders if self._function.context.is_cuda else (Order.COLD,))]
        return [(Launch.DEVICE, order) for order in self._orders] + eager if self.method == DEVICE else eager

    def _redraw_structure(self) -> None:
        """Draw the structural integers of the next passes: a plan that was made for others is of no use."""
        if self._prepared.redraw is not None and not self._function.keeps_integers:
            begin, first = len(self._structures), self._prepared.redraw()
            size = max(sum(tensor.nbytes for tensor in first.values()), 1)
            count = max(1, min(_STRUCTURES, _STRUCTURE_BYTES // size))
            self._structures += [first, *(self._prepared.redraw() for _ in range(count - 1))]
            self._current = range(begin, len(self._structures))

    def _fixed(self, structure: int) -> torch.Tensor:
        """The inputs of a slot with these structural integers before others are generated, ``[bytes]``."""
        inputs = self._base.inputs.clone()
        write_tensors(self._function.layout.input_tensors(inputs), self._structures[structure])
        return inputs

    def changed_names(self) -> frozenset[str]:
        """The inputs whose values differ between timed calls."""
        return self._passes.names | frozenset(name for integers in self._structures for name in integers)

    # -- passes --------------------------------------------------------------------------------------

    def room_for(self, rounds: int) -> int:
        """The number of rounds that can follow each other while the judge has the device alone, at least one."""
        round_seconds = 2 * len(self._wanted()) * self._passes.calls * (self._call_ns + 1e5) / 1e9
        return max(1, min(rounds, int(_BURST_SECONDS / round_seconds), self.verification.room_for(3 * rounds) // 3))

    def sample(self) -> None:
        """Make one pass of each kind that is not yet precise; `verify` verifies them.

        Raises:
            Rejected: Something else ran meanwhile, again and again.
            WorkerLost: The worker ended.
        """
        context = self._function.context
        first = context.seconds()
        for launch, order in self._wanted():
            if not self._is_precise(launch, order):
                self._sample_nothing(order)
                self._sample_calls(launch, order)
        if self._is_trusted and context.is_cuda:
            self._sample_nothing(Order.FRESH)
            if len(self._empty) < _ENOUGH_NOTHING:
                self._empty += self._run(native.EMPTY, Order.COLD, Launch.DEVICE).taken_ns
        self._exclusive_seconds += context.seconds() - first
        self._seconds += context.seconds() - first

    def _sample_nothing(self, order: Order) -> None:
        """Make a pass without calls, unless there are as many as one needs."""
        taken = self._nothing.setdefault(order, [])
        if len(taken) < _ENOUGH_NOTHING or 2 * len(taken) < len(self._series_of(Launch.DEVICE, order).calls):
            taken += self._run(native.NOTHING, order, self._launch_of_nothing).taken_ns

    def _series_of(self, launch: Launch, order: Order) -> _Series:
        nothing = self._nothing.setdefault(order, [])
        return self._series.setdefault((launch, order), _Series(nothing, is_host=self.method == CPU))

    def _sample_calls(self, launch: Launch, order: Order) -> None:
        begin = time.monotonic()
        made = self._run(native.SOLUTION, order, launch)
        self._made += 1
        if not self._is_trusted:
            self.verification.add(made)
        if self._is_undisturbed(made) and self._filter.accepts(begin):
            self._series_of(launch, order).calls += made.taken_ns

    def _run(self, kind: int, order: Order, launch: Launch) -> TimedPass:
        """Make a pass with new structural integers."""
        structures = [SECRET.choice(self._current) for _ in range(self._passes.calls)]
        return self._run_with(kind, order, launch, structures)

    def _run_with(self, kind: int, order: Order, launch: Launch, structures: Sequence[int]) -> TimedPass:
        places = self._function.layout.input_tensors(self._function.slots.inputs[: len(structures)])
        for name in self._structures[structures[0]]:  # others that share the slots have loaded theirs meanwhile
            places[name].copy_(torch.stack([self._structures[structure][name] for structure in structures]))
        is_watched = kind == native.SOLUTION and not self._is_trusted
        return self._passes.run(kind, order, launch, structures, is_watched=is_watched)

    def _is_undisturbed(self, made: TimedPass) -> bool:
        """Whether nothing else was on the device.

        Raises:
            Rejected: Something was, too often.
        """
        found = self._disturbance(made)
        if not found:
            return True
        self._disturbed += 1
        self._why.append(found)
        if self._disturbed <= max(_MAX_DISTURBED, _DISTURBED_SHARE * self._made):
            return False
        problem = f"background activity in {self._disturbed} timed passes: {found}; work must end when a call does"
        raise Rejected(EvaluationStatus.REWARD_HACK, problem)

    def _disturbance(self, made: TimedPass) -> str:
        if made.free_multiprocessors is not None:
            expected = torch.cuda.get_device_properties(self._function.context.device).multi_processor_count
            if made.free_multiprocessors < expected:
                missing = expected - made.free_multiprocessors
                return f"another kernel occupied {missing} of {expected} multiprocessors during the flush"
        if made.end_ns > _LATE_END_NS:
            return f"the device was busy for {made.end_ns / 1e3:.0f} us after the last call of a pass"
        if made.ran_seconds is not None:
            ran_ns = made.ran_seconds * 1e9
            if ran_ns > max(_ACTIVE_SHARE * sum(made.taken_ns), _ACTIVE_NS):
                return f"threads of the worker ran for {ran_ns / 1e3:.1f} us although it had nothing to do"
        return ""

    def verify(self) -> None:
        """Verify the passes since the last time, outside the exclusive time.

        Raises:
            NotCapturable: Outputs are missing, for which the capture may be to blame.
            Rejected: A pass was not the one that was composed, or inputs were changed.
        """
        begin = self._function.context.seconds()
        self.verification.verify()
        self._redraw_structure()
        self._seconds += self._function.context.seconds() - begin

    def finish(self) -> None:
        """Compare sampled calls with fresh answers of the reference; raises like `Verification.finish`."""
        if self._is_trusted:
            return
        if self.method == DEVICE and self._prepared.moved and not self._function.keeps_integers:
            self._structures.append({**self._structures[self._current[0]], **self._prepared.moved})
            structures = [len(self._structures) - 1] * self._passes.calls
            self.verification.add(self._run_with(native.SOLUTION, Order.COLD, Launch.DEVICE, structures), _MOVED_CALLS)
        self.verification.finish(self._prepared)

    # -- results -------------------------------------------------------------------------------------

    def is_done(self, max_seconds: float) -> bool:
        """Whether each kind of calls is precise, or it has taken too long."""
        series = [self._series_of(*each) for each in self._wanted()]
        if any(len(each.calls) < 2 or not each.nothing for each in series):
            return False
        return self._seconds > max_seconds or all(self._is_precise(*each) for each in self._wanted())

    def _is_precise(self, launch: Launch, order: Order) -> bool:
        series, config, is_device = self._series_of(launch, order), self._config, launch is Launch.DEVICE
        count, few = len(series.calls), min(config.iterations, _FEW_PASSES * self._passes.calls)
        if count < max(few, 2) or not series.nothing:
            return False
        if order is Order.FRESH:  # it is compared, not published
            return count >= (min(_ENOUGH_NOTHING, config.max_iterations) if is_device else few)
        if count >= (config.max_iterations if is_device else min(config.max_iterations, _MAX_EAGER_CALLS)):
            return True
        exact, least = (_EXACT_NS, 0.0) if is_device else (_EAGER_EXACT_NS, _EAGER_SHARE)
        return series.error_ns <= max(exact, max(config.confidence, least) * series.latency_ns)

    def _raised_ns(self, launch: Launch) -> float:
        """Nanoseconds by which the latency of the order *cold* is too low to be believed beside *fresh*."""
        cold, fresh = (self._series.get((launch, order)) for order in (Order.COLD, Order.FRESH))
        if cold is None or fresh is None or not (cold.calls and fresh.calls):
            return 0.0
        share = _FRESH_SHARE * fresh.latency_ns
        allowed = min(share, _FRESH_NS) if launch is Launch.DEVICE else max(share, _FRESH_EAGER_NS)
        allowed += self._write_back_ns
        return max(fresh.latency_ns - allowed - cold.latency_ns, 0.0)

    @property
    def _write_back_ns(self) -> float:
        """Nanoseconds for which inputs that were just made are written to memory while a call of *fresh* runs."""
        cache_bytes = torch.cuda.get_device_properties(self._function.context.device).L2_cache_size
        written = min(self._function.layout.size_bytes, cache_bytes) - cache_bytes // 4  # as much waits in the cache
        return max(written, 0) / _WRITE_BACK_BYTES_PER_NS

    def compare_with(self, trusted: Timer | None) -> None:
        """Subtract no more than what passes without calls take in a trusted worker, and publish no less than a kernel.

        A worker could slow its passes without calls down, and so shorten its latency.
        """
        if trusted is None or not trusted._empty:  # noqa: SLF001 the same class
            return
        known = {order: statistics.median(taken) for order, taken in trusted._nothing.items()}  # noqa: SLF001
        for (_, order), series in self._series.items():
            series.least_nothing_ns = known[order]
        self._least_ns = max(statistics.median(trusted._empty) - known[Order.COLD], 0.0)  # noqa: SLF001

    def measurement(self) -> Measurement:
        """The latency with its samples, one for each call.

        Raises:
            Rejected: It is less than nothing by far more than its uncertainty.
        """
        return self._measured(self._series[self._wanted()[0]], self.method, self._raised_ns(self._wanted()[0][0]))

    def eager_measurement(self) -> Measurement:
        """The call latency in the place of a device latency, beside a function that has no other."""
        return self._measured(self._eager, EAGER, self._raised_ns(Launch.HOST))

    def _measured(self, series: _Series, method: str, raised_ns: float = 0.0) -> Measurement:
        least_ns = self._least_ns if method == DEVICE else 0.0
        if (
            not series.is_host
            and series.latency_ns + raised_ns < _LEAST_SHARE * least_ns - _IMPOSSIBLE_ERRORS * series.error_ns
        ):
            problem = (
                f"impossible latency: {series.latency_ns / 1e3:.2f} +- {series.error_ns / 1e3:.2f} us by the judge's "
                f"clock; an empty kernel takes {least_ns / 1e3:.2f} us"
            )
            raise Rejected(EvaluationStatus.REWARD_HACK, problem)
        raised_ns += max(least_ns - series.latency_ns - raised_ns, 0.0)
        return Measurement(
            samples_ns=tuple(max(taken - series.overhead_ns + raised_ns, 1.0) for taken in series.calls),
            method=method,
            call_ns=max(self._eager.latency_ns + self._raised_ns(Launch.HOST), 1.0),
            overhead_ns=series.overhead_ns,
        )

    @property
    def _eager(self) -> _Series:
        return self._series[Launch.HOST, Order.COLD]

    def to_extra(self) -> dict[str, object]:
        """The timing fields of a trace beside the measurement."""
        extra: dict[str, object] = {
            **self.verification.to_extra(),
            "uncertainty_ms": self._series[self._wanted()[0]].error_ns / 1e6,
            "call_uncertainty_ms": self._eager.error_ns / 1e6,
            "orders_ms": {each.value: self._series[key, each].latency_ns / 1e6 for key, each in self._device_series()},
            "nodes": self._passes.nodes,
            "exclusive_ms": round(self._exclusive_seconds * 1e3, 3),
        }
        if raised_ns := self._raised_ns(self._wanted()[0][0]):
            extra["raised_ms"] = raised_ns / 1e6
        if self._disturbed:
            extra["disturbed_passes"] = self._disturbed
            extra["disturbances"] = self._why
        return {**extra, **self._filter.to_extra()}

    def _device_series(self) -> Sequence[tuple[Launch, Order]]:
        return [each for each in self._wanted() if each[0] is Launch.DEVICE]
