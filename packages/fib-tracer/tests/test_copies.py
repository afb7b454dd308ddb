"""Tests of copies: the ring of pinned memory, and copies on the CPU."""

import torch
from fib_tracer.copies import ByteBudget, Copier, PinnedRing
from hypothesis import given
from hypothesis import strategies as st

_STEPS = st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 10)), max_size=60)


@given(_STEPS)
def test_blocks_in_use_never_overlap_and_are_freed(steps):
    """Blocks are freed in any order; when all are freed, the whole ring is available."""
    ring = PinnedRing(4096, is_pinned=False)
    begin = ring.memory.data_ptr()
    used = []
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
def test_a_ring_holds_at_least_what_it_was_made_for(size):
    assert PinnedRing(size, is_pinned=False).allocate(size) is not None


def test_a_copy_is_contiguous_and_has_the_values_of_the_call():
    x = torch.arange(12).reshape(3, 4).T
    seen = x.clone()
    budget = ByteBudget(1000)
    copier = Copier(budget)
    reservation = copier.reserve({"x": x}, overhead_bytes=4)
    assert budget.reserved_bytes == reservation.size_bytes == x.nbytes + 4
    pending = copier.copy(reservation)
    x.zero_()
    (copied,) = pending.wait().values()
    assert copied.is_contiguous()
    assert torch.equal(copied, seen)
