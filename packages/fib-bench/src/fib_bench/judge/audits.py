"""What an evaluation must stand before it passes, beside right outputs: nothing of this is told beforehand."""

from __future__ import annotations

import math
import os
import time

from ..transport.rpc import Implausible, NotCapturable, Rejected
from ..worker.client import WorkerLost
from .cpu_time import CpuTime, cpu_time_asleep, cpu_time_of
from .pass_timing import Alone
from .prepared import PreparedWorkload
from .timed_function import Side

_SECONDS = 0.002
_FOR_EVER_NS = 1 << 62
_FACTOR, _GRAIN_NS = 2.0, 10_000.0  # honest functions on a noisy machine came to 1.5 times and 3 us
_ALONE_PASSES = 1
_MORE_PASSES = 8
_SINGLE_FACTOR, _SINGLE_GRAIN_NS = 8.0, 250_000.0  # caches are cold: six times 25 us, four times 150 us were seen
_SINGLE_PASSES = 8  # on a busy machine, few calls find their threads awake
_AROUND_FACTOR = 1.5  # of what is done around the reference's call
_REQUEST_ALONE_NS = 4e6  # a request with its answer, on a busy machine
_ROUNDS, _STEADY = 8, 0.9  # claims that fall by more are looked at again
_PAUSES = (0.0, 0.0, 0.05, 0.2)  # what disturbs a machine passes by; what a solution does comes again
LATER = (0.5, 1.0, 2.0)
"""Seconds to wait before what does not hold is timed anew, on the CPU: other work may have come between."""
_TRIES = (0.0, 0.0, *_PAUSES)
_ALONE = {"cpu": (2.0, 5_000.0), "cuda": (2.0, 5_000.0)}  # the first call of a chain loads the code of all kernels
"""By kind of device: by which factor, and what in addition, a call may take longer alone than in a chain."""


def audit_times(side: Side, prepared: PreparedWorkload, device: str, reference: Side | None = None) -> None:
    """What the worker says of its times must hold by all that the system says.

    Args:
        side: Who is looked at.
        prepared: The workload.
        device: The kind of device.
        reference: Whom to compare with, if that can be timed.

    Raises:
        Implausible: It does not.
        Rejected: The timed calls' outputs are wrong.
        NotCapturable: A fresh worker is needed, without graphs.
        WorkerLost: It took its worker down.
    """
    _audit_claim(side, prepared, device)
    audit_chains(side, prepared, device)
    if device == "cpu":
        audit_single_calls(side, prepared, reference)


def _audit_claim(side: Side, prepared: PreparedWorkload, device: str) -> None:
    """What the worker says must stand the judge's clocks as it is in the end: audits may make further timed passes.

    Raises:
        Implausible: It does not.
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
    raise Implausible(problem)


def audit_processor_time(side: Side, prepared: PreparedWorkload) -> None:
    """On the CPU: a call cannot take less time than its worker's main thread runs for it.

    What is done around calls does not add to that: it is cut out, as n calls are subtracted from 3n.
    Other work on the machine only does where threads spin for others that wait for a processor: of
    several tries, the least counts. But if n calls were disturbed and not 3n, their difference would say
    too little, and if timed calls were, and not these, the claim would cover too much: so n calls are made
    before and after 3n, and timed ones in between.

    Raises:
        Implausible: It does.
        WorkerLost: It took its worker down.
    """
    processors = len(os.sched_getaffinity(0))
    one_ns = side.repeat(prepared, 1)  # by the judge's clock: who says too little would get passes without end
    passes = max(1, round(_SECONDS * 1e9 / max(one_ns, side.calls_per_pass * side.claim_ns, 1_000.0)))
    few = many = ran = CpuTime(_FOR_EVER_NS, _FOR_EVER_NS)
    claim = math.inf
    for pause in _TRIES:
        time.sleep(pause)
        before, first = _ran(side, prepared, passes), _timed(side, prepared)
        long, second = _ran(side, prepared, 3 * passes), _timed(side, prepared)
        after = _ran(side, prepared, passes)
        if before is None or long is None or after is None:
            return
        few, many = few.least(before).least(after), many.least(long)
        ran = (many - few) // (2 * passes * side.calls_per_pass)
        claim = min(claim, first, second)
        bound = _FACTOR * claim + _GRAIN_NS
        if ran.main_thread_ns <= bound and ran.process_ns <= bound * processors:
            return
    problem = (
        f"the worker says that a call takes {claim / 1e3:.2f} us, but its main thread runs "
        f"{ran.main_thread_ns / 1e3:.2f} us for it, and all its threads {ran.process_ns / 1e3:.2f} us"
    )
    raise Implausible(problem)


def audit_whole_passes(side: Side, prepared: PreparedWorkload) -> None:
    """On the CPU: the main thread cannot have run much longer in the timed passes than their calls took.

    Those passes are verified, and a worker cannot tell them from others: what is left for the time
    before or after a call counts here, and so does what is done in earnest only when it is timed.

    Raises:
        Implausible: It has.
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
    raise Implausible(problem)


def _most_alone(side: Side) -> float:
    return _SINGLE_FACTOR * side.claim_ns + _SINGLE_GRAIN_NS


def _reference_alone(reference: Side, prepared: PreparedWorkload) -> Alone | None:
    """What the reference's call takes in the same place; None where it fails."""
    usual = _most_alone(reference)
    try:
        return _least_alone(reference, prepared, Alone(usual, usual))
    except (Rejected, NotCapturable, WorkerLost):
        return None


def _least_alone(side: Side, prepared: PreparedWorkload, enough: Alone) -> Alone:
    """What the only call of a pass takes: the least of some passes, or of fewer if that is little enough."""
    least = Alone(math.inf, math.inf)
    for _ in range(_SINGLE_PASSES):
        least = least.least(side.one_by_one(prepared, 1, most_calls=1))
        if least.is_within(enough):
            break
    return least


def _timed(side: Side, prepared: PreparedWorkload) -> float:
    """What the worker says of another timed pass, unless it says less of the others."""
    side.sample(prepared)
    return side.last_claim_ns


def _ran(side: Side, prepared: PreparedWorkload, passes: int) -> CpuTime | None:
    """The processor time of some passes; None where the system does not tell."""
    before = cpu_time_of(side.worker.pid)
    side.repeat(prepared, passes)
    after = cpu_time_asleep(side.worker.pid)
    return None if before is None or after is None else after - before


def audit_chains(side: Side, prepared: PreparedWorkload, device: str) -> None:
    """A call in a chain must do its own work: alone, it takes about as long.

    Raises:
        Implausible: It takes much longer.
        NotCapturable: A fresh worker is needed, without graphs.
        WorkerLost: It took its worker down.
    """
    if side.chain == 1:
        return
    factor, grain_ns = _ALONE[device]
    bound = factor * side.claim_ns + grain_ns
    alone = math.inf
    for pause in (*_PAUSES, *LATER):
        time.sleep(pause)
        alone = min(alone, side.one_by_one(prepared, _ALONE_PASSES).claim_ns)
        if alone <= bound:
            return
    problem = (
        f"a call takes {side.claim_ns / 1e3:.2f} us in a chain of {side.chain}, but {alone / 1e3:.2f} us alone: "
        "some calls do the work of others"
    )
    raise Implausible(problem)


def audit_single_calls(side: Side, prepared: PreparedWorkload, reference: Side | None = None) -> None:
    """On the CPU: the only call of a pass takes about as long as others, as nothing can be done for it before.

    Within a pass all inputs are there from the first call on, for who looks for them. What the worker
    says of that call has to hold by the judge's clock as well. Where the reference, in the same place,
    takes longer, the machine is to blame for as much, and so it is for what is done around the
    reference's call.

    Args:
        side: Who is looked at.
        prepared: The workload.
        reference: Whom to compare with, if that can be timed.

    Raises:
        Implausible: It takes much longer.
        WorkerLost: It took its worker down.
    """
    usual = _most_alone(side)
    alone, bound = Alone(math.inf, math.inf), Alone(usual, usual)
    around = _REQUEST_ALONE_NS if reference is None else math.inf
    for pause in _PAUSES:
        time.sleep(pause)
        alone = alone.least(_least_alone(side, prepared, bound))
        if alone.is_within(bound):
            return
        slowness = 1.0
        if reference is not None and (other := _reference_alone(reference, prepared)) is not None:
            slowness = max(1.0, other.claim_ns / _most_alone(reference))
            around = min(around, max(other.outside_ns - other.claim_ns, 0.0))
        usual = _most_alone(side)
        bound = Alone(usual * slowness, usual * slowness + _AROUND_FACTOR * around)
    says = f"the worker says that a call takes {side.claim_ns / 1e3:.2f} us"
    if alone.claim_ns > bound.claim_ns:
        problem = (
            f"{says}, but {alone.claim_ns / 1e3:.2f} us as the only one of a pass: some calls do the work of others"
        )
    else:
        problem = (
            f"{says}, but as the only one of a pass it takes {alone.outside_ns / 1e3:.2f} us by the judge's clock "
            f"({bound.outside_ns / 1e3:.2f} us would be consistent)"
        )
    raise Implausible(problem)
