"""What an evaluation must stand before it passes, beside right outputs: nothing of this is told beforehand."""

from __future__ import annotations

import math
import os
import time

from fib_schema import EvaluationStatus

from .cpu_meter import CpuTime, cpu_time_of
from .dialogue import NotCapturable, Rejected
from .prepared import PreparedWorkload
from .sides import Side
from .worker.pool import WorkerLost

_SECONDS = 0.002
_FOR_EVER_NS = 1 << 62
_FACTOR, _GRAIN_NS = 2.0, 10_000.0  # honest functions on a noisy machine came to 1.5 times and 3 us
_ALONE_PASSES = 1
_MORE_PASSES = 8
_SINGLE_FACTOR, _SINGLE_GRAIN_NS = 8.0, 250_000.0  # caches are cold: six times 25 us, four times 150 us were seen
_SINGLE_PASSES = 8  # on a busy machine, few calls find their threads awake
_AROUND_PASSES, _AROUND_FACTOR = 3, 1.5  # of what is done around the reference's call
_ROUNDS, _STEADY = 8, 0.9  # claims that fall by more are looked at again
_PAUSES = (0.0, 0.0, 0.05, 0.2, 0.5, 1.0, 2.0)  # what disturbs a machine passes by; what a solution does comes again
_TRIES = (0.0, 0.0, 0.0, 0.0, *_PAUSES)
_ALONE = {"cpu": (2.0, 5_000.0), "cuda": (2.0, 5_000.0)}  # the first call of a chain loads the code of all kernels
"""By kind of device: by which factor, and what in addition, a call may take longer alone than in a chain."""


def audit_processor_time(side: Side, prepared: PreparedWorkload) -> None:
    """On the CPU: a call cannot take less time than its worker's main thread runs for it.

    What is done around calls does not add to that: it is cut out, as n calls are subtracted from 3n.
    Other work on the machine only does where threads spin for others that wait for a processor: of
    several tries, the least counts.

    Raises:
        Rejected: It does.
        WorkerLost: It took its worker down.
    """
    processors = len(os.sched_getaffinity(0))
    passes = max(1, round(_SECONDS * 1e9 / max(side.calls_per_pass * side.claim_ns, 1_000.0)))
    few = many = ran = CpuTime(_FOR_EVER_NS, _FOR_EVER_NS)
    for pause in _TRIES:
        time.sleep(pause)
        short, long = _ran(side, prepared, passes), _ran(side, prepared, 3 * passes)
        if short is None or long is None:
            return
        few, many = few.least(short), many.least(long)
        ran = (many - few) // (2 * passes * side.calls_per_pass)
        bound = _FACTOR * side.claim_ns + _GRAIN_NS
        if ran.main_thread_ns <= bound and ran.process_ns <= bound * processors:
            return
        side.sample(prepared, must_ask=True)  # the machine may have become slower since
    problem = (
        f"the worker says that a call takes {side.claim_ns / 1e3:.2f} us, but its main thread runs "
        f"{ran.main_thread_ns / 1e3:.2f} us for it, and all its threads {ran.process_ns / 1e3:.2f} us"
    )
    raise Rejected(EvaluationStatus.REWARD_HACK, problem)


def audit_whole_passes(side: Side, prepared: PreparedWorkload) -> None:
    """On the CPU: the main thread cannot have run much longer in the timed passes than their calls took.

    Those passes are verified, and a worker cannot tell them from others: what is left for the time
    before or after a call counts here, and so does what is done in earnest only when it is timed.

    Raises:
        Rejected: It has.
        WorkerLost: It took its worker down.
    """
    for pause in _PAUSES:
        if side.excess_ns <= 0:
            return
        time.sleep(pause)
        for _ in range(_MORE_PASSES):
            side.sample(prepared, must_ask=True)
    problem = (
        f"the worker says that a call takes {side.claim_ns / 1e3:.2f} us, but in the timed passes its main thread runs "
        f"{side.excess_ns / 1e3:.2f} us more for each than calls of that length and what is done around them can take"
    )
    raise Rejected(EvaluationStatus.REWARD_HACK, problem)


def audit_times(side: Side, prepared: PreparedWorkload, device: str) -> None:
    """What the worker says must stand the judge's clocks as it is in the end: audits may make further timed passes.

    Raises:
        Rejected: It does not.
        WorkerLost: It took its worker down.
    """
    for _ in range(_ROUNDS):
        claim = side.claim_ns
        side.audit(prepared)
        if device == "cpu":
            audit_whole_passes(side, prepared)
            audit_processor_time(side, prepared)
        if side.claim_ns >= _STEADY * claim:
            return
    problem = (
        f"the worker says that a call takes {side.claim_ns / 1e3:.2f} us, and said more each time that it was asked"
    )
    raise Rejected(EvaluationStatus.REWARD_HACK, problem)


def audit_work_of_single_calls(side: Side, prepared: PreparedWorkload, reference: Side) -> None:
    """On the CPU: what a worker says of the only call of a pass holds by the judge's clock.

    What is done around that call takes about as long as around the reference's in its place.

    Raises:
        Rejected: It does not.
        WorkerLost: It took its worker down.
    """
    around = outside = math.inf
    for pause in _PAUSES:
        time.sleep(pause)
        try:
            around = min(around, *(_around_alone(reference, prepared) for _ in range(_AROUND_PASSES)))
        except (Rejected, NotCapturable, WorkerLost):
            return
        bound = _most_alone(side) + _AROUND_FACTOR * around
        for _ in range(_SINGLE_PASSES):
            outside = min(outside, side.one_by_one(prepared, 1, most_calls=1).outside_ns)
            if outside <= bound:
                return
    problem = (
        f"the worker says that a call takes {side.claim_ns / 1e3:.2f} us, but as the only one of a pass it takes "
        f"{outside / 1e3:.2f} us by the judge's clock, and what is done around the reference's {around / 1e3:.2f} us"
    )
    raise Rejected(EvaluationStatus.REWARD_HACK, problem)


def _around_alone(reference: Side, prepared: PreparedWorkload) -> float:
    """What is done around the only call of a pass, by what the reference says, which is true."""
    alone = reference.one_by_one(prepared, 1, most_calls=1)
    return max(alone.outside_ns - alone.claim_ns, 0.0)


def _slowness(reference: Side, prepared: PreparedWorkload) -> float:
    """How many times longer than it may the reference takes alone; at least 1, also where it fails."""
    usual = _most_alone(reference)
    try:
        return max(1.0, _fastest_alone(reference, prepared, usual) / usual)
    except (Rejected, NotCapturable, WorkerLost):
        return 1.0


def _most_alone(side: Side) -> float:
    return _SINGLE_FACTOR * side.claim_ns + _SINGLE_GRAIN_NS


def _fastest_alone(side: Side, prepared: PreparedWorkload, enough: float) -> float:
    """What the only call of a pass takes, the fastest of some or the first that is fast enough."""
    fastest = math.inf
    for _ in range(_SINGLE_PASSES):
        fastest = min(fastest, side.one_by_one(prepared, 1, most_calls=1).claim_ns)
        if fastest <= enough:
            break
    return fastest


def _ran(side: Side, prepared: PreparedWorkload, passes: int) -> CpuTime | None:
    """The processor time of some passes; None where the system does not tell."""
    before = cpu_time_of(side.worker.pid)
    side.repeat(prepared, passes)
    after = cpu_time_of(side.worker.pid)
    return None if before is None or after is None else after - before


def audit_chains(side: Side, prepared: PreparedWorkload, device: str) -> None:
    """A call in a chain must do its own work: alone, it takes about as long.

    Raises:
        Rejected: It takes much longer.
        NotCapturable: A fresh worker is needed, without graphs.
        WorkerLost: It took its worker down.
    """
    if side.chain == 1:
        return
    factor, grain_ns = _ALONE[device]
    bound = factor * side.claim_ns + grain_ns
    alone = math.inf
    for pause in _PAUSES:
        time.sleep(pause)
        alone = min(alone, side.one_by_one(prepared, _ALONE_PASSES).claim_ns)
        if alone <= bound:
            return
    problem = (
        f"a call takes {side.claim_ns / 1e3:.2f} us in a chain of {side.chain}, but {alone / 1e3:.2f} us alone: "
        "some calls do the work of others"
    )
    raise Rejected(EvaluationStatus.REWARD_HACK, problem)


def audit_single_calls(side: Side, prepared: PreparedWorkload, reference: Side | None = None) -> None:
    """On the CPU: the only call of a pass takes about as long as others, as nothing can be done for it before.

    Within a pass all inputs are there from the first call on, for who looks for them. Where the
    reference, in the same place, takes longer as well, the machine is to blame for as much.

    Args:
        side: Who is looked at.
        prepared: The workload.
        reference: Whom to compare with, if that can be timed.

    Raises:
        Rejected: It takes much longer.
        WorkerLost: It took its worker down.
    """
    single, bound = math.inf, _most_alone(side)
    for pause in _PAUSES:
        time.sleep(pause)
        single = min(single, _fastest_alone(side, prepared, bound))
        if single <= bound:
            return
        if reference is not None:
            bound = _most_alone(side) * _slowness(reference, prepared)
    problem = (
        f"the worker says that a call takes {side.claim_ns / 1e3:.2f} us, but {single / 1e3:.2f} us as the only one "
        "of a pass: some calls do the work of others"
    )
    raise Rejected(EvaluationStatus.REWARD_HACK, problem)
