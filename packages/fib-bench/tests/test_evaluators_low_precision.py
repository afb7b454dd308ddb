"""Tests of the evaluator of quantised outputs: steps, bias, scales, and whole evaluations."""

import pytest
import torch
from fib_bench import ResolvedEvalConfig
from fib_bench.evaluators.low_precision import InSteps, LowPrecision
from fib_bench.evaluators.protocol import Case

from .samples import judged, make_definition

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FLOATS = {"float8_e4m3fn": E4M3, "float8_e5m2": E5M2}


def check_of(definition, expected, **fields):
    config = LowPrecision().settings(ResolvedEvalConfig(**fields))
    check = LowPrecision().check(Case(definition=definition, inputs={}, expected=expected, config=config))
    assert isinstance(check, InSteps)
    return check


def fp4(codes):
    """Pairs of fp4 numbers, given by their codes."""
    return (codes[..., ::2] | (codes[..., 1::2] << 4)).to(torch.uint8).view(torch.float4_e2m1fn_x2)


class TestOneFormat:
    @pytest.fixture(params=list(FLOATS))
    def dtype(self, request):
        return FLOATS[request.param]

    @pytest.fixture
    def definition(self, dtype):
        name = str(dtype).removeprefix("torch.")
        return make_definition({"x": "bfloat16[n,m]"}, {"y": f"{name}[n,m]"}, "def run(x): ...\n", op_type="quant")

    @pytest.fixture
    def values(self):
        torch.manual_seed(0)
        return torch.randn(64, 256)

    def verdict(self, definition, values, found, dtype):
        expected = {"y": values.to(dtype)}
        return check_of(definition, expected).compare({"y": found.to(dtype)}, expected)

    @pytest.mark.parametrize("error", [0.0, 1e-3, 1e-2, 4e-2])
    def test_values_that_differ_before_they_are_rounded_are_right(self, definition, values, dtype, error):
        found = values * (1 + error * torch.randn_like(values))
        assert not self.verdict(definition, values, found, dtype).problems

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (torch.zeros_like, " wrong; first ["),
            (lambda x: x * 1.1, "rounding steps away from zero"),
            (lambda x: x * 0.9, "rounding steps towards zero"),
            (lambda x: x * 0.75, " wrong; first ["),
            (lambda x: -x, " wrong; first ["),
            (lambda x: x.flip(0), "wrong"),
            (lambda x: torch.where(torch.rand_like(x) < 0.02, 0.0, x), " wrong; first ["),
            (lambda x: x + 400 * (torch.arange(x.numel()) == 7).view_as(x), "1 beyond the error cap"),
            (lambda x: x.masked_fill(torch.arange(x.numel()).view_as(x) == 7, torch.nan), "beyond the error cap"),
        ],
        ids=["zeros", "larger", "smaller", "far smaller", "negated", "other rows", "holes", "outlier", "NaN"],
    )
    def test_wrong_values_are_told(self, definition, values, dtype, change, said):
        problems = self.verdict(definition, values, change(values), dtype).problems
        assert len(problems) == 1
        assert said in problems[0]

    def test_cutting_digits_off_is_no_rounding(self, definition, values, dtype):
        expected = values.to(dtype)
        is_larger = expected.float().abs() > values.abs()
        lower = (expected.view(torch.uint8) - 1).view(dtype)
        cut = torch.where(is_larger & (expected.float() != 0), lower.float(), expected.float())
        (problem,) = self.verdict(definition, values, cut, dtype).problems
        assert "on average they are 0." in problem
        assert "rounding steps towards zero" in problem

    def test_one_step_is_right_everywhere_and_two_are_not(self, definition, dtype):
        codes = torch.arange(1, 120, dtype=torch.uint8)
        for steps, is_right in ((1, True), (2, False)):
            sign = torch.where(torch.arange(119) % 2 == 0, steps, -min(steps, 1)).to(torch.int16)
            found = (codes.to(torch.int16) + sign).clamp(min=0).to(torch.uint8).view(dtype)
            expected = {"y": codes.view(dtype)}
            check = check_of(definition, expected)
            comparison = check.parts["y"].compare(found, expected["y"])
            assert (comparison.wrong == 0) is is_right


def quantise(x, block, factor=1.0):
    """Blocks of the last axis with a scale each."""
    blocks = x.float().unflatten(-1, (-1, block))
    scale = blocks.abs().amax(dim=-1) / 448 * factor
    return {"y": (blocks / scale[..., None]).flatten(-2).to(E4M3), "y_scale": scale}


class TestScales:
    @pytest.fixture
    def definition(self):
        outputs = {"y": "float8_e4m3fn[n,m]", "y_scale": "float32[n,b]"}
        return make_definition({"x": "bfloat16[n,m]"}, outputs, "def run(x): ...\n", op_type="quant")

    @pytest.fixture
    def x(self):
        torch.manual_seed(0)
        return torch.randn(32, 512) * 10 ** torch.randn(32, 1)

    def test_what_differs_before_rounding_is_right(self, definition, x):
        expected = quantise(x, 128)
        check = check_of(definition, expected)
        assert check.scales == {"y": "y_scale"}
        assert not check.compare(quantise(x * (1 + 1e-3 * torch.randn_like(x)), 128), expected).problems

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda q: {**q, "y_scale": q["y_scale"] * 2}, ["y", "y_scale"]),
            (lambda q: {**q, "y_scale": torch.ones_like(q["y_scale"])}, ["y", "y_scale"]),
            (lambda q: {"y": (q["y"].float() / 2).to(E4M3), "y_scale": q["y_scale"] * 2}, ["y_scale"]),
            (lambda q: {**q, "y": (q["y"].float() * 0.7).to(E4M3)}, ["y"]),
            (lambda q: {"y": q["y"].roll(1, 0), "y_scale": q["y_scale"]}, ["y"]),
        ],
        ids=["scales", "no scales", "both", "values", "rows"],
    )
    def test_wrong_pairs_are_told(self, definition, x, change, said):
        expected = quantise(x, 128)
        problems = check_of(definition, expected).compare(change(expected), expected).problems
        assert [problem.split(":")[0] for problem in problems] == said

    @pytest.mark.parametrize("shape", [(), (1,), (32,), (32, 1), (32, 4), (4, 32)])
    def test_shapes_of_scales(self, shape):
        torch.manual_seed(0)
        axes = ",".join(f"a{i}" for i in range(len(shape)))
        outputs = {"q": "int8[n,m]", "scales": f"float32[{axes}]"}
        definition = make_definition({"x": "bfloat16[n,m]"}, outputs, "def run(x): ...\n", op_type="quant")
        expected = {"q": torch.randint(-127, 128, (32, 64), dtype=torch.int8), "scales": torch.rand(shape) + 0.5}
        check = check_of(definition, expected)
        assert check.scales == {"q": "scales"}
        near = (expected["q"].int() + torch.randint(-1, 2, (32, 64)) * (torch.rand(32, 64) < 0.2)).clamp(-127, 127)
        assert not check.compare({**expected, "q": near.to(torch.int8)}, expected).problems
        (problem,) = check.compare({**expected, "q": (expected["q"] // 2)}, expected).problems
        assert problem.startswith("q: ")

    @pytest.mark.parametrize("dtype", ["float4_e2m1", "int8"])
    def test_packed_fp4_with_scales_per_block(self, dtype):
        """Bytes that are not declared as fp4 are compared exactly."""
        torch.manual_seed(0)
        outputs = {"y_fp4": f"{dtype}[n,m]", "y_fp4_scale": "float8_e4m3fn[n,b]"}
        definition = make_definition({"x": "bfloat16[n,k]"}, outputs, "def run(x): ...\n", op_type="quant")
        codes = torch.randint(0, 16, (16, 128))
        scales = {"y_fp4_scale": (torch.rand(16, 8) + 0.5).to(E4M3)}
        packed, near, *wrong = (
            {"y_fp4": packed.view(torch.int8) if dtype == "int8" else packed, **scales}
            for packed in map(
                fp4,
                (
                    codes,
                    codes ^ (torch.rand(16, 128) < 0.1).long(),
                    codes & 7,
                    codes & 0xE,
                    codes * 0,
                    codes.roll(1, 1),
                ),
            )
        )
        check = check_of(definition, packed)
        assert not check.compare(packed, packed).problems
        assert bool(check.compare(near, packed).problems) is (dtype == "int8")
        assert all(check.compare(each, packed).problems for each in wrong)
        if dtype != "int8":
            assert check.scales == {"y_fp4": "y_fp4_scale"}
            assert check.parts["y_fp4"].to_extra()["format"] == "float4_e2m1"


REFERENCE = """
import torch
def run(x, w):
    y = x.float() @ w.float().T
    scale = y.abs().amax(dim=1, keepdim=True) / 448
    return (y / scale).to(torch.float8_e4m3fn), scale
"""
SOLUTIONS = {
    "bfloat16 products": ("y = x.float() @ w.float().T", "y = (x @ w.T).float()", True),
    "one scale for all": ("amax(dim=1, keepdim=True)", "amax().expand(len(y), 1)", False),
    "cut off": ("(y / scale)", "(y / scale * 0.95)", False),
}


@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_quantising_product_is_judged(name):
    outputs = {"y": "float8_e4m3fn[n,m]", "y_scale": "float32[n,1]"}
    definition = make_definition({"x": "bfloat16[n,64]", "w": "bfloat16[m,64]"}, outputs, REFERENCE, op_type="gemm_fp8")
    torch.manual_seed(0)
    inputs = {"x": torch.randn(32, 64).bfloat16(), "w": torch.randn(128, 64).bfloat16()}
    old, new, is_right = SOLUTIONS[name]
    assert bool(judged(definition, inputs, REFERENCE.replace(old, new))) != is_right
