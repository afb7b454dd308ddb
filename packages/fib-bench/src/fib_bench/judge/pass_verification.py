"""Verification of linked passes.

A pass counts only if its digest is that of the outputs in the slots and all of its calls wrote all outputs. Secret
calls of each pass are compared with fresh answers of the reference. What this needs is copied right after a pass, so
that several passes can follow each other while the judge has the device alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs
import torch
from fib_schema import EvaluationStatus

from ..secure_random import SECRET
from ..timing.linked import native
from .graph_safety import MIN_VERIFIED
from .linked_passes import LinkedPasses, TimedPass
from .prepared import InputSet, PreparedWorkload
from .rpc import NotCapturable, Rejected
from .timed_function import TimedFunction
from .verification import Verifier

MIN_PASSES = 6
"""The least number of passes that a latency is made of."""
_VERIFIED_CALLS = 90  # of each published latency, where the reference is cheap
_CHOSEN = -(-_VERIFIED_CALLS // MIN_PASSES)  # of each pass
_VERIFY_SECONDS = 0.15
_FURTHER_SECONDS = 2.0  # for the answers of a slow reference, so that graph safety is decided
_MAX_SLOTS = 8  # that are looked at for one whose inputs a link has left as they were
_Calls: TypeAlias = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Inputs and outputs of calls, ``[bytes]`` each."""
Draw: TypeAlias = Callable[[PreparedWorkload], torch.Tensor]
"""Draws the candidates of a pass, ``[2, bytes]``."""
_PENDING_BYTES, _UNVERIFIED_BYTES, _BATCH_BYTES = 1 << 30, 1 << 30, 1 << 28


@attrs.frozen(eq=False)
class _Unverified:
    """A pass that was timed, with copies of what its verification needs."""

    made: TimedPass
    candidates: torch.Tensor
    """``[2, bytes]``"""
    outputs: torch.Tensor
    """``[calls, bytes]``"""
    chosen: Sequence[int]
    """Secret calls whose outputs are compared with fresh answers."""
    inputs: torch.Tensor
    """Inputs of these calls, ``[chosen, bytes]``."""


class PassVerification:
    """Verifies the passes of one function.

    Args:
        function: Its slots are bound.
        passes: Its passes.
        base: The inputs that links leave alone.
        verifier: Asks the reference.
    """

    def __init__(self, function: TimedFunction, passes: LinkedPasses, base: InputSet, verifier: Verifier) -> None:
        self._function, self._passes, self._base, self._verifier = function, passes, base, verifier
        self._unverified: list[_Unverified] = []
        self._pending: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Inputs and outputs of calls that are to be compared, ``[bytes]`` each."""
        self.distributions: set[str] = set()
        """Other distributions than the normal one on which a replay was compared."""

    def room_for(self, passes: int, pass_bytes: int) -> int:
        """The number of passes that can follow each other without verification, from one to `passes`."""
        size = pass_bytes + _CHOSEN * self._function.slots.inputs[0].nbytes
        return max(1, min(passes, _UNVERIFIED_BYTES // max(size, 1)))

    def add(self, made: TimedPass, candidates: torch.Tensor, most: int = _CHOSEN) -> None:
        """Copy what the verification of the last pass needs.

        Args:
            made: The pass.
            candidates: What its links chose from: the judge's own copy.
            most: The most calls to compare with fresh answers.

        Shapes:
            candidates: ``[2, bytes]``
        """
        slots, size = self._function.slots, self._function.layout.size_bytes
        taken = len(self._pending) + _CHOSEN * len(self._unverified)
        room = max(_PENDING_BYTES // max(size, 1) - taken, 0)
        count = min(most, made.calls, max(room, 2 if taken < 2 else 0))
        chosen = SECRET.sample(range(made.calls), count)
        read = slots.inputs[torch.tensor(chosen, dtype=torch.int64, device=slots.inputs.device)]
        self._unverified.append(_Unverified(made, candidates, slots.outputs[: made.calls].clone(), chosen, read))

    def verify(self) -> None:
        """Recompute the links of the passes since the last time, and check that all outputs were written.

        Raises:
            NotCapturable: Outputs are missing, for which the capture may be to blame.
            Rejected: A pass was not the one that was composed, or inputs were changed.
        """
        waiting, self._unverified = self._unverified, []
        for item in waiting:
            self._function.context.give_way()
            self._verify(item)

    def _verify(self, item: _Unverified) -> None:
        unwritten = self._passes.recompute(item.made, item.outputs)
        if unwritten:
            raise NotCapturable(f"{len(unwritten)} of {item.made.calls} timed calls left outputs unwritten")
        read = self._passes.inputs_of(item.chosen, self._base.inputs, item.candidates)
        if not torch.equal(read, item.inputs):
            raise _inputs_changed()
        places = torch.tensor(item.chosen, dtype=torch.int64, device=read.device)
        self._pending += zip(read, item.outputs[places], strict=True)

    def finish(self, prepared: PreparedWorkload, calls: int, *, draw: Draw | None = None) -> None:
        """Compare the chosen calls with fresh answers, and passes on other distributions with known ones.

        Args:
            prepared: The workload.
            calls: The calls of a pass.
            draw: Draws candidates for further passes where too few calls were compared to call the function safe in
                CUDA graphs; None if it would not be anyway.

        Raises:
            NotCapturable: Outputs are wrong, for which the capture may be to blame.
            WorkerLost: The worker ended.
        """
        self.verify()
        SECRET.shuffle(self._pending)
        waiting, self._pending = self._pending[:_VERIFIED_CALLS], []
        self._compare(prepared, waiting, _VERIFY_SECONDS, least=2)
        if draw is not None:
            self._compare_further(prepared, calls, draw)
        self._check_other_distributions(prepared, calls)
        self._verifier.check_together(prepared)

    def _compare(self, prepared: PreparedWorkload, waiting: _Calls, budget_seconds: float, least: int) -> None:
        """Compare calls with fresh answers, in ever larger groups: all within the time, and some in any case."""
        most = max(1, min(self._function.slots.count, _BATCH_BYTES // max(self._function.layout.size_bytes, 1)))
        seconds = self._function.context.seconds
        begin, done, count = seconds(), 0, min(2, most)
        while waiting and (done < least or count > 0):
            some, waiting = waiting[: max(count, 1)], waiting[max(count, 1) :]
            inputs, outputs = (torch.stack(memories) for memories in zip(*some, strict=True))
            self._verifier.verify_many(prepared, inputs, outputs)
            done, spent = done + len(some), max(seconds() - begin, 1e-6)
            count = min(most, int((budget_seconds - spent) * done / spent))

    def _compare_further(self, prepared: PreparedWorkload, calls: int, draw: Draw) -> None:
        """Make passes whose time does not count, until enough replays were compared with fresh answers.

        Memory bounds the calls that wait for a comparison, and the answers of a slow reference cost time, so timed
        passes alone do not show this of large tensors or a slow reference.

        Raises:
            NotCapturable: Outputs are wrong, or missing.
        """
        verifier, seconds = self._verifier, self._function.context.seconds
        deadline, before = seconds() + _FURTHER_SECONDS, -1
        while before < verifier.fresh < MIN_VERIFIED and seconds() < deadline:
            before = verifier.fresh
            candidates = draw(prepared)
            self._function.slots.candidates.copy_(candidates)
            made = self._passes.run(native.SOLUTION, calls, is_timed=False)
            self.add(made, candidates, MIN_VERIFIED - verifier.fresh)
            self.verify()
            waiting, self._pending = self._pending, []
            self._compare(prepared, waiting, deadline - seconds(), least=1)

    def _check_other_distributions(self, prepared: PreparedWorkload, calls: int) -> None:
        """Make a pass on inputs of each other distribution: the calls that were timed are right on them as well.

        Raises:
            NotCapturable: Outputs are wrong.
        """
        slots = self._function.slots
        for item in prepared.trials:
            if item.distribution == "normal" or self._function.has_setup:
                continue
            slots.inputs[:] = item.inputs
            slots.candidates[:] = item.inputs
            made = self._passes.run(native.SOLUTION, calls, is_timed=False)
            where = f"captured calls on inputs of distribution {item.distribution}"
            if self._passes.recompute(made, slots.outputs):
                raise NotCapturable(f"{where} left outputs unwritten")
            for slot in SECRET.sample(range(made.calls), min(made.calls, _MAX_SLOTS)):
                (read,) = self._passes.inputs_of([slot], item.inputs, item.inputs.expand(2, -1))
                if not torch.equal(slots.inputs[slot], read):
                    raise _inputs_changed()
                if not torch.equal(read, item.inputs):
                    continue  # a link has swapped adjacent elements: nobody has answered that
                try:
                    self._function.compare(item, slots.outputs[slot].clone(), where)
                except Rejected as error:
                    raise NotCapturable(error.message) from error
                self.distributions.add(item.distribution)
                break


def _inputs_changed() -> Rejected:
    problem = "an input tensor was changed; a function must not write to its inputs"
    return Rejected(EvaluationStatus.RUNTIME_ERROR, problem)
