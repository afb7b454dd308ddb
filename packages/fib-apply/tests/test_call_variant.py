"""The cache of a call variant: entries by shapes, and the inline cache."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from fib_apply.routing.call_variant import _MAX_ENTRIES, CacheEntry, CallVariant
from fib_schema import AxisVar, Definition, TensorSpec

DEFINITION = Definition(
    "copy",
    "elementwise",
    axes={"m": AxisVar()},
    inputs={"x": TensorSpec(("m",), "float32")},
    outputs={"y": TensorSpec(("m",), "float32")},
    reference="def run(x):\n    return x\n",
)


def entry() -> CacheEntry:
    return (lambda *args: True, lambda *args: args, int)


def make_variant() -> CallVariant:
    return CallVariant(DEFINITION, is_destination_passing=False, is_cached=True)


def test_the_first_entry_goes_into_the_inline_cache() -> None:
    variant, first = make_variant(), entry()
    assert not variant.inline_cache[0][0]()
    variant.install((1,), first, variant.generation)
    variant.install((2,), entry(), variant.generation)
    assert variant.inline_cache == [first]


def test_promotion_replaces_the_inline_cache_entry() -> None:
    variant, second = make_variant(), entry()
    variant.install((1,), entry(), variant.generation)
    variant.install((2,), second, variant.generation)
    variant.promote((2,), second)
    assert variant.inline_cache == [second]


def test_an_invalidated_entry_is_neither_promoted_nor_installed() -> None:
    """A call may find an entry just before it is invalidated."""
    variant, first = make_variant(), entry()
    variant.install((1,), first, variant.generation)
    variant.invalidate()
    assert not variant.inline_cache[0][0]()
    variant.promote((1,), first)
    variant.install((1,), first, variant.generation - 1)
    assert not variant.inline_cache[0][0]()


def test_the_number_of_entries_is_bounded_and_the_inline_cache_holds_no_dropped_one() -> None:
    variant, entries = make_variant(), [entry() for _ in range(_MAX_ENTRIES + 1)]
    for size, each in enumerate(entries):
        variant.install((size,), each, variant.generation)
    assert len(variant.entries) == _MAX_ENTRIES // 2 + 1
    assert variant.inline_cache[0] in variant.entries.values()


def test_promotion_does_not_wait_for_the_lock() -> None:
    variant, second = make_variant(), entry()
    variant.install((1,), entry(), variant.generation)
    variant.install((2,), second, variant.generation)
    with ThreadPoolExecutor(1) as others, variant._lock:
        others.submit(variant.promote, (2,), second).result(timeout=60)
    assert variant.inline_cache != [second]
