"""Agreement: what all replicas may call, derived from their states in the same way on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import msgspec

from .exchange import NoAgreement

if TYPE_CHECKING:
    from fib_compile import Runnable


class ReplicaState(msgspec.Struct, frozen=True):
    """State that one replica sends to the others."""

    table: str
    """The hash of its table, or why it routes nothing."""
    solutions: dict[str, str] = {}
    """The loaded solutions, each with its content hash."""
    left_out: list[str] = []
    """Solutions that it cannot use."""
    quarantined: list[tuple[str, str, str]] = []
    """Definition, solution and reason."""
    runs: list[str] = []
    """First runs whose kernels are compiled."""

    def to_json(self) -> bytes:
        """The state as JSON."""
        return msgspec.json.encode(self)


@attrs.frozen
class Agreement:
    """State that all replicas have in common."""

    solutions: frozenset[str]
    left_out: frozenset[str]
    quarantined: Mapping[str, Mapping[str, str]]
    """By definition and solution, the reason."""
    runs: frozenset[str]

    @classmethod
    def of(cls, encoded: Sequence[bytes]) -> Agreement:
        """The agreement of replicas with these states, by rank.

        Raises:
            NoAgreement: Tables differ, or a state is invalid.
        """
        try:
            states = [msgspec.json.decode(one, type=ReplicaState) for one in encoded]
        except msgspec.MsgspecError as error:
            raise NoAgreement(f"a state is invalid: {error}") from error
        if other := [rank for rank, state in enumerate(states) if state.table != states[0].table]:
            hashes = ", ".join(f"rank {rank}: {states[rank].table:.12}" for rank in (0, other[0]))
            raise NoAgreement(f"tables differ: {hashes}; all ranks need the same data set, settings and versions")
        quarantined: dict[str, dict[str, str]] = {}
        for rank, state in enumerate(states):
            for definition, solution, reason in state.quarantined:
                quarantined.setdefault(definition, {}).setdefault(solution, f"{reason} (on rank {rank})")
        solutions = set.intersection(*(set(state.solutions.items()) for state in states))
        return cls(
            frozenset(name for name, _ in solutions),
            frozenset(name for state in states for name in state.left_out),
            quarantined,
            frozenset.intersection(*(frozenset(state.runs) for state in states)),
        )

    @property
    def excluded(self) -> frozenset[str]:
        """Solutions that some replica cannot use or has quarantined."""
        return self.left_out | {solution for found in self.quarantined.values() for solution in found}


@attrs.frozen(eq=False)
class AgreedKernels:
    """Kernels that this replica may call until the next agreement; initially none."""

    runnables: Mapping[str, Runnable] = attrs.field(factory=dict)
    """The loaded solutions that all replicas have. Kept here, because a reload may replace those of equal name."""
    runs: frozenset[str] = frozenset()
    """First runs whose kernels are compiled on all replicas."""
    own_runs: frozenset[str] = frozenset()
    """First runs whose kernels are compiled on this replica; they need not be compiled again."""


@attrs.frozen
class Synchronization:
    """The result of `ApplyRuntime.synchronize`; equal on all replicas but for the text of the problem."""

    is_agreed: bool
    problem: str = ""
    """Reason for keeping the previous state; empty if the replicas agreed."""
    solutions: tuple[str, ...] = ()
    """The solutions that all replicas may call from now on."""
