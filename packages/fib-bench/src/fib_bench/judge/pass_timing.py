"""What the judge's own clocks say of timed passes, and which of these say most.

Other work on the machine only adds to what the clocks show: the passes to which it added least count.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

_NOT_ALONE = 2  # that many passes may be shorter than the one that counts


@attrs.frozen(kw_only=True)
class ClockedPass:
    """What the clocks say of a timed pass, in nanoseconds per call."""

    claim_ns: float
    """What its worker says, the median."""
    outside_ns: float
    """How long the request took."""
    work_ns: float
    """How long the main thread ran, less what it may run around a call; NaN on a device."""
    is_verified: bool
    """Whether some outputs were compared with what is right, of calls which nobody could foresee."""


class ClockedPasses(list[ClockedPass]):
    """Timed passes, in any order."""

    def least_disturbed(self, number: Callable[[ClockedPass], float]) -> ClockedPass:
        """The pass to which other work on the machine added least, by a number that this makes larger.

        Only of those in which something was compared: a pass in which a function did not do its work is
        short as well. Few calls of a pass are compared, so that one in which most were left out may slip
        through; of many passes, the least is not believed until there are others like it.
        """
        verified = sorted((seen for seen in self if seen.is_verified), key=number)
        if not verified:
            return sorted(self, key=number)[len(self) // 2]
        return verified[min(_NOT_ALONE, (len(verified) - 1) // 2)]


@attrs.frozen
class Alone:
    """Nanoseconds that a call takes when each call is timed alone."""

    claim_ns: float
    """As the worker says."""
    outside_ns: float
    """By the judge's clock, with all that is done around it."""

    def least(self, other: Alone) -> Alone:
        """Of each number the smaller one."""
        return Alone(min(self.claim_ns, other.claim_ns), min(self.outside_ns, other.outside_ns))

    def is_within(self, bound: Alone) -> bool:
        """Whether neither number is above its bound."""
        return self.claim_ns <= bound.claim_ns and self.outside_ns <= bound.outside_ns
