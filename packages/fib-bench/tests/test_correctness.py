"""The rule by which outputs are right or wrong."""

from __future__ import annotations

import math

import pytest
import torch
from fib_bench import ResolvedEvalConfig
from fib_bench.correctness import Comparison, compare, compare_all
from hypothesis import given
from hypothesis import strategies as st

NAN, INF = math.nan, math.inf
STRICT = ResolvedEvalConfig(atol=1e-2, rtol=1e-2)


def compared(found: list[float], expected: list[float], dtype: torch.dtype = torch.float32) -> Comparison:
    return compare("y", torch.tensor(found, dtype=dtype), torch.tensor(expected, dtype=dtype), STRICT)


@pytest.mark.parametrize(
    ("found", "expected", "is_right"),
    [
        (1.0, 1.0, True),
        (1.009, 1.0, True),
        (1.02, 1.0, False),
        (0.009, 0.0, True),  # within atol, however large the relative error
        (0.02, 0.0, False),
        (1005.0, 1000.0, True),  # within rtol, however large the absolute error
        (1020.0, 1000.0, False),
        (NAN, NAN, True),
        (INF, INF, True),
        (-INF, -INF, True),
        (NAN, 0.0, False),
        (0.0, NAN, False),
        (INF, NAN, False),
        (-INF, INF, False),
        (INF, 1e30, False),
        (1e30, INF, False),
        (0.0, -0.0, True),
    ],
)
def test_an_element_is_wrong_beyond_both_tolerances(found: float, expected: float, is_right: bool) -> None:
    assert compared([found], [expected]).is_within(None) is is_right


def test_a_comparison_counts_and_says_which_element_is_worst() -> None:
    found, expected = torch.zeros(2, 3), torch.zeros(2, 3)
    found[0, 1], found[1, 2] = 1.0, 5.0
    result = compare("y", found, expected, STRICT)
    assert (result.count, result.wrong, result.max_absolute_error) == (6, 2, 5.0)
    assert result.explain() == "output 'y': 2 of 6 elements are wrong; worst at [1, 2]: 5.0 instead of 0.0"
    assert result.matched_ratio == pytest.approx(4 / 6)


def test_enough_elements_may_be_asked_for_instead_of_all() -> None:
    result = compared([1.0, 1.0, 1.0, 9.0], [1.0] * 4)
    assert result.is_within(0.75)
    assert not result.is_within(0.76)
    assert not result.is_within(None)


def test_outputs_without_elements_match() -> None:
    result = compare("y", torch.empty(0, 4), torch.empty(0, 4), STRICT)
    assert result.is_within(None)
    assert result.is_within(1.0)
    assert result.explain() == "output 'y': all 0 elements match"


def test_scalars_are_compared_and_explained() -> None:
    result = compare("y", torch.tensor(2.0), torch.tensor(1.0), STRICT)
    assert result.explain() == "output 'y': 1 of 1 elements are wrong; worst at []: 2.0 instead of 1.0"


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_must_be_equal(dtype: torch.dtype) -> None:
    assert compared([100], [100], dtype).wrong == 0
    assert compared([101], [100], dtype).wrong == 1


def test_large_integers_are_told_apart() -> None:
    assert compare("y", torch.tensor([2**62 + 1]), torch.tensor([2**62]), STRICT).wrong == 1


def test_booleans_must_be_the_bytes_0_and_1() -> None:
    """Any other byte reads as true, such as one that nobody has written."""
    found = torch.tensor([0, 1, 0xC3, 0x5A], dtype=torch.uint8).view(torch.bool)
    assert compare("y", found, torch.tensor([False, True, True, True]), STRICT).wrong == 2


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float32]
)
def test_floats_of_every_width_are_compared(dtype: torch.dtype) -> None:
    assert compared([1.0, 2.0, NAN], [1.0, 2.0, NAN], dtype).wrong == 0
    assert compared([1.0, 4.0, 0.0], [1.0, 2.0, NAN], dtype).wrong == 2


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this version of torch has no float4")
def test_float4_is_compared_by_its_values() -> None:
    found, expected = (torch.tensor([byte], dtype=torch.uint8) for byte in (0x21, 0x91))
    dtype = torch.float4_e2m1fn_x2
    result = compare("y", found.view(dtype), expected.view(dtype), STRICT)
    assert (result.count, result.wrong, result.max_absolute_error) == (2, 1, 1.5)


def test_errors_are_reported_with_and_without_the_absolute_tolerance() -> None:
    result = compared([0.001, 1.5], [0.0, 1.0])
    assert result.max_relative_error == 0.5
    assert result.raw_max_relative_error == INF
    assert result.to_extra()["wrong"] == 1


def test_tensors_longer_than_a_chunk_are_compared_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fib_bench.correctness._CHUNK", 4)
    found, expected = torch.zeros(11), torch.zeros(11)
    found[[1, 10]] = torch.tensor([1.0, 2.0])
    result = compare("y", found, expected, STRICT)
    assert (result.count, result.wrong) == (11, 2)
    assert "worst at [10]: 2.0" in result.explain()


def test_every_output_is_compared() -> None:
    tensors = {"a": torch.zeros(2), "b": torch.zeros(3)}
    assert [c.name for c in compare_all(tensors, tensors, STRICT)] == ["a", "b"]


@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_equal_tensors_match_whatever_they_hold(values: list[float]) -> None:
    result = compared(values, values)
    assert result.wrong == 0
    assert result.max_absolute_error == 0.0


@given(st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), min_size=1, max_size=20))
def test_the_rule_in_torch_is_the_rule_in_words(pairs: list[tuple[float, float]]) -> None:
    def is_wrong(a: float, b: float) -> bool:
        if a == b or (math.isnan(a) and math.isnan(b)):
            return False
        if not (math.isfinite(a) and math.isfinite(b)):
            return True
        return abs(a - b) > 1e-2 and (b == 0 or abs(a - b) / abs(b) > 1e-2)

    result = compared([a for a, _ in pairs], [b for _, b in pairs])
    assert result.wrong == sum(is_wrong(a, b) for a, b in pairs)
