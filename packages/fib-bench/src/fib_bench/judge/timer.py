"""Timing of one function, and of a solution in turns with the reference and the baseline, so that a drift affects all.

Two latencies of a CUDA function are measured. The *device latency* is that of calls that were captured and are
launched by the device; the *call latency* is what an eager caller waits for, with calls that the host launches. On the
CPU there is only the latter, by the worker's own clock between the same words: it is not ranked. Each is the median
time of calls less that of passes without calls in the same process. The digest of large outputs states how long it
took: after a call, which has left part of them in memory, it takes longer, which is subtracted as well.

Device latencies are measured in both orders of key and flush (`passes`). That of *cold* is published, unless it is
too low beside that of *fresh*, in which nothing can be computed before the clock runs, but inputs are in the cache.

The workers of the reference and the baseline serve all workloads of a definition. Next to a solution their functions
read the same input memory. The reference also answers for calls of the solution that are verified.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import attrs
import torch
from fib_schema import Definition, EvaluationStatus, Solution

from ..config.model import ResolvedEvalConfig
from ..events import Phase
from ..inputs.synthesis import may_be_zero
from ..secure_random import SECRET
from ..timing.handshake import native
from ..timing.measurement import Measurement, median_error
from ..transport.messages import Warm, WarmUp
from ..worker.client import ForkServerClient, NotCapturable, Rejected, Worker, WorkerLost, end_all
from ..worker.outside_checks import BackgroundActivity
from .device import DeviceContext
from .functions import BoundFunction, FunctionWorker, InputsChanged, build_request
from .passes import MIN_VERIFIED, Answer, Launch, Order, Passes, Sample, TimedPass, Verification, is_paired
from .prepared import PreparedWorkload

DEVICE, EAGER, CPU = "handshake", "eager", "cpu"
"""The methods of a latency: of captured calls, of eager calls on a CUDA device, and on the CPU."""
_EXACT_NS, _EAGER_EXACT_NS, _EAGER_SHARE = 100.0, 3000.0, 0.05  # an uncertainty that suffices
_MAX_EAGER_CALLS, _FEW_EAGER_CALLS, _FEW_PASSES = 128, 15, 6
_MIN_PASSES, _UNEVEN = 3, 1.05  # where the mean of the slots' medians counts, and by how much it exceeds the median
_MAX_DISTURBED, _DISTURBED_SHARE = 20, 0.25  # of the passes of a function; a host and a driver disturb some
_ACTIVE_SHARE, _ACTIVE_NS = 0.1, 50_000  # of a pass, in which threads of the worker may run; the driver's do at times
_WRITE_BACK_BYTES_PER_NS = 6000  # of a device; a lower number allows more
_LATE_END_NS = 25_000  # a pass ends within this of its last digest, or something ran behind it
_TRUSTED_NULL_NS, _TRUSTED_NULL_SHARE = 150.0, 0.01  # by which one without calls may exceed that of a trusted worker
_MOST_NULL_NS, _NULL_BYTES_PER_NS = {Order.COLD: 10_000.0, Order.FRESH: 20_000.0}, 200.0
"""Without a trusted worker: of two words, a hash of the outputs and, in the order *fresh*, the inputs, far below the
bandwidth of any device. A device that takes longer has longer latencies for it."""
_FRESH_SHARE, _FRESH_NS, _FRESH_EAGER_NS, _TINY_NS = 0.15, 2000.0, 12_000.0, 1000.0
"""By which honest calls may take longer in the order *fresh*: the device has had no time to load their code while it
waited for the clock. Measured on an H200: 13 % of 8 us, 7 % of 26 us, nothing of `_TINY_NS`. Beside eager calls the
host launches two kernels more."""
_LARGE_BYTES, _LONGER_SHARE = 1 << 20, 0.3  # of outputs: smaller ones stay in the cache; 5 to 25 % were measured
_SYSTEMATIC_NS, _EMPTY_CALL_NS = 100.0, 50.0  # an allowance for differences between processes; an empty function
_IMPOSSIBLE_ERRORS, _LEAST_SHARES = 5.0, {Order.COLD: 0.7, Order.FRESH: 0.5}
"""Of a least call, which reads from memory; in *fresh* inputs lie in the cache. A lower latency is impossible."""
_TOLD_BYTES = 1 << 20  # of inputs and outputs; to write more takes passes of *fresh* without calls some time
_ENOUGH_NOTHING, _ENOUGH_OTHER = 64, 32  # calls of passes without calls; of those in the order *fresh*, and least calls
_BURST_SECONDS = 0.1  # other judges wait meanwhile
_MOST_LINES = 3  # of a solution in a message
_MAX_THROTTLED = 20  # passes that do not count; a device that is throttled for longer is as slow as it is
SOLUTION, REFERENCE, BASELINE, GENERATOR = "solution", "reference", "baseline", "generator"
"""The roles. A generator makes inputs and is not timed."""
_ROUNDS, _FURTHER_ROUNDS = 6, 3  # of passes in the first burst and in each further one
_REFERENCE_SHARE, _TOGETHER_SHARE = 0.5, 2.0  # of `measure_seconds`: for the reference, and for all together
_TIMEOUT_SHARE = 0.3  # of the bound on a request, for timing one function


@attrs.define
class _Series:
    """Nanoseconds of the calls of passes of one kind, and of passes without calls."""

    nothing: list[float]
    most_nothing_ns: float
    """No more is subtracted, but for a longer digest."""
    is_host: bool
    """Whether calls run on the CPU, where other work delays single passes by far more than a call takes."""
    nothing_digests: list[float]
    """Nanoseconds of digests, in passes without calls and with them, where outputs are large."""
    digests: list[float] = attrs.field(factory=list)
    calls: list[float] = attrs.field(factory=list)

    @property
    def overhead_ns(self) -> float:
        """Nanoseconds to subtract from each call."""
        if self.is_host:
            return min(self.nothing)
        found, longer = min(statistics.median(self.nothing), self.most_nothing_ns), 0.0
        if self.digests and self.nothing_digests:
            usual = statistics.median(self.nothing_digests)
            longer = min(statistics.median(self.digests) - usual, _LONGER_SHARE * min(usual, found))
        return found + longer

    @property
    def latency_ns(self) -> float:
        """The median of the calls, without the overhead."""
        return statistics.median(self.calls) - self.overhead_ns

    def uneven_ns(self, slots: int) -> float:
        """Nanoseconds by which the slots' mean exceeds the median, where some calls of a pass work for the others."""
        if len(self.calls) < _MIN_PASSES * slots:
            return 0.0
        medians = (statistics.median(self.calls[slot::slots]) for slot in range(slots))
        mean_ns = statistics.fmean(medians) - self.overhead_ns
        return mean_ns - self.latency_ns if mean_ns > _UNEVEN * self.latency_ns else 0.0

    @property
    def sampling_error_ns(self) -> float:
        """Half the 95 % interval of the latency in this process."""
        return median_error(self.calls, self.nothing)

    @property
    def error_ns(self) -> float:
        """The same, with an allowance for differences between processes."""
        return math.hypot(self.sampling_error_ns, _SYSTEMATIC_NS)


class Timer:
    """Times a function, which it warms up and captures first.

    Args:
        may_capture: Whether CUDA graphs may be tried: a failed capture can leave the worker unusable.
        is_trusted: Whether the worker runs no code of a solution: nothing is verified.
        is_compared: Whether `finish` compares timed calls with answers of the reference, and a latency that is
            impossible rejects the function: it is the solution's.
    """

    def __init__(
        self,
        function: BoundFunction,
        prepared: PreparedWorkload,
        config: ResolvedEvalConfig,
        *,
        may_capture: bool = True,
        is_trusted: bool = False,
        is_compared: bool = False,
    ) -> None:
        self._function, self._prepared, self._config = function, prepared, config
        self._is_trusted, self._is_compared, self._is_cuda = is_trusted, is_compared, function.context.is_cuda
        self.method = CPU if not self._is_cuda else DEVICE if may_capture else EAGER
        eager_orders = (Order.COLD,) if is_trusted or not self._is_cuda else (*Order,)
        eager = [(Launch.HOST, order) for order in eager_orders]
        self._wanted = [*((Launch.DEVICE, order) for order in Order), *eager] if self.method == DEVICE else eager
        """The series to take; the first one decides the published latency."""
        self._paired = {order for launch, order in self._wanted if is_paired(native.SOLUTION, order, launch)}
        self._nothing: dict[Order, list[float]] = {order: [] for order in Order}
        self._nothing_digests: dict[Order, list[float]] = {order: [] for order in Order}
        hash_ns = function.layout.size_bytes / _NULL_BYTES_PER_NS
        most_ns = {order: least + hash_ns for order, least in _MOST_NULL_NS.items()}
        nothing, digests, is_host = self._nothing, self._nothing_digests, self.method == CPU
        self._series = {k: _Series(nothing[k[1]], most_ns[k[1]], is_host, digests[k[1]]) for k in self._wanted}
        self._least: list[float] = []
        self._least_ns = self._least_error_ns = 0.0
        self._seconds = self._exclusive_seconds = 0.0
        self._made = self._throttled = 0
        self._disturbances: list[str] = []
        self._clocks: list[int] = []
        function.load_all(prepared.trials[0].inputs)
        self._call_ns = self._warm_up()
        redraw = None if function.keeps_integers else prepared.redraw
        self.passes = Passes(function, prepared.recipes, prepared.trials[0].inputs, redraw, self._call_ns)
        self.verification = Verification(
            function, self.passes, prepared, is_captured=self.method == DEVICE, is_compared=is_compared
        )
        self._load_code()

    def _warm_up(self) -> float:
        """Call until compilers and caches have settled; returns the nanoseconds of a call, as the worker reports."""
        request = WarmUp(self._config.warmup_runs, self._config.measure_seconds / 4)
        call_ns = self._function.ask(request, Warm, extra_seconds=request.max_seconds).call_ns
        if not 0 <= call_ns < math.inf:
            raise WorkerLost("the worker answered a request to warm up with no duration", is_forgery=True)
        return call_ns

    def _load_code(self) -> None:
        for launch, order in self._wanted:
            if self._is_cuda and order not in self._paired:
                self._load(native.NOTHING, order, Launch.DEVICE)
            self._load(native.SOLUTION, order, launch)
        if self.passes.reads:
            self._confirm_reads(self.passes.reads)
        if self._is_trusted and self._is_cuda:
            for order in set(Order) - {order for _, order in self._wanted}:
                self._load(native.NOTHING, order, Launch.DEVICE)
            self._load(native.LEAST, Order.COLD, Launch.DEVICE)

    def _confirm_reads(self, reads: Sequence[str]) -> None:
        """Compare replays, which have what a call has read from the device before, with eager calls.

        `NotCapturable` if they differ, or would leave work to the host that is all of an output's.
        """
        function, where = self._function, ", ".join(reads[:_MOST_LINES])
        if names := self._prepared.structural_outputs:
            raise NotCapturable(f"reads from the device in {where}, and {names[0]!r} depends on integers alone")
        if function.has_setup:
            raise NotCapturable(f"waits for the device in {where}, beside a setup")
        if self._is_compared:  # timed calls are compared themselves
            return
        check = Verification(function, self.passes, self._prepared, is_captured=False, is_compared=True)
        check.add(self._run(native.SOLUTION, Order.COLD, Launch.DEVICE), Sample.MOVED)
        try:
            check.finish(function.call_each)
        except Rejected as error:
            raise NotCapturable(f"waits for the device in {where} of computed values") from error

    def _load(self, kind: int, order: Order, launch: Launch) -> None:
        if launch is Launch.DEVICE:
            self.passes.compose(kind, order)
        self.passes.run(kind, order, launch, is_watched=False, is_new=False)

    # -- passes --------------------------------------------------------------------------------------

    def room_for(self, rounds: int) -> int:
        """The number of rounds that can follow each other while the judge has the device alone, at least one."""
        round_seconds = 2 * len(self._wanted) * self.passes.calls * (self._call_ns + 6e4) / 1e9
        return max(1, min(rounds, int(_BURST_SECONDS / round_seconds), self.verification.room_for(3 * rounds) // 3))

    def sample(self) -> None:
        """Make one pass of each kind that is not yet precise; `verify` verifies them."""
        begin = time.monotonic()  # the judge has the device alone
        for launch, order in self._wanted:
            if not self._is_precise(launch, order):
                self._sample_nothing(order)
                self._sample_calls(launch, order)
        for _ in range(max(1, _ENOUGH_OTHER // self.passes.calls) if self._is_trusted and self._is_cuda else 0):
            self._sample_nothing(Order.FRESH)
            if len(self._least) < _ENOUGH_NOTHING:
                since = time.monotonic()
                made = self._run(native.LEAST, Order.COLD, Launch.DEVICE)
                is_counted = not self._disturbance(made) and not self._is_throttled(since)
                self._least += made.taken_ns if is_counted else ()
        taken = time.monotonic() - begin
        self._exclusive_seconds += taken
        self._seconds += taken

    def _sample_nothing(self, order: Order) -> None:
        """Make a pass without calls, unless there are as many as one needs."""
        taken = self._nothing[order]
        if order not in self._paired and len(taken) < (_ENOUGH_NOTHING if order is Order.COLD else _ENOUGH_OTHER):
            launch = Launch.DEVICE if self._is_cuda else Launch.HOST  # an eager caller launches no digest
            made = self._run(native.NOTHING, order, launch)
            self._nothing_digests[order] += self._digest_ns(made.digests, made.taken_ns)
            taken += made.taken_ns

    def _sample_calls(self, launch: Launch, order: Order) -> None:
        begin = time.monotonic()
        made = self._run(native.SOLUTION, order, launch)
        self._made += 1
        if not self._is_trusted:
            is_published = (launch, order) == self._wanted[0]
            self.verification.add(made, Sample.PUBLISHED if is_published else Sample.OTHER)
        if self._is_undisturbed(made) and not self._is_throttled(begin):
            skipped = int(launch is Launch.HOST and self._is_cuda and self.passes.calls > 1)  # it finds an idle host
            self._series[launch, order].calls += made.taken_ns[skipped:]
            self._series[launch, order].digests += self._digest_ns(made.digests, made.taken_ns)[skipped:]
            self._nothing[order] += made.nothing_ns
            self._nothing_digests[order] += self._digest_ns(made.nothing_digests, made.nothing_ns)

    def _digest_ns(self, digests: Sequence[int], taken_ns: Sequence[int]) -> list[int]:
        """Durations of digests that differ by the place of what they read; 0 in place of more than its call took."""
        if not self._is_cuda or self.passes.output_bytes < _LARGE_BYTES:
            return []
        return [ns if ns <= most else 0 for ns, most in zip(native.digest_ns(digests), taken_ns, strict=True)]

    def _run(self, kind: int, order: Order, launch: Launch) -> TimedPass:
        return self.passes.run(kind, order, launch, is_watched=kind == native.SOLUTION and not self._is_trusted)

    def _is_throttled(self, begin: float) -> bool:
        """Whether the device ran below its usual clock since then; not told without a monitor, or after many passes."""
        if (watch := self._function.context.watch) is None:
            return False
        self._clocks.append(watch.clock_mhz(begin))
        is_throttled = watch.was_throttled(begin) and self._throttled < _MAX_THROTTLED
        self._throttled += is_throttled
        return is_throttled

    def _is_undisturbed(self, made: TimedPass) -> bool:
        """Whether nothing else was on the device."""
        if not (found := self._disturbance(made)):
            return True
        self._disturbances.append(found)
        count = len(self._disturbances)
        if count <= max(_MAX_DISTURBED, _DISTURBED_SHARE * self._made):
            return False
        problem = f"background activity in {count} timed passes: {found}; work must end when a call does"
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
        """Verify the passes since the last time, outside the exclusive time."""
        begin = self._function.context.seconds()
        self.verification.verify()
        self.passes.redraw()
        self._seconds += self._function.context.seconds() - begin

    def finish(self, answer: Answer) -> None:
        """Compare sampled calls with fresh answers of the reference; raises like `Verification.finish`."""
        if self.method == DEVICE and self._prepared.moved and not self._function.keeps_integers:
            self.passes.replace(self._prepared.moved)
            self.verification.add(self._run(native.SOLUTION, Order.COLD, Launch.DEVICE), Sample.MOVED)
        self.verification.finish(answer)

    # -- results -------------------------------------------------------------------------------------

    def is_done(self, max_seconds: float) -> bool:
        """Whether each kind of calls is precise, or it has taken too long."""
        if any(len(each.calls) < 2 or not each.nothing for each in self._series.values()):
            return False
        return self._seconds > max_seconds or all(self._is_precise(*each) for each in self._wanted)

    def _is_precise(self, launch: Launch, order: Order) -> bool:
        series, config, is_device = self._series[launch, order], self._config, launch is Launch.DEVICE
        count, few = len(series.calls), min(config.iterations, _FEW_PASSES * self.passes.calls)
        most = config.max_iterations if is_device else min(config.max_iterations, _MAX_EAGER_CALLS)
        if (launch, order) != self._wanted[0]:  # it is compared, or beside a device latency
            few, most = min(few, _ENOUGH_OTHER if is_device else _FEW_EAGER_CALLS), most // 2
        elif is_device and not self._is_trusted and config.max_iterations > few:
            few = max(few, _MIN_PASSES * self.passes.calls)
        if count < max(few, 2) or not series.nothing:
            return False
        if order is Order.FRESH or count >= most:
            return True
        exact, least = (_EXACT_NS, 0.0) if is_device else (_EAGER_EXACT_NS, _EAGER_SHARE)
        return series.sampling_error_ns <= max(exact, max(config.confidence, least) * series.latency_ns)

    def _raised_ns(self, launch: Launch) -> float:
        """Nanoseconds by which the median of the order *cold* is too low to be believed, beside *fresh* or by slots."""
        cold, fresh = (self._series.get((launch, order)) for order in (Order.COLD, Order.FRESH))
        if cold is None or not cold.calls:
            return 0.0
        uneven_ns = cold.uneven_ns(self.passes.calls) if launch is Launch.DEVICE else 0.0
        if fresh is None or not fresh.calls:
            return uneven_ns
        allowed = max(_FRESH_SHARE * fresh.latency_ns, _FRESH_EAGER_NS)
        if launch is Launch.DEVICE:
            allowed = min(_FRESH_SHARE * max(fresh.latency_ns - _TINY_NS, 0.0), _FRESH_NS)
        # inputs that were just made are written to memory while a call of *fresh* runs, but for what waits in the cache
        cache_bytes = torch.cuda.get_device_properties(self._function.context.device).L2_cache_size
        written = max(min(self._function.layout.size_bytes, cache_bytes) - cache_bytes // 4, 0)
        return max(fresh.latency_ns - allowed - written / _WRITE_BACK_BYTES_PER_NS - cold.latency_ns, uneven_ns)

    def compare_with(self, trusted: Timer | None) -> None:
        """Subtract no more than what passes without calls take in a trusted worker, and publish at least a least call.

        A worker could slow its passes without calls down, and so shorten its latency.
        """
        if trusted is None or not trusted._least:  # noqa: SLF001 the same class
            return
        known = {order: statistics.median(taken) for order, taken in trusted._nothing.items()}  # noqa: SLF001
        for (_, order), series in self._series.items():
            series.most_nothing_ns = known[order] + max(_TRUSTED_NULL_NS, _TRUSTED_NULL_SHARE * known[order])
        least_ns = statistics.median(trusted._least) - known[Order.COLD]  # noqa: SLF001
        self._least_error_ns = median_error(trusted._least, trusted._nothing[Order.COLD])  # noqa: SLF001
        self._least_ns = max(least_ns, 0.0) if self.passes.output_bytes else 0.0

    def measurement(self, method: str = "") -> Measurement:
        """The latency with its samples, one for each call.

        The method `EAGER` asks for the call latency in place of a device latency, beside a function without one.
        """
        method = method or self.method
        launch = Launch.DEVICE if method == DEVICE else Launch.HOST
        series, raised_ns = self._series[launch, Order.COLD], self._raised_ns(launch)
        self._check_possible()
        if method == DEVICE:
            raised_ns += max(self._least_ns - series.latency_ns - raised_ns, 0.0)
        eager = self._series[Launch.HOST, Order.COLD]
        return Measurement(
            samples_ns=tuple(max(ns - series.overhead_ns + raised_ns, _EMPTY_CALL_NS) for ns in series.calls),
            method=method,
            call_ns=max(eager.latency_ns + self._raised_ns(Launch.HOST), _EMPTY_CALL_NS),
            overhead_ns=series.overhead_ns,
            error_ns=series.error_ns,
            call_error_ns=eager.error_ns,
        )

    def _check_possible(self) -> None:
        """Reject a latency that no function can have; in the order *fresh* only one up to `_TOLD_BYTES`."""
        for (launch, order), series in self._series.items():
            is_told = order is Order.COLD or self._function.layout.size_bytes <= _TOLD_BYTES
            least_ns = _LEAST_SHARES[order] * self._least_ns if launch is Launch.DEVICE else 0.0
            bound_ns = least_ns - _IMPOSSIBLE_ERRORS * math.hypot(series.sampling_error_ns, self._least_error_ns)
            if is_told and self._is_compared and not series.is_host and series.latency_ns < bound_ns:
                problem = (
                    f"impossible latency in the order {order.value}: {series.latency_ns / 1e3:.2f} us by the judge's "
                    f"clock; a kernel that writes outputs after one read takes {self._least_ns / 1e3:.2f} us"
                )
                raise Rejected(EvaluationStatus.REWARD_HACK, problem)

    def graph_fields(self, *, is_padding_right: bool) -> dict[str, object]:
        """The fields of a trace's timing about CUDA graphs; none on the CPU.

        Integers and booleans are offsets, page numbers and masks, by which kernels choose their work: all must have
        changed that have several valid values, in passes or where calls with padded indices are right. Booleans are
        never drawn anew, nor offsets of requests that all have the same length. Where a definition allows empty
        requests, some of several must have been: engines fill up captured batches with such.
        """
        function, prepared = self._function, self._prepared
        if not function.context.is_cuda:
            return {}
        changed = self.passes.changed_names | (prepared.padded_integers if is_padding_right else frozenset())
        changed -= may_be_zero(prepared.checker.definition) - prepared.moved.keys()
        inputs = prepared.checker.definition.inputs
        names = prepared.layout.inputs.keys() - prepared.determined_integers - changed
        fixed = [name for name in names if (spec := inputs[name]).is_integer or spec.dtype == "bool"]
        verified = self.verification.compared[Sample.PUBLISHED]
        if self.method != DEVICE:
            problem = f"it was timed by the method {self.method!r}, which replays no captured call with changed inputs"
        elif waits := [*self.passes.reads, *self.passes.waits]:
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

    def to_extra(self) -> dict[str, object]:
        """The timing fields of a trace beside the measurement."""
        raised_ns = self._raised_ns(self._wanted[0][0])
        orders = {order: series for (launch, order), series in self._series.items() if launch is Launch.DEVICE}
        optional = {
            "host_reads": list(self.passes.reads),
            "waits": list(self.passes.waits),
            "raised_ms": raised_ns / 1e6,
            "disturbed_passes": len(self._disturbances),
            "disturbances": self._disturbances,
            "sm_clock_mhz": int(statistics.median(self._clocks)) if self._clocks else 0,
            "throttled_passes": self._throttled,
        }
        return {
            **self.verification.to_extra(),
            "orders_ms": {order.value: series.latency_ns / 1e6 for order, series in orders.items()},
            "nodes": self.passes.nodes,
            "exclusive_ms": round(self._exclusive_seconds * 1e3, 3),
            **{name: value for name, value in optional.items() if value},
        }


class Baselines:
    """The workers of a definition's reference and baseline, and of the function that makes inputs."""

    def __init__(self, server: ForkServerClient, context: DeviceContext, solutions: Mapping[str, Solution]) -> None:
        self._server, self._context, self._solutions = server, context, solutions
        self._workers: dict[str, FunctionWorker] = {}
        self._definition: str | None = None

    def worker(self, role: str, definition: Definition) -> FunctionWorker:
        """The worker of a role; it is started if there is none."""
        if self._definition != definition.name:
            with self._context.device_work():
                self.close()
            self._definition = definition.name
        if role not in self._workers:
            solution = self._solutions[definition.name] if role == BASELINE else None
            request = build_request(str(self._context.device), definition, solution)
            self._workers[role] = FunctionWorker(self._server, request, self._context)
        if not self._workers[role].is_ready:
            self._workers[role].build()
        return self._workers[role]

    @property
    def reference_worker(self) -> Worker | None:
        """The worker of the reference, which has never run code of a solution, if there is one now."""
        reference = self._workers.get(REFERENCE)
        return None if reference is None else reference.worker

    def roles(self, definition: Definition) -> tuple[str, ...]:
        """The roles that a definition has."""
        return (REFERENCE, BASELINE) if definition.name in self._solutions else (REFERENCE,)

    def baseline_has_setup(self, definition: Definition) -> bool:
        """Whether the baseline of a definition has a ``setup``."""
        try:
            return BASELINE in self.roles(definition) and self.worker(BASELINE, definition).has_setup
        except (WorkerLost, Rejected):
            return False

    def close(self) -> None:
        """End the workers."""
        end_all([function.worker for function in self._workers.values()])
        self._workers = {}
        self._definition = None


@attrs.define(eq=False)
class Interleaved:
    """A solution on one workload next to the reference and the baseline, which are bound to its inputs during a block.

    The slots of the solution are bound. The reference answers also where it is not timed.
    """

    _baselines: Baselines
    _solution: BoundFunction
    _prepared: PreparedWorkload
    _config: ResolvedEvalConfig
    _may_capture: bool = attrs.field(kw_only=True)
    _is_reference_timed: bool = attrs.field(kw_only=True)
    _functions: dict[str, BoundFunction] = attrs.field(init=False, factory=dict)
    _timers: dict[str, Timer] = attrs.field(init=False, factory=dict)
    failures: dict[str, str] = attrs.field(init=False, factory=dict)
    """Reason for not timing a role, by role."""
    failure: str = attrs.field(init=False, default="")
    """The reason why the reference answers no more; empty while it answers."""
    timer: Timer = attrs.field(init=False)
    """Of the solution."""

    @property
    def _definition(self) -> Definition:
        return self._prepared.checker.definition

    def __enter__(self) -> Self:
        solution, may_capture = self._solution, self._may_capture
        try:
            for role in self._baselines.roles(self._definition):
                self._try(role, self._open)
            with solution.context.phases.during(Phase.WARM_UP):
                self.timer = Timer(solution, self._prepared, self._config, may_capture=may_capture, is_compared=True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for function in self._functions.values():
            function.release()
        self._functions = {}

    def _try(self, role: str, step: Callable[[str], None]) -> None:
        """Make a step of a role; one that fails is timed without captures in a fresh worker, or left out."""
        try:
            try:
                step(role)
            except NotCapturable as error:
                worker = self._baselines.worker(role, self._definition)
                worker.not_captured[self._prepared.workload.uuid] = str(error)
                self._open(role)
        except (Rejected, WorkerLost) as error:
            self._timers.pop(role, None)
            self.failures[role] = str(error)

    def _open(self, role: str) -> None:
        worker = self._bind(role)
        if role == BASELINE or self._is_reference_timed:
            self._timers[role] = Timer(
                self._functions[role],
                self._prepared,
                self._config,
                may_capture=not worker.why_not_captured(self._prepared.workload.uuid),
                is_trusted=role == REFERENCE,
            )

    def _bind(self, role: str) -> FunctionWorker:
        """Bind a function; one that was bound before gets a fresh worker."""
        if (bound := self._functions.pop(role, None)) is not None:
            bound.worker.close()
            bound.release()
        worker, prepared = self._baselines.worker(role, self._definition), self._prepared
        function = BoundFunction(
            worker, prepared.layout, prepared.slots, shares_inputs_with=self._solution, prepared=prepared
        )
        self._functions[role] = function.__enter__()
        return worker

    def time(self, max_seconds: float, activity: BackgroundActivity) -> None:
        """Time the solution and the others in turns until all are precise. Others that fail are left out.

        `max_seconds` is the time for each function. The worker of the solution must be idle while others are timed.
        """
        context, rounds = self._solution.context, _ROUNDS
        seconds, begin = context.timeout_seconds, context.seconds()
        max_seconds = min(max_seconds, _TIMEOUT_SHARE * seconds)
        while True:
            if (elapsed := context.seconds() - begin) > seconds:
                raise WorkerLost(f"timing did not end within {seconds:g} s", is_timeout=True)
            is_done, is_late = self.timer.is_done(max_seconds), elapsed > _TOGETHER_SHARE * max_seconds
            share = 0.0 if is_done and is_late else _REFERENCE_SHARE
            waiting = [role for role, other in self._timers.items() if not other.is_done(share * max_seconds)]
            if not waiting and is_done:
                return
            self._time_burst([*([] if is_done else [SOLUTION]), *waiting], rounds, activity)
            rounds = _FURTHER_ROUNDS

    def _time_burst(self, roles: Sequence[str], rounds: int, activity: BackgroundActivity) -> None:
        """Have the device alone for some passes of each, then verify them."""
        rounds = min(self._timers.get(role, self.timer).room_for(rounds) for role in roles)
        with self._solution.context.exclusive():
            for _ in range(rounds):
                for role in SECRET.sample(roles, len(roles)):  # the order shifts a latency by up to 2 %
                    self._sample(role, activity)
        for role in roles:
            self._advance(role, Timer.verify)

    def _sample(self, role: str, activity: BackgroundActivity) -> None:
        """Time a pass of each kind of a role; on the CPU nothing else tells whether the solution is idle."""
        is_watched = role != SOLUTION and not self._solution.context.is_cuda
        if is_watched:
            activity.begin()
        self._advance(role, Timer.sample)
        if is_watched:
            activity.end()

    def _advance(self, role: str, step: Callable[[Timer], None]) -> None:
        """Make a step of a timer, unless its function is left out since an earlier round."""
        if role == SOLUTION:
            step(self.timer)
        elif role in self._timers:
            self._try(role, lambda role: step(self._timers[role]))

    def measurements(self) -> dict[str, Measurement]:
        """The latencies by role, of the same kind as that of the solution."""
        trusted = self._timers.get(REFERENCE)
        for timer in (self.timer, *self._timers.values()):
            timer.compare_with(trusted if timer is not trusted else None)
        found = {}
        for role, timer in self._timers.items():
            if timer.method == self.timer.method:
                found[role] = timer.measurement()
            elif self.timer.method == DEVICE:
                worker = self._baselines.worker(role, self._definition)
                reason = worker.why_not_captured(self._prepared.workload.uuid)
                self.failures[role] = f"it has no device latency: {reason or 'it cannot be captured'}"
            else:
                found[role] = timer.measurement(EAGER)
        return found

    def answer(self, inputs: torch.Tensor) -> torch.Tensor | None:
        """Call the reference as `Answer` says, once more in a fresh worker if it fails; None if it fails again."""
        reason = ""
        for is_again in (False, True):
            try:
                if is_again or REFERENCE not in self._functions:
                    self._bind(REFERENCE)
                return self._functions[REFERENCE].call_each(inputs)
            except InputsChanged as error:
                if is_again:
                    problem = "inputs of the reference were overwritten: only the judge and two workers can write there"
                    raise Rejected(EvaluationStatus.REWARD_HACK, problem) from error
            except (Rejected, WorkerLost) as error:
                reason = str(error)
        self.failure = f"the reference failed twice on inputs of timed calls: {reason}"
        return None
