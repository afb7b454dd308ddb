"""What is kept of resolved calls: entries by shapes, and one that is tried first."""

from __future__ import annotations

from fib_apply.routing.ways import _MOST_ENTRIES, Entry, Way
from fib_schema import AxisVar, Definition, TensorSpec

DEFINITION = Definition(
    "copy",
    "elementwise",
    axes={"m": AxisVar()},
    inputs={"x": TensorSpec(("m",), "float32")},
    outputs={"y": TensorSpec(("m",), "float32")},
    reference="def run(x):\n    return x\n",
)


def entry() -> Entry:
    return (lambda *args: True, lambda *args: args, int)


def way() -> Way:
    return Way(DEFINITION, is_passing=False, is_memoised=True)


def test_the_first_entry_is_tried_first() -> None:
    kept, first = way(), entry()
    assert not kept.favourite[0][0]()
    kept.install((1,), first, kept.generation)
    kept.install((2,), entry(), kept.generation)
    assert kept.favourite == [first]


def test_another_may_take_its_place() -> None:
    kept, second = way(), entry()
    kept.install((1,), entry(), kept.generation)
    kept.install((2,), second, kept.generation)
    kept.favour((2,), second)
    assert kept.favourite == [second]


def test_what_is_forgotten_does_not_come_back() -> None:
    """A call may have found an entry just before it was forgotten."""
    kept, first = way(), entry()
    kept.install((1,), first, kept.generation)
    kept.forget()
    assert not kept.favourite[0][0]()
    kept.favour((1,), first)
    kept.install((1,), first, kept.generation - 1)
    assert not kept.favourite[0][0]()


def test_no_more_entries_than_may_be_are_kept_and_none_that_is_dropped_is_tried() -> None:
    kept, entries = way(), [entry() for _ in range(_MOST_ENTRIES + 1)]
    for size, each in enumerate(entries):
        kept.install((size,), each, kept.generation)
    assert len(kept.entries) == _MOST_ENTRIES // 2 + 1
    assert kept.favourite[0] in kept.entries.values()
