"""Input dump policies: what they choose, and what they know ahead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fib_schema import Definition
from fib_tracer import InputDumpPolicy
from fib_tracer.policies.dumping import DumpAll, DumpChosen, DumpInt, DumpNamed, DumpNone

from .conftest import DECODE, GATHER, SILU

INPUTS: dict[str, Any] = {
    "table": torch.ones(4, 8),
    "rows": torch.tensor([1, 2]),
    "mask": torch.tensor([True, False]),
    "scale": 2,
}


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        (DumpAll(), ["table", "rows", "mask", "scale"]),
        (DumpNone(), []),
        (DumpInt(), ["rows", "mask"]),
        (DumpNamed(["mask", "table", "no_such_input"]), ["table", "mask"]),
        (DumpNamed(["table"], [DumpInt()]), ["table", "rows", "mask"]),
        (DumpChosen(lambda inputs: [name for name in inputs if name.startswith("t")]), ["table"]),
    ],
)
def test_what_is_stored_of_a_call(policy: InputDumpPolicy, chosen: list[str]) -> None:
    """What is known ahead is what is chosen of the call."""
    assert list(policy.dump(INPUTS)) == chosen
    ahead = policy.always_dumped(GATHER)
    tensors = [name for name in chosen if name != "scale"]
    assert ahead is None or [name for name in ahead if name != "scale"] == tensors


@pytest.mark.parametrize(
    ("policy", "definition", "may"),
    [
        (DumpAll(), SILU, True),
        (DumpNone(), GATHER, False),
        (DumpInt(), SILU, False),
        (DumpInt(), DECODE, True),
        (DumpNamed(["sm_scale"]), DECODE, False),
        (DumpNamed(["q"]), DECODE, True),
        (DumpNamed([], [DumpNone(), DumpInt()]), SILU, False),
        (DumpNamed([], [DumpNone(), DumpInt()]), DECODE, True),
        (DumpChosen(lambda inputs: []), SILU, True),
    ],
)
def test_whether_anything_can_be_stored(policy: InputDumpPolicy, definition: Definition, may: bool) -> None:
    assert policy.may_dump(definition) is may


def test_a_function_among_named_ones_is_asked_at_each_call() -> None:
    policy = DumpNamed(["table"], [DumpChosen(lambda inputs: ["rows"] if inputs["scale"] else [])])
    assert policy.always_dumped(GATHER) is None
    assert list(policy.dump(INPUTS)) == ["table", "rows"]
    assert list(policy.dump({**INPUTS, "scale": 0})) == ["table"]
