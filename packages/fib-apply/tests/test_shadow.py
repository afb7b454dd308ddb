"""Shadow mode: bounded memory, no allocation failure for the caller, random numbers of its own."""

import random

import pytest
import torch
from apply_samples import SCALE, set_of
from fib_apply import ApplyConfig, apply, enable_apply
from fib_apply.routing.shadow import OutputMismatch, compare_outputs

pytestmark = pytest.mark.usefixtures("without_probes")

SHADOW = ApplyConfig(shadow_ratio=1.0, on_error="fallback")


def test_wrong_elements_are_counted_over_the_whole_output():
    found, expected = torch.ones(1 << 20, 4), torch.ones(1 << 20, 4)
    found[::1000, 0] = 2
    with pytest.raises(OutputMismatch, match=r"1049 of 4194304 elements"):
        compare_outputs(SCALE, found, expected, None)
    with pytest.raises(OutputMismatch, match=r"1 of 1 elements"):
        compare_outputs(SCALE, torch.tensor(1.0), torch.tensor(2.0), None)
    compare_outputs(SCALE, torch.empty(0, 4), torch.empty(0, 4), None)
    compare_outputs(SCALE, torch.tensor([float("nan"), float("inf")]), torch.tensor([float("nan"), float("inf")]), None)


OUT_OF_MEMORY = "import torch\ndef run(x, y):\n    raise torch.OutOfMemoryError('CUDA out of memory')\n"
PLAIN = "def run(x, y):\n    y.copy_(2 * x)\n"


@pytest.fixture(name="scale")
def scale_fixture():
    @apply("scale")
    def scale(x, y=None):
        return 2 * x if y is None else y.copy_(2 * x)

    return scale


@pytest.mark.parametrize("is_passing", [False, True])
def test_a_solution_without_memory_in_a_shadow_run_is_not_quarantined(is_passing, scale):
    x, y = torch.ones(2, 4), torch.zeros(2, 4)
    with enable_apply(set_of(OUT_OF_MEMORY), SHADOW, stats=True) as runtime:
        result = scale(x, y) if is_passing else scale(x)
        assert torch.equal(y if is_passing else result, 2 * x)
        assert runtime.left_out() == {}


@pytest.mark.parametrize("step", ["clone", "compare_outputs"])
def test_an_allocation_failure_of_the_comparison_does_not_reach_the_caller(step, scale, monkeypatch):
    def fail(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    x, y = torch.ones(2, 4), torch.zeros(2, 4)
    with enable_apply(set_of(PLAIN), SHADOW) as runtime:
        scale(x, y)
        with monkeypatch.context() as patch:
            if step == "clone":
                patch.setattr("fib_apply.routing.shadow.torch.Tensor.clone", fail)
            else:
                patch.setattr("fib_apply.routing.shadow.compare_outputs", fail)
            y.zero_()
            scale(x, y)
            result = scale(x)
        assert torch.equal(y, 2 * x)
        assert torch.equal(result, 2 * x)
        assert runtime.left_out() == {}


@pytest.mark.parametrize("is_passing", [False, True])
def test_the_solution_serves_a_call_whose_fallback_finds_no_memory_beside_it(is_passing):
    @apply("scale")
    def scale(x, y=None):
        raise torch.OutOfMemoryError("CUDA out of memory")

    x, y = torch.ones(2, 4), torch.zeros(2, 4)
    with enable_apply(set_of(PLAIN), SHADOW):
        result = scale(x, y) if is_passing else scale(x)
    assert torch.equal(y if is_passing else result, 2 * x)


def test_the_global_random_generator_is_not_used(scale):
    x = torch.ones(2, 4)
    config = ApplyConfig(shadow_ratio=0.5)
    with enable_apply(set_of(PLAIN), config):
        scale(x)
        before = random.getstate()
        for _ in range(10):
            scale(x)
            apply("scale", args=(x,), fallback=scale)
        assert random.getstate() == before
