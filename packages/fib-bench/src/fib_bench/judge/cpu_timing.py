"""CPU timer. Passes timed by the worker's own clock.

On the CPU the judge has no clock of its own for single calls: the latency is a report of the worker, and the
trace carries the flag ``unranked: cpu timing``. Outputs are verified as on any device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from ..config.model import ResolvedEvalConfig
from ..events import Phase
from ..secure_random import SECRET
from ..timing import Measurement, StopRule
from ..transport.messages import Sample, Sampled, Warm, WarmUp
from ..worker.client import WorkerLost
from .prepared import PreparedWorkload
from .throttling import ThrottlingFilter
from .timed_function import TimedFunction
from .verification import Verifier

_PASS_SECONDS = 0.2  # the length of a pass, about
_LAST_ASKS = 4  # of a pass that is made only because too few calls are verified


class CpuTimer:
    """Times a function by the worker's clock.

    Args:
        function: What to time.
        verifier: Verifies its timed calls.
    """

    method = "cpu"

    def __init__(self, function: TimedFunction, verifier: Verifier) -> None:
        self._function = function
        self.verifier = verifier
        self._warm = Warm(1, 0.0, 0.0)
        self._overhead_ns = 0.0
        self._samples: list[float] = []
        self._seconds = 0.0
        self._has_enough = False
        self._filter = ThrottlingFilter(function.context.watch)

    def warm_up(self, prepared: PreparedWorkload, config: ResolvedEvalConfig) -> None:
        """Load the slots and call until compilers and caches have settled.

        Raises:
            Rejected: The function raised.
            WorkerLost: The worker ended.
        """
        self.verifier.known = self._function.load_all(prepared)
        self.verifier.refresh(prepared)
        request = WarmUp(config.warmup_runs, config.measure_seconds / 4)
        warm = self._function.ask(request, Warm, extra_seconds=request.max_seconds)
        if not (0 <= warm.call_ns < math.inf and 0 <= warm.host_ns < math.inf):
            raise WorkerLost(f"the worker answered a request to warm up with {warm!r:.200}", is_forgery=True)
        self._overhead_ns = self._function.context.calibration.of(warm.chain)
        self._warm = warm

    def draw_passes(self, prepared: PreparedWorkload, passes: int) -> int:
        """Return 1: each pass is verified before the next one."""
        del prepared, passes
        return 1

    def sample(self, prepared: PreparedWorkload) -> None:
        """Time one pass over the slots and verify some of its calls.

        Raises:
            Rejected: Outputs are wrong.
            WorkerLost: The worker ended, or reported values that are not durations.
        """
        first, context, slots = time.monotonic(), self._function.context, self._function.slots
        samples = self._samples_per_pass()
        used = range(samples * self._warm.chain)
        with context.phases.during(Phase.INPUTS):
            plan = self.verifier.begin(
                prepared,
                used,
                call_ns=self._warm.call_ns,
                must_ask=self._has_enough,
                asks=_LAST_ASKS if self._has_enough else 1,
            )
        key = SECRET.getrandbits(64) - (1 << 63)
        request = Sample(samples, key, slots.mask(prepared.varying, key, used))
        begin = time.monotonic()
        taken_ns = self._ask(request)
        self.verifier.end(prepared, plan)
        if self._filter.accepts(begin):
            self._samples += [max(taken - self._overhead_ns, 1.0) / self._warm.chain for taken in taken_ns]
        self._seconds += time.monotonic() - first

    def _samples_per_pass(self) -> int:
        chain = self._warm.chain
        fitting = int(_PASS_SECONDS * 1e9 / max(self._warm.call_ns * chain, 1))
        return max(1, min(self._function.slots.count // chain, fitting))

    def _ask(self, request: Sample) -> Sequence[float]:
        reply = self._function.ask(request, Sampled)
        if len(reply.samples_ns) != request.chains or not all(0 < s < math.inf for s in reply.samples_ns):
            problem = f"the worker answered a request to time {request.chains} samples with {reply!r:.200}"
            raise WorkerLost(problem, is_forgery=True)
        return reply.samples_ns

    def verify(self, prepared: PreparedWorkload) -> None:
        """Do nothing: passes are verified at once."""
        del prepared

    def is_done(self, rule: StopRule) -> bool:
        """Whether there are enough samples, and enough of their calls are verified."""
        self._has_enough = rule.is_done(self._samples, self._seconds, self._seconds, self._warm.chain)
        return self._has_enough and self.verifier.is_enough

    def finish(self, prepared: PreparedWorkload) -> None:
        """Check the outputs of all verified calls together; each call was verified at once.

        Raises:
            Rejected: They are wrong.
        """
        self.verifier.check_together(prepared)

    def measurement(self, beside: object | None = None) -> Measurement:
        """The latency with its samples."""
        del beside
        return Measurement(
            samples_ns=tuple(self._samples),
            method=self.method,
            chain=self._warm.chain,
            host_ns=self._warm.host_ns,
            overhead_ns=self._overhead_ns,
        )

    def to_extra(self) -> dict[str, object]:
        """The timing fields of a trace beside the measurement."""
        return {"verified_calls": self.verifier.verified_calls, **self._filter.to_extra()}
