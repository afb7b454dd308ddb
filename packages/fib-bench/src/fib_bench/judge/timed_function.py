"""One function on one workload: its worker, its slots, and the samples taken so far.

The solution is one side, the reference and a named baseline are others. Every side is fed, checked
and timed by the same code. What its worker says about itself is a claim; what lies in its slots is
not.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeAlias

import attrs
import msgspec
import torch
from fib_schema import EvaluationStatus

from ..checking.comparison import Comparison
from ..config.model import ResolvedEvalConfig
from ..evaluators.protocol import Observation, Verdict
from ..inputs.variation import vary
from ..secure_random import SECRET
from ..timing import Measurement, StopRule
from ..timing.cuda import HIDING_NS
from ..transport.protocol import (
    Bound,
    Call,
    Called,
    CollectAgain,
    CollectedAgain,
    HasSetUp,
    Profile,
    Profiled,
    Release,
    Released,
    Repeat,
    Repeated,
    Sample,
    Sampled,
    SetUp,
    Warm,
    WarmUp,
)
from ..transport.rpc import Implausible, NotCapturable, Rejected, ask
from ..transport.slots import CallLayout, Slots
from ..worker.client import Worker, WorkerLost
from .cpu_time import IdleMeter, Stopwatch, busy_share
from .device_context import Conditions
from .evidence import kept_answer, stale_answer
from .pass_timing import Alone, ClockedPass, ClockedPasses
from .phase_timer import Phase
from .prepared import InputSet, PreparedWorkload
from .setup_inputs import have_same_integers, other_floats

_POISONS = (0xC3, 0x5A)  # as floats of any width finite, large or odd; as integers large
_PASS_SECONDS = 0.2  # a pass is about no longer
_PLANTED = 8  # one of so many timed calls is verified, on average
_MOST_PLANTED = 2.0  # in one pass: comparing costs more than calling
_ASKING_CHANCE, _ASKING_SHARE, _ASKING_SECONDS = 0.25, 0.2, 0.02
_ASKING_AT_FIRST = 0.8  # until there are enough: asking costs less in a pass that is made anyway than in one of its own
_ASKS_ALONE = 6  # calls that do each other's work are right in chains, and wrong alone: most of them
_LEAST_ASKED = 4  # unless that takes too long
_MOST_ASKING_SECONDS = 0.3  # in an audit
_FEW_CALLS_NS = 2e6  # of functions that take longer there are few calls,
_PLANTED_OF_FEW = 4  # of which one of so many is planted: these inputs come again, and a median must not rest on them
_DISCARDED_PASSES = 20  # throttled for longer, the device is as slow as it is
_AUDIT_SECONDS = 0.001
_AUDIT_TRIES = 4
_PASS_PAUSES = {"cpu": (*(0.0,) * 8, 0.05, 0.2), "cuda": (*(0.0,) * 12, 0.05, 0.2, 0.5, 1.0, 2.0)}
"""By kind of device: on the CPU what does not hold is timed anew."""
_ALIKE = 8.0
_LONG_NS = 5e6  # passes of longer calls need no slope: what a request costs does not show
_REQUEST_NS = 4e6  # a request with its answer, on a busy machine
_COLLECT_NS = 30_000.0  # checking what a call returned
_COPY_BYTES_PER_NS = 1.0  # and copying it, and before that revealing the inputs
_REVEAL_BYTES_PER_NS = 6.0
_WORK_FACTOR, _REQUEST_WORK_NS = 3.0, 2e6  # in processor time
_TOGETHER_SECONDS, _MOST_TOGETHER_SECONDS = 2.0, 20.0  # for calls on the same inputs: while cheap, and in any case
_LATE_SECONDS = 0.05  # what is written later than that after the return goes unnoticed as such
_REST_SECONDS = 0.05
_SUSPICIOUS = {"cpu": 0.25, "cuda": 0.5}  # of its rest that a worker runs, before a closer look
_LOOKS = ((0.02, 0.02), (0.3, 0.1), (2.0, 0.2), (8.0, 0.2))
"""Seconds to wait and to look: pools of threads spin for up to 0.2 s, and those of compilers start for seconds."""
_BUSY_SHARE = 0.5
_AS_BEFORE = "the outputs are untouched, which they were not when the same function was called before it was timed"


class InputsChanged(Rejected):
    """Somebody has written to inputs."""


Referee: TypeAlias = Callable[[int, torch.Tensor], InputSet]
"""Says what must have come out of a slot with these inputs; raises `RefereeFailed`."""


class RefereeFailed(Exception):
    """The reference did not answer about a timed call."""


@attrs.frozen(eq=False)
class _Pass:
    """A pass under way."""

    used: int
    """How many slots, from the first one on."""
    planned: Mapping[int, InputSet]
    """What is planted, by slot."""
    given: Mapping[int, torch.Tensor]
    """The inputs of slots about which the referee will be asked."""
    before: Mapping[int, torch.Tensor]
    """What was in the slots to be looked at."""


class Side:
    """One function on one workload.

    Args:
        worker: Holds the built function.
        layout: Where the tensors of a call lie.
        slots: Calls of one timed pass.
        conditions: What holds on this device.
        beside: A side to compare with, which outlives this one: both read the same input memory.
        has_setup: Whether the function is to be set up on a slot before it is called there.
        keeps_integers: Whether timed calls get the same integers in a slot each time, which `has_setup` implies,
            on this side and on that beside it.
    """

    def __init__(
        self,
        worker: Worker,
        layout: CallLayout,
        slots: int,
        conditions: Conditions,
        *,
        beside: Side | None = None,
        has_setup: bool = False,
        keeps_integers: bool = False,
    ) -> None:
        self.worker = worker
        self.layout = layout
        self._conditions = conditions
        self._beside = beside
        self._slots: Slots = Slots(layout, slots, conditions.device, None if beside is None else beside._slots)  # noqa: SLF001
        self._warm = Warm("host", 1, 0.0, 0.0)
        self._warm_up = WarmUp(1, 0.0, False, 0)
        self._times_anew = 0
        self.is_warm = False
        """Whether it can be timed."""
        self._samples: list[float] = []
        self._discarded = 0
        self._clocked = ClockedPasses()
        self._outside_claim_ns = math.nan
        self._seconds = 0.0
        self._device_ns = 0.0
        self._shown: list[InputSet] = []
        self._asked_seconds = 0.0
        self.referee: Referee | None = None
        """Asked about timed calls, about which else nobody knows what is right."""
        self.asked = 0
        """Timed calls about which the reference was asked."""
        self._clocks: list[int] = []
        self.has_setup = has_setup
        self.keeps_integers: bool = has_setup or keeps_integers or (beside is not None and beside.keeps_integers)
        self._setup_ns: list[float] = []
        self._called: list[InputSet] = []
        self._called_slot = 0
        self._fastest_call_ns = math.inf
        self._plantable: Sequence[InputSet] = ()
        self._idle: IdleMeter | None = None
        self.comparisons: list[Comparison] = []
        self._observed: list[Observation] = []
        self.findings: dict[str, Mapping[str, object]] = {}
        """What was seen in the outputs of many calls together."""

    def __enter__(self) -> Self:
        try:
            ask(self.worker, self._slots.message, Bound, self._timeout, self._slots.descriptors)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        """Have the worker forget the slots, and give their memory back; a worker that will not is ended."""
        self.worker.take_turns()
        try:
            ask(self.worker, Release(), Released, self._timeout)
        except (WorkerLost, Rejected):
            self.worker.close()
        self._slots.close()

    @property
    def _timeout(self) -> float:
        return self._conditions.timeout_seconds

    # -- single calls ----------------------------------------------------------------------------

    def call(self, item: InputSet, slot: int | None = None, *, setup_sees_values: bool = False) -> torch.Tensor:
        """Call once on a set; returns a copy of the outputs' memory.

        Args:
            item: The inputs.
            slot: Where; None is a slot that nobody can foresee.
            setup_sees_values: Whether the function is set up on these very inputs, which it must not need.

        Raises:
            Rejected: It raised, or wrote to its inputs.
            WorkerLost: It took its worker down.
        """
        slot = self._called_slot = SECRET.randrange(self._slots.count) if slot is None else slot
        if self.has_setup:
            self._set_up([slot], item.inputs if setup_sees_values else other_floats(self.layout, item.inputs))
        self._slots.load(slot, item.inputs)
        self._slots.outputs[slot].fill_(_POISONS[0])
        self._synchronise()
        begin = time.perf_counter_ns()
        ask(self.worker, Call(slot), Called, self._timeout)
        self._fastest_call_ns = min(self._fastest_call_ns, time.perf_counter_ns() - begin)
        outputs = self._slots.outputs[slot].clone()  # what is written from now on does not count
        self._check_inputs(slot, item)
        return outputs

    def check(self, item: InputSet, where: str) -> torch.Tensor:
        """Call once on a set and compare; returns a copy of the outputs' memory.

        Raises:
            Rejected: The outputs are wrong, or it raised.
            WorkerLost: It took its worker down.
        """
        outputs = self.call(item)
        try:
            self.compare(item, outputs, where)
        except Rejected as error:
            evidence = kept_answer(outputs, self.layout, item, self._called) or self._ask_for_evidence(item)
            raise error.with_evidence(evidence) from error
        self._called.append(item)
        return outputs

    def _ask_for_evidence(self, item: InputSet) -> str:
        """Whether a wrong output becomes right by waiting, or by letting `setup` see the values."""
        try:
            time.sleep(_LATE_SECONDS)
            ask(self.worker, CollectAgain(), CollectedAgain, self._timeout)
            if item.is_right(self.layout, self._slots.outputs[self._called_slot]):
                return "soon afterwards the outputs were right: they were written after the call had returned"
            if self.has_setup and item.is_right(self.layout, self.call(item, setup_sees_values=True)):
                return "the outputs are right where setup() got the same floating values: it computes the answer"
        except (Rejected, WorkerLost):
            pass  # it fails for another reason now, which does not matter any more
        return ""

    def _set_up(self, slots: Sequence[int], inputs: torch.Tensor) -> None:
        """Have the function set up on slots that hold these inputs."""
        for slot in slots:
            self._slots.load(slot, inputs)
        self._synchronise()
        reply = ask(self.worker, SetUp(tuple(slots)), HasSetUp, self._timeout)
        if len(reply.taken_ns) != len(slots) or not all(0 <= taken < math.inf for taken in reply.taken_ns):
            raise WorkerLost(f"the worker answered a request to set up with {reply!r:.200}", is_forgery=True)
        self._setup_ns += reply.taken_ns

    def _check_inputs(self, slot: int, item: InputSet) -> None:
        if not torch.equal(self._slots.inputs[slot], item.inputs):
            problem = "an input tensor was changed; a function must not write to its inputs"
            raise InputsChanged(EvaluationStatus.RUNTIME_ERROR, problem)

    def compare(self, item: InputSet, outputs: torch.Tensor, where: str) -> None:
        """Compare outputs with those that are right for an input set.

        Raises:
            Rejected: They are wrong.
        """
        with self._conditions.ledger.during(Phase.CHECK):
            verdict = item.compare(self.layout, outputs)
        self._accept(verdict, where)
        self.comparisons += verdict.comparisons

    def _accept(self, verdict: Verdict, where: str) -> None:
        if verdict.problems:
            message = "\n".join(f"{where}: {problem}" for problem in verdict.problems)
            raise Rejected(EvaluationStatus.INCORRECT_NUMERICAL, message, verdict.comparisons)

    def check_together(self, prepared: PreparedWorkload) -> None:
        """Call many times on the same inputs and judge the outputs as a whole, where single ones say little.

        Raises:
            Rejected: They are wrong.
            WorkerLost: It took its worker down.
        """
        items = [item for item in prepared.bases if item.check.trials]
        if not items:
            return
        begin, seen = time.monotonic(), []
        for index in range(max(item.check.most_trials for item in items)):
            taken = time.monotonic() - begin
            is_enough = index >= max(item.check.trials for item in items)
            if taken > (_TOGETHER_SECONDS if is_enough else _MOST_TOGETHER_SECONDS):
                break
            for item in items:
                outputs = self.call(item)
                self.compare(item, outputs, f"call {index} of many on the same inputs")
                seen.append(item.observe(self.layout, outputs))
        self._judge_together(prepared, seen, "many calls on the same inputs")

    def check_timed_together(self, prepared: PreparedWorkload) -> None:
        """Judge the outputs of all timed calls that were checked, where single ones say little.

        Raises:
            NotCapturable: They are wrong by graphs, which another method may not be.
            Rejected: They are wrong.
        """
        try:
            self._judge_together(prepared, self._observed, "timed calls")
        except Rejected as error:
            self._reject_timed(error)

    def _judge_together(self, prepared: PreparedWorkload, seen: Sequence[Observation], where: str) -> None:
        if seen:
            verdict = prepared.standard.judge_together(seen)
            self._accept(verdict, where)
            self.findings[where] = verdict.extra

    # -- timed calls -----------------------------------------------------------------------------

    def warm_up(
        self,
        prepared: PreparedWorkload,
        config: ResolvedEvalConfig,
        *,
        may_capture: bool,
    ) -> None:
        """Have it settle, and learn how it will be timed.

        What takes about as long as the side that it is compared with is timed in chains of the same length.

        Args:
            prepared: The workload.
            config: The settings in force.
            may_capture: Whether CUDA graphs may be tried.

        Raises:
            NotCapturable: A fresh worker is needed, without graphs.
            Rejected: It raised.
            WorkerLost: It took its worker down.
        """
        self._load_all(prepared)
        self._refresh(prepared)
        if self._conditions.device.type == "cpu":
            self.worker.go_first()
        self._settle(WarmUp(config.warmup_runs, config.measure_seconds / 4, may_capture))
        self.is_warm = True

    def _settle(self, request: WarmUp) -> None:
        """Have it warm up in this way, and remember it."""
        self._warm_up, self._warm = request, self._answer_to(request)
        beside = self._beside
        if beside is not None and self._differs_only_in_chain(beside):
            self._warm = self._answer_to(msgspec.structs.replace(request, runs=1, chain=beside._warm.chain))  # noqa: SLF001

    def _answer_to(self, request: WarmUp) -> Warm:
        """What the worker says about a warm-up, if it is what a worker can say."""
        warm = ask(self.worker, request, Warm, self._timeout + request.max_seconds)
        self._conditions.calibration.of(warm.method, warm.chain)  # refuses what does not exist
        is_duration = 0 <= warm.call_ns < math.inf and 0 <= warm.host_ns < math.inf
        is_graph = warm.method == "graph" and not request.may_capture
        if not is_duration or is_graph or (request.chain == 1 and warm.chain != 1):
            raise WorkerLost(f"the worker answered a request to warm up with {warm!r:.200}", is_forgery=True)
        return warm

    def start_over(self) -> None:
        """Forget all samples and settle anew: the machine may have been busy.

        Raises:
            NotCapturable: A fresh worker is needed, without graphs.
            Rejected: It raised.
            WorkerLost: It took its worker down.
        """
        self._samples.clear()
        self._clocked.clear()
        self._seconds = self._asked_seconds = 0.0
        self.asked = 0
        self._settle(self._warm_up)
        self._times_anew += 1

    def _load_all(self, prepared: PreparedWorkload) -> None:
        """Put one set into all slots. A function that is set up on it gets no other integers from then on."""
        first, self._plantable = prepared.bases[0], prepared.variants
        if self.keeps_integers:
            first = prepared.variants[0]
            self._plantable = [item for item in prepared.variants if have_same_integers(self.layout, item, first)]
        if self.has_setup:
            self._setup_ns.clear()
            self._set_up(range(self._slots.count), other_floats(self.layout, first.inputs))
        self._slots.load(slice(None), first.inputs)

    def _differs_only_in_chain(self, other: Side) -> bool:
        ours, theirs = self._warm, other._warm
        is_alike = ours.call_ns <= _ALIKE * theirs.call_ns and theirs.call_ns <= _ALIKE * ours.call_ns
        return is_alike and ours.method == theirs.method and ours.chain != theirs.chain

    @property
    def method(self) -> str:
        """How it is timed."""
        return self._warm.method

    @property
    def call_ns(self) -> float:
        """About what a call takes."""
        return self._warm.call_ns

    def sample(
        self, prepared: PreparedWorkload, *, must_ask: bool = False, asks: int = 1, most_chains: int = sys.maxsize
    ) -> None:
        """Time one pass over the slots, and verify some of the timed calls, which nobody could foresee.

        Args:
            prepared: The workload.
            must_ask: Ask the referee about a call in any case, rather than now and then.
            asks: About how many calls to ask, if so.
            most_chains: Chains to time at most.

        Raises:
            Rejected: The timed calls' outputs are wrong.
            WorkerLost: It took its worker down.
        """
        chain = self._warm.chain
        chains = max(1, min(self._slots.count // chain, int(_PASS_SECONDS * 1e9 / max(self.call_ns * chain, 1))))
        chains = min(chains, most_chains)
        first = time.monotonic()
        with self._conditions.ledger.during(Phase.INPUTS):
            begun = self._begin(prepared, chains * chain, must_ask, asks)
        key = SECRET.getrandbits(64) - (1 << 63)
        request = Sample(chains, key, self._slots.hide(prepared.varying, key, chains * chain))
        self._synchronise()
        begin = time.monotonic()
        samples_ns, outside_ns, work_ns = self._clock(request)
        claim_ns = statistics.median(self._per_call(samples_ns))
        is_verified = self._end(prepared, begun)
        self._clocked.append(
            ClockedPass(claim_ns=claim_ns, outside_ns=outside_ns, work_ns=work_ns, is_verified=is_verified)
        )
        self._device_ns += sum(samples_ns) + chains * (self._conditions.calibration.flush_ns + HIDING_NS)
        self._keep(samples_ns, begin)
        self._seconds += time.monotonic() - first

    def _begin(self, prepared: PreparedWorkload, used: int, must_ask: bool, asks: int = 1) -> _Pass:
        """Put fresh values into the slots, known ones into some, and choose what to look at."""
        planned = self._plan_plants(used)
        drawn = self._draw(used, planned, asks) if self._may_ask(must_ask) else []
        before = self._outputs_of([*planned, *drawn])
        self._refresh(prepared, used)
        self._plant(planned)
        return _Pass(used, planned, {slot: self._slots.inputs[slot].clone() for slot in drawn}, before)

    def _end(self, prepared: PreparedWorkload, begun: _Pass) -> bool:
        """Verify what the calls wrote: anything at all, and what is right; returns whether that is known of some."""
        after = self._outputs_of([*begun.before])
        self._verify_written(prepared, begun.used)
        known = {**begun.planned, **self._ask_about(begun.given)}
        for slot, item in known.items():
            self._verify(prepared, slot, item, begun.before[slot], after[slot])
        return bool(known)

    def _outputs_of(self, slots: Sequence[int]) -> dict[int, torch.Tensor]:
        """Copies of what is in slots: what is written from now on does not count."""
        return {slot: self._slots.outputs[slot].clone() for slot in slots}

    def _draw(self, used: int, planned: Mapping[int, InputSet], asks: int) -> list[int]:
        """Slots, of those to be used, about which the referee will be asked; nobody can foresee which."""
        others = [slot for slot in range(used) if slot not in planned]
        return SECRET.sample(others, min(asks, len(others)))

    @property
    def is_asked_enough(self) -> bool:
        """Whether the referee has been asked about some timed calls, or there is none, or it is too slow for more."""
        is_slow = bool(self.asked) and self._asked_seconds >= _MOST_ASKING_SECONDS
        return self.referee is None or self.asked >= _LEAST_ASKED or is_slow

    def _may_ask(self, must_ask: bool) -> bool:
        """Whether to ask the referee now: by chance, and as long as that takes little of the time."""
        if self.referee is None:
            return False
        if must_ask:
            return not self.asked or self._asked_seconds < _MOST_ASKING_SECONDS
        limit = max(_ASKING_SHARE * self._seconds, _ASKING_SECONDS)
        chance = _ASKING_CHANCE if self.asked >= _LEAST_ASKED else _ASKING_AT_FIRST
        return self._asked_seconds < limit and SECRET.random() < chance

    def _ask_about(self, given: Mapping[int, torch.Tensor]) -> dict[int, InputSet]:
        """What must have come out of slots with these inputs, as far as the referee knows."""
        begin, told = time.monotonic(), {}
        for slot, inputs in given.items():
            try:
                with self._conditions.ledger.during(Phase.REFERENCE):
                    told[slot] = self.referee(slot, inputs) if self.referee else None
            except RefereeFailed:
                self.referee = None
        self._asked_seconds += time.monotonic() - begin
        known = {slot: item for slot, item in told.items() if item is not None}
        self.asked += len(known)
        return known

    def _clock(self, request: Sample) -> tuple[tuple[float, ...], float, float]:
        """Have a pass made; returns the samples, and what the judge's clocks say of a call: outside, and its work."""
        self._idle = self._idle or IdleMeter(self.worker.pid)
        self._idle.wake()
        begin = time.monotonic()
        stopwatch = Stopwatch(self.worker.pid) if self._conditions.device.type == "cpu" else None
        reply = ask(self.worker, request, Sampled, self._timeout)
        if len(reply.samples_ns) != request.chains or not all(0 < s < math.inf for s in reply.samples_ns):
            problem = f"the worker answered a request to time {request.chains} samples with {reply!r:.200}"
            raise WorkerLost(problem, is_forgery=True)
        calls = request.chains * self._warm.chain
        if stopwatch is None:
            outside_ns, work_ns = (time.monotonic() - begin) * 1e9 / calls, math.nan
        else:
            outside_ns = stopwatch.taken_ns() / calls
            work_ns = stopwatch.ran_ns() / calls - self._work_around_ns(calls)
        self._idle.rest()
        return reply.samples_ns, outside_ns, work_ns

    def _refresh(self, prepared: PreparedWorkload, used: int | None = None) -> None:
        """New values in the first slots, or in all, and poison where outputs will be."""
        if prepared.varying:
            first, second = two_of(prepared.bases)
            generator = torch.Generator(self._conditions.device).manual_seed(SECRET.getrandbits(62))
            sources = (self.layout.input_tensors(first.inputs), self.layout.input_tensors(second.inputs))
            vary(self.layout.input_tensors(self._slots.inputs[:used]), *sources, prepared.varying, generator)
        self._slots.poison(_POISONS[1], used)
        self._synchronise()

    def _plan_plants(self, used: int) -> dict[int, InputSet]:
        """Choose slots, of those to be used, for inputs with known outputs; nobody can foresee which."""
        is_few = self.call_ns >= _FEW_CALLS_NS
        whole, rest = divmod(min(used / (_PLANTED_OF_FEW if is_few else _PLANTED), _MOST_PLANTED), 1)
        slots = {SECRET.randrange(used) for _ in range(int(whole) + (SECRET.random() < rest))}
        fresh = [item for item in self._plantable if item not in self._shown]
        planned = dict(zip(slots, SECRET.sample(fresh, min(len(slots), len(fresh))), strict=False))
        self._shown += planned.values()
        return planned

    def _plant(self, planned: Mapping[int, InputSet]) -> None:
        for slot, item in planned.items():
            self._slots.load(slot, item.inputs)

    def _verify_written(self, prepared: PreparedWorkload, used: int) -> None:
        unwritten = self._slots.unwritten(used, _POISONS[1])
        if unwritten and not prepared.may_give(_POISONS[1]):
            problem = f"{len(unwritten)} of {used} timed calls wrote no outputs"
            self._reject_timed(Rejected(EvaluationStatus.INCORRECT_NUMERICAL, problem).with_evidence(_AS_BEFORE))

    def _verify(
        self, prepared: PreparedWorkload, slot: int, item: InputSet, before: torch.Tensor, after: torch.Tensor
    ) -> None:
        """Compare what a timed call wrote with what is right."""
        try:
            self.compare(item, after, "timed calls")
            self._check_inputs(slot, item)
            if item.check.trials:
                self._observed.append(item.observe(self.layout, after))
        except Rejected as error:
            others = (*prepared.rounds, *prepared.variants)
            kept = stale_answer(after, before) or kept_answer(after, self.layout, item, others)
            self._reject_timed(error.with_evidence(kept))

    def _reject_timed(self, error: Rejected) -> None:
        """A graph may have missed a part of the work; then another method tells."""
        if self.method == "graph":
            raise NotCapturable(error.message)
        raise error

    def _keep(self, samples_ns: Sequence[float], begin: float) -> None:
        watch = self._conditions.watch
        if watch is not None:
            self._clocks.append(watch.clock_mhz(begin))
            if watch.was_throttled(begin) and self._discarded < _DISCARDED_PASSES:
                self._discarded += 1
                return
        self._samples += self._per_call(samples_ns)

    def _per_call(self, samples_ns: Sequence[float]) -> list[float]:
        """What a call takes by each sample: a share of its chain, less what the clock costs."""
        chain = self._warm.chain
        overhead = self._conditions.calibration.of(self.method, chain)
        return [max(sample - overhead, 1.0) / chain for sample in samples_ns]

    def is_done(self, rule: StopRule) -> bool:
        """Whether there are enough samples."""
        is_host = self._conditions.device.type == "cpu"
        busy = self._seconds if is_host else self._device_ns / 1e9
        return rule.is_done(self._samples, self._seconds, busy, self.chain)

    def measurement(self) -> Measurement:
        """What the samples say."""
        return Measurement(
            samples_ns=tuple(self._samples),
            method=self.method,
            chain=self._warm.chain,
            host_ns=self._warm.host_ns,
            overhead_ns=self._conditions.calibration.of(self.method, self._warm.chain),
        )

    def to_extra(self) -> dict[str, object]:
        """What a trace keeps of the timing beside its result."""
        extra: dict[str, object] = {"device_ms": round(self._device_ns / 1e6, 3)}
        if not math.isnan(self._outside_claim_ns):
            extra["outside_us"] = round(self._outside_claim_ns / 1e3, 3)
        extra["verified_calls"] = self.asked + len(self._shown)
        if self._clocks:
            extra["sm_clock_mhz"] = int(statistics.median(self._clocks))
        if self._times_anew:
            extra["timed_anew"] = self._times_anew
        if self._discarded:
            extra["throttled_passes"] = self._discarded
        if self._setup_ns:
            extra["setup_ms"] = round(statistics.median(self._setup_ns) / 1e6, 4)
        return extra

    # -- the judge's own clock -------------------------------------------------------------------

    def audit(self, prepared: PreparedWorkload) -> float:
        """Check the claim against the judge's clock; returns nanoseconds per call by it.

        Other work on the machine can only add to what that clock shows: there are several tries.

        Raises:
            Implausible: The calls take longer than the worker says.
            WorkerLost: It took its worker down.
        """
        kind = self._conditions.device.type
        by_slope = kind == "cuda" and self.claim_ns < _LONG_NS
        claim = least = bound = seen = math.inf
        for attempt, pause in enumerate((0.0,) * _AUDIT_TRIES if by_slope else _PASS_PAUSES[kind]):
            time.sleep(pause)
            if by_slope:
                claim = self.claim_ns
                taken = self._by_slope(prepared, claim)
                least, bound = self._bounds_on_slope(claim)
            else:
                if attempt:
                    self.sample(prepared, must_ask=True)
                found = self._clocked.least_disturbed(lambda one: one.outside_ns - self._bound_on_pass(one))
                claim, taken = self.claim_of(found), found.outside_ns
                least, bound = 0.0, self._bound_on_pass(found)
            seen = min(seen, taken)
            if least <= taken <= bound:
                self._outside_claim_ns = taken
                return taken
        problem = (
            f"the worker says that a call takes {claim / 1e3:.2f} us, but by the judge's clock it takes "
            f"{seen / 1e3:.2f} us ({least / 1e3:.2f} to {bound / 1e3:.2f} us would be consistent)"
        )
        raise Implausible(problem)

    def claim_of(self, seen: ClockedPass) -> float:
        """What the worker says of a pass, unless it says less of the others.

        Where other work slows down calls and, some other time, not a request of the judge's, all that
        was said before would cover a lie; and who lies about most passes says the truth of one.
        """
        return min(self.claim_ns, seen.claim_ns)

    def _bound_on_pass(self, seen: ClockedPass) -> float:
        copied = self.layout.input_bytes + self.layout.output_bytes
        around = _REQUEST_NS / self._slots.count + _COLLECT_NS + copied / _COPY_BYTES_PER_NS
        return 4.0 * self.claim_of(seen) + around

    def _work_around_ns(self, calls: int) -> float:
        """How long the main thread may run for what is done around a call, in a pass of so many."""
        copied = self.layout.input_bytes / _REVEAL_BYTES_PER_NS + self.layout.output_bytes
        return _REQUEST_WORK_NS / calls + _COLLECT_NS + copied

    @property
    def excess_ns(self) -> float:
        """By how much the main thread ran longer than it may for a call, in the pass in which it did least.

        Threads that wait for others spin while these wait for a processor, so other work on the machine
        adds to what they run: to some passes, and a trick's work is in all of them.
        """
        return self._excess_in(self._clocked.least_disturbed(self._excess_in))

    def _excess_in(self, seen: ClockedPass) -> float:
        return seen.work_ns - _WORK_FACTOR * self.claim_of(seen)

    @property
    def last_claim_ns(self) -> float:
        """What the worker says of the last pass that was timed, unless it says less of the others."""
        return self.claim_of(self._clocked[-1])

    def _by_slope(self, prepared: PreparedWorkload, claim: float) -> float:
        """The slope of n and 3n calls, less what is done around them.

        Source: subtracting n calls from 3n cancels what one request costs.
        """
        chain = self._warm.chain
        calls = self._slots.count // chain * chain
        flush = self._conditions.calibration.flush_ns / chain
        passes = max(1, round(_AUDIT_SECONDS * 1e9 / max(calls * (claim + flush), 1)))
        short, long = self.repeat(prepared, passes), self.repeat(prepared, 3 * passes)
        self._device_ns += short + long
        return (long - short) / (2 * passes * calls) - flush

    def _bounds_on_slope(self, claim: float) -> tuple[float, float]:
        """What the slope may be: eager calls can be bound by the host, of which single calls gave an upper bound."""
        most = claim if self.method == "graph" else max(claim, min(self._warm.host_ns, self._fastest_call_ns))
        around = self._conditions.calibration.flush_ns / self._warm.chain
        return 0.5 * (claim - around), 1.25 * most + 1_500.0

    def repeat(self, prepared: PreparedWorkload, passes: int) -> float:
        """Have all calls made again and again on fresh values, and verify the last; returns the nanoseconds.

        Raises:
            Rejected: The outputs are wrong.
            WorkerLost: It took its worker down.
        """
        begun = self._begin(prepared, self.calls_per_pass, must_ask=True)
        self._synchronise()
        begin = time.perf_counter_ns()
        ask(self.worker, Repeat(passes, with_calls=True), Repeated, self._timeout)
        taken = time.perf_counter_ns() - begin
        self._end(prepared, begun)
        return taken

    @property
    def calls_per_pass(self) -> int:
        """How many calls `repeat` makes in one pass."""
        chain = self._warm.chain
        return self._slots.count // chain * chain

    @property
    def claim_ns(self) -> float:
        """What a call takes, as the worker says."""
        return statistics.median(self._samples)

    @property
    def chain(self) -> int:
        """Calls between two readings of the clock."""
        return self._warm.chain

    def one_by_one(self, prepared: PreparedWorkload, passes: int, most_calls: int = sys.maxsize) -> Alone:
        """What a call takes when each call is timed alone; the samples are not kept.

        Args:
            prepared: The workload.
            passes: How many passes to make.
            most_calls: Calls in a pass, at most.

        Raises:
            NotCapturable: A fresh worker is needed, without graphs.
            Rejected: The outputs are wrong.
            WorkerLost: It took its worker down.
        """
        kept, warm, clocked = self._samples, self._warm, self._clocked
        self._warm = self._answer_to(WarmUp(1, 0.0, warm.method == "graph", 1))
        self._samples, self._clocked = [], ClockedPasses()
        try:
            for _ in range(passes):
                self.sample(prepared, must_ask=True, asks=_ASKS_ALONE, most_chains=most_calls)
            claim = statistics.median(self._samples) if self._samples else 0.0
            return Alone(claim, min(seen.outside_ns for seen in self._clocked))
        finally:
            self._samples, self._warm, self._clocked = kept, warm, clocked

    def check_rest(self) -> None:
        """See that nothing goes on behind calls that have returned.

        Raises:
            Rejected: Something does.
        """
        is_host = self._conditions.device.type == "cpu"
        suspicious = _SUSPICIOUS[self._conditions.device.type]
        is_quiet = self._idle is None or not self._idle.seems_busy(_REST_SECONDS, suspicious)
        if is_quiet and not self.worker.started():
            return
        share, delay = 0.0, 0.0
        for delay, seconds in _LOOKS:
            share = busy_share([self.worker.pid, *self.worker.started()], delay, seconds)
            if share <= _BUSY_SHARE:
                return
        device = "" if is_host else " of the host"
        problem = f"{delay:g} s after its last answer, the worker keeps {share:.1f} processors{device} busy"
        raise Rejected(EvaluationStatus.REWARD_HACK, f"{problem}: something goes on behind calls that have returned")

    def profile(self) -> tuple[tuple[str, float], ...]:
        """The kernels of one call, by the worker's profiler: a claim."""
        return ask(self.worker, Profile(), Profiled, self._timeout).kernels

    def _synchronise(self) -> None:
        if self._conditions.device.type == "cuda":
            torch.cuda.synchronize(self._conditions.device)


def two_of(sets: Sequence[InputSet]) -> tuple[InputSet, InputSet]:
    """Two sets, different ones if there are two."""
    if len(sets) == 1:
        return sets[0], sets[0]
    first, second = SECRET.sample(list(sets), 2)
    return first, second
