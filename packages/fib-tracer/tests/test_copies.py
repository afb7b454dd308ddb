"""Tests of copies: the ring of pinned memory, and copies on the CPU."""

from __future__ import annotations

import contextlib
import functools

import pytest
import torch
from fib_tracer import copies
from fib_tracer.copies import ByteBudget, Copier, PinnedRing
from hypothesis import given
from hypothesis import strategies as st

_STEPS = st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 10)), max_size=60)


@given(_STEPS)
def test_blocks_in_use_never_overlap_and_are_freed(steps: list[tuple[int, int]]) -> None:
    """Blocks are freed in any order; when all are freed, the whole ring is available."""
    ring = PinnedRing(4096, is_pinned=False)
    begin = ring.memory.data_ptr()
    used: list[tuple[int, int, torch.Tensor]] = []
    for size, choice in steps:
        piece = ring.allocate(size)
        if piece is not None:
            first = piece.data_ptr() - begin
            assert piece.numel() == size
            assert first + size <= 4096
            assert all(first + size <= other or first >= end for other, end, _ in used)
            used.append((first, first + size, piece))
        if used and choice % 3:
            ring.free(used.pop(choice % len(used))[2])
    for _, _, piece in used:
        ring.free(piece)
    whole = ring.allocate(4096)
    assert whole is not None
    assert ring.allocate(1) is None
    ring.free(whole)


@given(st.integers(1, 5000))
def test_a_ring_holds_at_least_what_it_was_made_for(size: int) -> None:
    assert PinnedRing(size, is_pinned=False).allocate(size) is not None


def test_a_copy_is_contiguous_and_has_the_values_of_the_call() -> None:
    x = torch.arange(12).reshape(3, 4).T
    seen = x.clone()
    budget = ByteBudget(1000)
    copier = Copier(budget)
    reservation = copier.reserve({"x": x}, overhead_bytes=4)
    assert reservation is not None
    assert budget.reserved_bytes == reservation.size_bytes == x.nbytes + 4
    pending = copier.copy(reservation)
    x.zero_()
    (copied,) = pending.wait().values()
    assert copied.is_contiguous()
    assert torch.equal(copied, seen)


# -- the path of CUDA tensors, with a stand-in for the device ----------------------------------------


class OnDevice(torch.Tensor):
    """A CPU tensor that claims to be on a device."""

    is_cuda = True  # type: ignore[assignment] # of the class, in place of the property

    def record_stream(self, stream: object) -> None:
        """Do nothing."""


class Stream:
    """A stream or an event without work."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def wait_stream(self, other: Stream) -> None: ...

    def record(self, stream: Stream) -> None: ...

    def synchronize(self) -> None: ...


@pytest.fixture
def copier(monkeypatch: pytest.MonkeyPatch) -> Copier:
    """A copier with a budget of 3000 bytes, and a ring of 1024 bytes that is not pinned."""
    for name, value in {"Stream": Stream, "Event": Stream, "current_stream": Stream}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for name in ("stream", "device"):
        monkeypatch.setattr(torch.cuda, name, contextlib.nullcontext)
    monkeypatch.setattr(copies, "PinnedRing", functools.partial(PinnedRing, is_pinned=False))
    copier = Copier(ByteBudget(3000))
    copier._ring = PinnedRing(1024, is_pinned=False)
    return copier


@pytest.mark.parametrize("is_staged", [True, False])
def test_device_copies_pass_through_the_ring(copier: Copier, monkeypatch: pytest.MonkeyPatch, is_staged: bool) -> None:
    monkeypatch.setattr(copies, "_MAX_STAGED_BYTES", 4 << 20 if is_staged else 0)
    x, mask = torch.arange(12.0).reshape(3, 4).T, torch.tensor([True, False, True])
    tensors = {"x": x.as_subclass(OnDevice), "mask": mask.as_subclass(OnDevice), "scale": torch.tensor(0.5)}
    ring = copier._ring
    assert ring is not None
    for _ in range(5):  # the ring has room for two of them
        reservation = copier.reserve(tensors, overhead_bytes=10)
        assert reservation is not None
        assert copier._budget.reserved_bytes == reservation.size_bytes == 48 + 3 + 4 + 10
        copied = copier.copy(reservation).wait()
        assert [torch.equal(copied[name], value) for name, value in (("x", x), ("mask", mask))] == [True, True]
        assert copied["scale"] == 0.5
        assert not ring._blocks
        copier._budget.release(reservation.size_bytes)


def test_a_full_ring_releases_the_budget(copier: Copier) -> None:
    tensors = {"x": torch.ones(256, dtype=torch.uint8).as_subclass(OnDevice)}
    held = [copier.reserve(tensors, 0) for _ in range(4)]
    assert None not in held
    assert copier.reserve(tensors, 0) is None
    assert copier._budget.reserved_bytes == 4 * 256
    for reservation in held:
        copier.cancel(reservation)  # type: ignore[arg-type]
    assert copier._budget.reserved_bytes == 0
    assert copier.reserve({"x": torch.ones(2000, dtype=torch.uint8).as_subclass(OnDevice)}, 0) is not None


def test_a_copy_that_fails_is_cancelled(copier: Copier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", None)
    reservation = copier.reserve({"x": torch.ones(3).as_subclass(OnDevice)}, 0)
    assert reservation is not None
    with pytest.raises(TypeError):
        copier.copy(reservation)
    assert copier._budget.reserved_bytes == 0
    assert copier._ring is not None
    assert not copier._ring._blocks
