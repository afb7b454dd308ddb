"""Tests of distributions: factors and offsets of the rows of standard normal tensors."""

import pytest
import torch
from fib_bench.config.model import DISTRIBUTIONS
from fib_bench.inputs.synthesis import WIDE_EXPONENTS, WIDE_EXPONENTS_HALF, distribute

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def drawn(distribution, shape, dtype, exponents=WIDE_EXPONENTS, *, seed=3):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator).to(dtype)
    distribute(values, distribution, generator, exponents)
    assert values.dtype is dtype
    return values.float()


def magnitudes(rows):
    return rows.square().mean(-1).sqrt()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_wide_gives_rows_of_very_different_magnitude(dtype):
    rows = magnitudes(drawn("wide", (200, 256), dtype))
    assert rows.isfinite().all()
    assert 0.05 < rows.min() < 0.1
    assert 20 < rows.max() < 40
    assert rows.median() < 4 * rows.log2().mean().exp2()  # uniform in the exponent: no outliers among equals


def test_wide_products_of_long_rows_fit_into_float16():
    left, right = (drawn("wide", (64, 28672), torch.float16, WIDE_EXPONENTS_HALF, seed=seed) for seed in (1, 2))
    assert (left @ right.T).half().isfinite().all()
    assert magnitudes(left).max() > 64 * magnitudes(left).min()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tiny_numbers_are_not_all_zero(dtype):
    rows = magnitudes(drawn("tiny", (20, 256), dtype))
    assert rows.max() < 0.04
    assert rows.min() > 0.0009


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [4, 101])
def test_some_rows_are_zero_and_some_are_one(dtype, count):
    rows = drawn("zeros_and_ones", (count, 3, 16), dtype).view(-1, 16)
    zeros, ones = rows.eq(0).all(-1).sum(), rows.eq(1).all(-1).sum()
    assert abs(4 * zeros - len(rows)) <= 4
    assert abs(4 * ones - len(rows)) <= 4
    assert not torch.signbit(rows[rows == 0]).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_columns_have_means_of_both_signs(dtype):
    means = drawn("shifted", (400, 3, 64), dtype).mean((0, 1))
    assert means.abs().sub(3).abs().max() < 0.3
    assert 16 < means.gt(0).sum() < 48


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (0, 4), (4, 0)])
def test_any_shape_will_do(distribution, shape):
    assert drawn(distribution, shape, torch.float32).shape == shape


@pytest.mark.parametrize("rows", [2, 3, 32])
def test_wide_always_has_rows_at_both_bounds(rows):
    """With bounds that occur by chance, a softmax that does not subtract the maximum passed now and then."""
    for seed in range(20):
        found = magnitudes(drawn("wide", (rows, 4096), torch.float32, seed=seed))
        assert 31 < found.max() < 33
        assert 0.06 < found.min() < 0.065
