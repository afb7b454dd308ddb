"""Host timer. The judge's clock around single verified calls, host time included.

For CUDA functions that cannot be captured. The request alone takes time, which is measured by requests with a null
call, for which the worker does everything but the call, and subtracted. A worker that slows its null calls down gains
nothing: the same requests to the worker of the reference bound what is subtracted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from ..config.model import ResolvedEvalConfig
from ..events import Phase
from ..secure_random import SECRET
from ..timing import Measurement, StopRule
from ..transport.messages import Call, Called
from .prepared import PreparedWorkload
from .throttling import ThrottlingFilter
from .timed_function import TimedFunction
from .verification import Verifier

_NULL_CALLS = 20
_WARM_UP_CALLS = 3


def null_call_ns(function: TimedFunction, calls: int = _NULL_CALLS) -> float:
    """The median time of requests with a null call, by the judge's clock.

    Raises:
        Rejected: The worker failed.
        WorkerLost: The worker ended.
    """
    with function.context.exclusive():
        return statistics.median(_timed_ns(function, 0, is_null=True) for _ in range(calls))


def _timed_ns(function: TimedFunction, slot: int, *, is_null: bool = False) -> int:
    function.context.synchronize()
    with function.context.exclusive():
        begin = time.perf_counter_ns()
        function.ask(Call(slot, is_null=is_null), Called)
        return time.perf_counter_ns() - begin


class HostTimer:
    """Times a function by the judge's clock.

    Args:
        function: What to time.
        verifier: Verifies its timed calls.
        trusted_null_ns: Gives `null_call_ns` of a trusted worker, or 0 where there is none: no more is subtracted.
            None for a function that is trusted itself.
    """

    method = "host"

    def __init__(
        self, function: TimedFunction, verifier: Verifier, trusted_null_ns: Callable[[], float] | None = None
    ) -> None:
        self._function = function
        self._trusted_null_ns = trusted_null_ns
        self.verifier = verifier
        self._overhead_ns = 0.0
        self._call_ns = 0.0
        self._samples: list[float] = []
        self._seconds = 0.0
        self._has_enough = False
        self._filter = ThrottlingFilter(function.context.watch)

    def warm_up(self, prepared: PreparedWorkload, config: ResolvedEvalConfig) -> None:
        """Load the slots, call until compilers and caches have settled, and measure null calls.

        Raises:
            Rejected: The function raised.
            WorkerLost: The worker ended.
        """
        self.verifier.known = self._function.load_all(prepared)
        self.verifier.refresh(prepared)
        context = self._function.context
        end, taken = context.seconds() + config.measure_seconds / 4, [self._call_untimed()]
        while len(taken) < max(config.warmup_runs, _WARM_UP_CALLS) and context.seconds() < end:
            taken.append(self._call_untimed())
        own = null_call_ns(self._function)
        self._overhead_ns = own if self._trusted_null_ns is None else min(own, self._trusted_null_ns())
        self._call_ns = max(float(min(taken[-_WARM_UP_CALLS:])) - self._overhead_ns, 1.0)

    def _call_untimed(self) -> int:
        return _timed_ns(self._function, SECRET.randrange(self._function.slots.count))

    def draw_passes(self, prepared: PreparedWorkload, passes: int) -> int:
        """Return 1: each pass is verified before the next one."""
        del prepared, passes
        return 1

    def sample(self, prepared: PreparedWorkload) -> None:
        """Time one call in a secret slot, and verify it.

        Raises:
            Rejected: Its outputs are wrong.
            WorkerLost: The worker ended.
        """
        context, slots = self._function.context, self._function.slots
        first = context.seconds()
        slot = SECRET.randrange(slots.count)
        with context.phases.during(Phase.INPUTS):
            used = range(slot, slot + 1)
            plan = self.verifier.begin(prepared, used, call_ns=self._call_ns, must_ask=self._has_enough)
        begin = time.monotonic()
        taken_ns = _timed_ns(self._function, slot)
        self.verifier.end(prepared, plan)
        if self._filter.accepts(begin):
            self._samples.append(max(taken_ns - self._overhead_ns, 1.0))
        self._seconds += context.seconds() - first

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
        host_ns = statistics.median(self._samples) + self._overhead_ns
        return Measurement(
            samples_ns=tuple(self._samples), method=self.method, chain=1, host_ns=host_ns, overhead_ns=self._overhead_ns
        )

    def to_extra(self) -> dict[str, object]:
        """The timing fields of a trace beside the measurement."""
        return {"verified_calls": self.verifier.verified_calls, **self._filter.to_extra()}
