"""Tests of the precision check: few bits are flagged, sums in another order are not."""

import pytest
import torch
from fib_bench.checking.precision import (
    LOW_PRECISION,
    MAX_MOVE,
    PrecisionWatch,
    error_bounds,
    move_inputs,
    relative_errors,
)
from hypothesis import given
from hypothesis import strategies as st

SIXTEEN_BITS = [torch.bfloat16, torch.float16]


def call(**outputs):
    return {name: tensor[None] for name, tensor in outputs.items()}


class TestMovedInputs:
    def test_floats_move_a_little_and_integers_stay(self):
        inputs = {"x": torch.randn(100), "n_ids": torch.arange(100)}
        before = inputs["x"].clone()
        assert move_inputs(inputs)
        assert torch.equal(inputs["n_ids"], torch.arange(100))
        assert 0 < ((inputs["x"] - before) / before).abs().max() <= 1.1 * MAX_MOVE

    @pytest.mark.parametrize("dtype", SIXTEEN_BITS)
    def test_numbers_of_sixteen_bits_move_to_a_neighbour(self, dtype):
        inputs = {"x": torch.randn(1000).to(dtype), "weight": torch.randn(1000)}
        before = {name: tensor.clone() for name, tensor in inputs.items()}
        assert move_inputs(inputs)
        steps = inputs["x"].view(torch.int16) - before["x"].view(torch.int16)
        assert set(steps.tolist()) == {-1, 1}
        share = ((inputs["weight"] - before["weight"]) / before["weight"]).abs()
        assert torch.finfo(dtype).eps / 2 < share.max() <= 1.01 * torch.finfo(dtype).eps

    @pytest.mark.parametrize("dtype", SIXTEEN_BITS)
    @given(bits=st.lists(st.integers(-(2**15), 2**15 - 1), min_size=1, max_size=20))
    def test_zeros_signs_and_what_is_not_finite_stay(self, dtype, bits):
        before = torch.tensor(bits, dtype=torch.int16).view(dtype)
        after = before.clone()
        move_inputs({"x": after})
        stays = (before == 0) | ~before.isfinite()
        assert torch.equal(before[stays].view(torch.int16), after[stays].view(torch.int16))
        assert torch.equal(before.signbit(), after.signbit())
        assert bool(after[~stays].isfinite().all())
        assert not bool((after[~stays] == 0).any())

    @pytest.mark.parametrize("inputs", [{}, {"x": torch.arange(3)}, {"x": torch.ones(3).to(torch.float8_e4m3fn)}])
    def test_what_cannot_be_judged_does_not_move(self, inputs):
        both = {**inputs, "weight": torch.ones(3)} if "x" in inputs and inputs["x"].is_floating_point() else inputs
        assert not move_inputs(both)
        assert "weight" not in both or torch.equal(both["weight"], torch.ones(3))


class TestErrors:
    def test_rows_in_which_a_tie_was_resolved_otherwise_do_not_count(self):
        expected = torch.randn(100, 64)
        found = expected * (1 + 1e-5)
        found[:20] = torch.randn(20, 64)
        assert relative_errors(call(y=found), call(y=expected)) == {"y": [pytest.approx(1e-5, rel=0.02)]}


class TestBounds:
    @pytest.mark.parametrize(
        ("moves", "bounds"),
        [
            (1e-5, {"y": 2**-14}),
            (1e-4, {"y": pytest.approx(4e-4, rel=0.01)}),
            (1e-2, {}),  # it jumps
            (0.0, {}),  # it stays: it was rounded
        ],
    )
    def test_outputs_of_float32_that_jump_or_stay_have_none(self, moves, bounds):
        expected = torch.linspace(1, 2, 100)
        found = error_bounds({"x": torch.ones(3)}, call(y=expected * (1 + moves)), call(y=expected))
        assert found == bounds


def rounded_sum(parts, dtype):
    """A sum that is kept in a dtype."""
    total = torch.zeros_like(parts[0])
    for part in parts:
        total = (total + part).to(dtype).float()
    return total


class TestMatrixProducts:
    """Products of bfloat16 and float16 matrices, computed in different ways."""

    @pytest.fixture(params=SIXTEEN_BITS, ids=str)
    def dtype(self, request):
        return request.param

    def operands(self, dtype, k):
        torch.manual_seed(k)
        return {"a": (torch.randn(16, k) / 4).to(dtype), "b": (torch.randn(k, 32) / 4).to(dtype)}

    def is_flagged(self, k, dtype, found, *, gives=None):
        inputs, gives = self.operands(dtype, k), gives or dtype
        moved = {name: tensor.clone() for name, tensor in inputs.items()}
        assert move_inputs(moved)
        outputs = [call(y=(x["a"].float() @ x["b"].float()).to(gives)) for x in (inputs, moved)]
        watch = PrecisionWatch(error_bounds(inputs, outputs[1], outputs[0]))
        watch.record(call(y=found.to(gives)), outputs[0])
        (entry,) = watch.to_extra().values()
        assert isinstance(entry, dict)
        assert (entry["error"] > entry["bound"]) is (watch.flags() == ["low_precision"])
        return bool(watch.flags())

    @pytest.mark.parametrize("k", [64, 1024, 16_384])
    def test_float32_sums_in_any_order_are_not_flagged(self, dtype, k):
        x, y = (tensor.float() for tensor in self.operands(dtype, k).values())
        for step in (7, 64):
            total = rounded_sum([x[:, i : i + step] @ y[i : i + step] for i in range(0, k, step)], torch.float32)
            for gives in (dtype, torch.float32):
                assert not self.is_flagged(k, dtype, total, gives=gives)

    @pytest.mark.parametrize("k", [64, 1024, 16_384])
    @pytest.mark.parametrize("splits", [2, 8, 16])
    def test_split_sums_of_sixteen_bits_are_not_flagged(self, dtype, k, splits):
        x, y = (tensor.float() for tensor in self.operands(dtype, k).values())
        parts = [(x[:, i::splits] @ y[i::splits]).to(dtype).float() for i in range(splits)]
        assert not self.is_flagged(k, dtype, torch.stack(parts).sum(dim=0))
        assert not self.is_flagged(k, dtype, rounded_sum(parts, dtype))  # by atomic additions

    @pytest.mark.parametrize(("k", "step"), [(1024, 8), (4096, 32), (16_384, 128)])
    def test_sums_kept_in_sixteen_bits_are_flagged(self, dtype, k, step):
        x, y = (tensor.float() for tensor in self.operands(dtype, k).values())
        total = rounded_sum([x[:, i : i + step] @ y[i : i + step] for i in range(0, k, step)], dtype)
        for gives in (dtype, torch.float32):
            assert self.is_flagged(k, dtype, total, gives=gives)

    @pytest.mark.parametrize("k", [64, 1024, 16_384])
    @pytest.mark.parametrize("operands", [torch.float8_e4m3fn, torch.float8_e5m2])
    def test_operands_of_eight_bits_are_flagged(self, dtype, k, operands):
        x, y = (tensor.float() for tensor in self.operands(dtype, k).values())
        assert self.is_flagged(k, dtype, x.to(operands).float() @ y.to(operands).float())
        assert self.is_flagged(k, dtype, x.to(operands).float() @ y)


def test_an_output_is_flagged_only_if_it_is_off_in_every_set():
    expected = call(y=torch.ones(4))
    watch = PrecisionWatch({"y": 1e-3})
    assert (watch.flags(), watch.to_extra()) == ([], {})
    watch.record(call(y=torch.full((4,), 1.1)), expected)
    assert watch.flags() == ["low_precision"]
    watch.record(expected, expected)
    assert (watch.flags(), watch.to_extra()) == ([], {"y": {"error": 0.0, "bound": 1e-3}})


def rounded_to(x, bits):
    half = 1 << (22 - bits)
    return ((x.view(torch.int32) + half) & -(2 * half)).view(torch.float32)


class TestFloat32:
    """Products of float32 matrices."""

    def flags(self, x, w, found):
        moved = {"x": x.clone(), "w": w.clone()}
        assert move_inputs(moved)
        exact = call(y=x @ w)
        watch = PrecisionWatch(error_bounds(moved, call(y=moved["x"] @ moved["w"]), exact))
        watch.record(call(y=found), exact)
        return watch.flags()

    @pytest.mark.parametrize("k", [64, 1024, 16_384])
    def test_operands_with_few_bits_are_flagged_and_sums_in_any_order_are_not(self, k):
        torch.manual_seed(k)
        x, w = torch.randn(8, k), torch.randn(k, 16)
        for step in (3, 7, 64):
            parts = [x[:, i : i + step] @ w[i : i + step] for i in range(0, k, step)]
            assert self.flags(x, w, rounded_sum(parts, torch.float32)) == []
        for bits in (10, 9):
            assert self.flags(x, w, rounded_to(x, bits) @ rounded_to(w, bits)) == [LOW_PRECISION]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_a_small_input_of_fewer_bits_does_not_excuse_the_rounding_of_large_ones(dtype):
    x, w, bias = torch.randn(64, 2048), torch.randn(2048, 32), torch.randn(32).to(dtype)
    moved = {"x": x.clone(), "w": w.clone(), "bias": bias.clone()}
    assert move_inputs(moved)
    assert torch.equal(moved["bias"].view(torch.uint8), bias.view(torch.uint8))
    exact, changed = (call(y=each["x"] @ each["w"] + bias.float()) for each in ({"x": x, "w": w}, moved))
    (bound,) = error_bounds(moved, changed, exact).values()
    rounded = call(y=(x.bfloat16() @ w.bfloat16()).float() + bias.float())
    assert relative_errors(rounded, exact)["y"] > [bound] > relative_errors(exact, exact)["y"]
