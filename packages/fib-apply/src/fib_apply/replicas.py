"""Replicas: processes such as tensor-parallel ranks, which must serve a call by the same kernel.

All change what they route at one point only, `ApplyRuntime.synchronize`, and to the same: within a deadline each gets
the states of all, or none uses them, and each derives the same `Agreement` from these. A store of `torch.distributed`
decides that for all: the first replica that has seen all states, or whose wait is over, writes the decision, and the
others read it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import msgspec

if TYPE_CHECKING:
    from fib_compile import Runnable

_POLL_SECONDS = 0.01
_GRACE_SECONDS = 5.0
"""For operations of the store after the deadline."""
_ALL = b"all states are here"
_numbers: dict[tuple[str, int, int], Iterator[int]] = {}
"""Numbers of the groups of this process by name, rank and size: a later one must not read what an earlier one wrote."""


class NoAgreement(Exception):
    """The replicas have not agreed; the message says why."""


class _Store(Protocol):
    """The part of `torch.distributed.Store` that is used."""

    def set(self, key: str, value: Any) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...
    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes: ...


@attrs.define
class ReplicaGroup:
    """The processes that must route alike, as one of them sees them.

    Made by `of_process_group` or `of_store`; one for each runtime, in the same order on all replicas.
    """

    size: int
    """Number of replicas."""
    _exchange: Callable[[bytes, float], list[bytes]] = attrs.field(repr=False)

    @classmethod
    def of_process_group(cls, group: Any = None, *, name: str = "fib_apply") -> ReplicaGroup:
        """The members of a process group of `torch.distributed`; by default, all processes.

        The store of the group is used, and no collective operation: a member that is late or dead does not break the
        group.

        Args:
            group: The process group.
            name: Equal on all members; another one for runtimes that only some members make.

        Raises:
            ValueError: `torch.distributed` is not initialized, or this process is no member.
        """
        from torch import distributed
        from torch.distributed import distributed_c10d

        found = distributed_c10d._get_default_group() if group is None else group  # noqa: SLF001 torch has no public name
        rank = distributed.get_rank(found)
        if rank < 0:
            raise ValueError("this process is not a member of the process group")
        store = distributed_c10d._get_process_group_store(found)  # noqa: SLF001 torch has no public name for it
        return cls.of_store(store, rank, distributed.get_world_size(found), name=name)

    @classmethod
    def of_store(cls, store: _Store, rank: int, size: int, *, name: str = "fib_apply") -> ReplicaGroup:
        """Replicas that share a store, for example a `torch.distributed.TCPStore`.

        Args:
            store: The store.
            rank: The number of this replica, from 0.
            size: The number of replicas.
            name: Equal on all replicas; another one for runtimes that only some replicas make.
        """
        number = next(_numbers.setdefault((name, rank, size), itertools.count()))
        return cls(size, _StoreExchange(store, rank, size, f"{name}/{number}").exchange)

    def exchange(self, state: bytes, timeout_seconds: float) -> list[bytes]:
        """The states of all replicas, by rank; all replicas get them, or none.

        Args:
            state: Of this replica.
            timeout_seconds: How long to wait for the others.

        Raises:
            NoAgreement: A replica did not come in time, or an operation failed.
        """
        results: list[list[bytes] | Exception] = []
        deadline = time.monotonic() + timeout_seconds

        def run() -> None:
            try:
                results.append(self._exchange(state, deadline))
            except Exception as error:  # noqa: BLE001 of the engine's function or of a store whose host is gone
                results.append(error)

        thread = threading.Thread(target=run, name="fib-apply-replicas", daemon=True)
        thread.start()
        thread.join(timeout_seconds + _GRACE_SECONDS)
        found = results[0] if results else TimeoutError(f"no answer within {timeout_seconds + _GRACE_SECONDS:g} s")
        if isinstance(found, NoAgreement):
            raise found
        if isinstance(found, Exception):
            raise NoAgreement(f"the exchange failed: {type(found).__name__}: {found}") from found
        return found


@attrs.define
class _StoreExchange:
    """Exchanges through a store. Each round has its own keys and one decision."""

    _store: _Store
    _rank: int
    _size: int
    _name: str
    _round: int = 0

    def exchange(self, state: bytes, deadline: float) -> list[bytes]:
        """The states of all replicas, by rank.

        Raises:
            NoAgreement: The decision is that a replica did not come in time.
        """
        self._round += 1  # the n-th exchange of each replica: later ones would be at another place of its calls
        if self._store.check([self._key("decision")]):
            earlier = self._store.get(self._key("decision"))
            raise NoAgreement("it was decided without this rank" if earlier == _ALL else earlier.decode())
        states, seen = ([self._key(f"{kind} {rank}") for rank in range(self._size)] for kind in ("state", "seen"))
        missing: list[int] = []
        for keys, value in ((states, state.decode()), (seen, "yes")):  # a replica that dies meanwhile is not seen
            if not missing:
                self._store.set(keys[self._rank], value)
                missing = self._wait(keys, deadline)
        proposed = f"ranks did not come in time: {', '.join(map(str, missing))}" if missing else _ALL.decode()
        decided = self._store.compare_set(self._key("decision"), "", proposed)
        if decided != _ALL:
            raise NoAgreement(decided.decode())
        return [self._store.get(key) for key in states]

    def _wait(self, keys: Sequence[str], deadline: float) -> list[int]:
        """Wait for keys, and return the ranks of those that are missing at the deadline or at the decision."""
        missing = list(range(self._size))
        while True:
            missing = [rank for rank in missing if not self._store.check([keys[rank]])]
            if not missing or time.monotonic() >= deadline or self._store.check([self._key("decision")]):
                return missing
            time.sleep(_POLL_SECONDS)

    def _key(self, last: str) -> str:
        return f"{self._name}/{self._round}/{last}"


# -- what all may call -------------------------------------------------------------------------------


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
