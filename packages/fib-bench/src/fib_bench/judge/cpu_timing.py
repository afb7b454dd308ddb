"""CPU timer. Passes timed by the worker's own clock.

On the CPU the judge has no clock of its own for single calls: the latency is a report of the worker, and the
trace carries the flag ``unranked: cpu timing``. Outputs are verified as on any device.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ..config.model import ResolvedEvalConfig
from ..events import Phase
from ..timing import Measurement, StopRule
from ..transport.messages import Sample, Sampled, Warm, WarmUp
from ..worker.client import WorkerLost
from .prepared import PreparedWorkload
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
        self._warm = Warm(0.0, 0.0)
        self._samples: list[float] = []
        self._seconds = 0.0
        self._has_enough = False

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
        context = self._function.context
        first, used = context.seconds(), range(self._calls_per_pass())
        with context.phases.during(Phase.INPUTS):
            plan = self.verifier.begin(
                prepared,
                used,
                call_ns=self._warm.call_ns,
                must_ask=self._has_enough,
                asks=_LAST_ASKS if self._has_enough else 1,
            )
        self._samples += self._ask(Sample(len(used)))
        self.verifier.end(prepared, plan)
        self._seconds += context.seconds() - first

    def _calls_per_pass(self) -> int:
        fitting = int(_PASS_SECONDS * 1e9 / max(self._warm.call_ns, 1))
        return max(1, min(self._function.slots.count, fitting))

    def _ask(self, request: Sample) -> Sequence[float]:
        reply = self._function.ask(request, Sampled)
        if len(reply.samples_ns) != request.calls or not all(0 < s < math.inf for s in reply.samples_ns):
            problem = f"the worker answered a request to time {request.calls} samples with {reply!r:.200}"
            raise WorkerLost(problem, is_forgery=True)
        return reply.samples_ns

    def verify(self, prepared: PreparedWorkload) -> None:
        """Do nothing: passes are verified at once."""
        del prepared

    def is_done(self, rule: StopRule) -> bool:
        """Whether there are enough samples, and enough of their calls are verified."""
        self._has_enough = rule.is_done(self._samples, self._seconds, self._seconds)
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
        host_ns = statistics.median(self._samples)
        return Measurement(samples_ns=tuple(self._samples), method=self.method, chain=1, host_ns=host_ns)

    def to_extra(self) -> dict[str, object]:
        """The timing fields of a trace beside the measurement."""
        return {"verified_calls": self.verifier.verified_calls}
