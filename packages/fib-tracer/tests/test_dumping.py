import pytest
import torch
from fib_tracer.policies import DumpAll, DumpByFunction, DumpInt, DumpNamed, DumpNone

from .conftest import GATHER

INPUTS = {"table": torch.ones(4, 8), "rows": torch.tensor([1, 2]), "mask": torch.tensor([True, False]), "scale": 2}


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        (DumpAll(), ["table", "rows", "mask", "scale"]),
        (DumpNone(), []),
        (DumpInt(), ["rows", "mask"]),
        (DumpNamed(["mask", "table", "no_such_input"]), ["table", "mask"]),
        (DumpNamed(["table"], [DumpInt()]), ["table", "rows", "mask"]),
        (DumpByFunction(lambda inputs: [name for name in inputs if name.startswith("t")]), ["table"]),
    ],
)
def test_policies_choose_the_stored_inputs(policy, chosen):
    """`always_dumped` and `dump` agree."""
    assert list(policy.dump(INPUTS)) == chosen
    ahead = policy.always_dumped(GATHER)
    tensors = [name for name in chosen if name != "scale"]
    assert ahead is None or [name for name in ahead if name != "scale"] == tensors


def test_a_function_in_a_list_is_called_for_each_call():
    policy = DumpNamed(["table"], [DumpByFunction(lambda inputs: ["rows"] if inputs["scale"] else [])])
    assert policy.always_dumped(GATHER) is None
    assert list(policy.dump(INPUTS)) == ["table", "rows"]
    assert list(policy.dump({**INPUTS, "scale": 0})) == ["table"]
