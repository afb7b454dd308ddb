"""What is kept of resolved calls: entries by shapes, and one that is tried first."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
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


class Interrupting:
    """Shapes that do something while they are looked up, as the handler of a signal may."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act
        self.is_armed = False

    def __hash__(self) -> int:
        if self.is_armed:
            self.is_armed = False
            self.act()
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other


@pytest.mark.parametrize("change", ["install", "favour", "forget"])
@pytest.mark.parametrize("during", ["install", "favour", "forget"])
def test_a_handler_may_change_what_is_being_changed(during: str, change: str) -> None:
    """In the same thread: it must neither wait for itself nor have what was forgotten come back."""
    kept, first, second = way(), entry(), entry()
    changes = {
        "install": lambda: kept.install((3,), entry(), kept.generation),
        "favour": lambda: kept.favour((2,), second),
        "forget": kept.forget,
    }
    shapes = Interrupting(changes[change])
    kept.install((2,), second, kept.generation)
    if during != "install":
        kept.install(shapes, first, kept.generation)
    shapes.is_armed = True
    if during == "forget":
        kept.forget()
    elif during == "favour":
        kept.favour(shapes, first)
    else:
        kept.install(shapes, first, kept.generation)
    assert not shapes.is_armed
    if change == "forget":
        assert not {id(first), id(second)} & {id(kept.favourite[0]), *map(id, kept.entries.values())}
    assert kept.favourite[0] in kept.entries.values() or not kept.favourite[0][0]()


def test_a_call_does_not_wait_to_favour_its_entry() -> None:
    kept, second = way(), entry()
    kept.install((1,), entry(), kept.generation)
    kept.install((2,), second, kept.generation)
    with ThreadPoolExecutor(1) as others, kept._lock:
        others.submit(kept.favour, (2,), second).result(timeout=60)
    assert kept.favourite != [second]
