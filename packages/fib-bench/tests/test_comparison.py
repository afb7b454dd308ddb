"""Tests of the comparison of outputs: tolerances, undefined elements, error caps."""

import math
import warnings

import pytest
import torch
from fib_bench import OutputsUndefined, ResolvedEvalConfig
from fib_bench.checking.comparison import ErrorLimits, compare_by, measure_extent, raise_if_mostly_undefined
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from .samples import make_definition, make_solution, make_workload

NAN, INF = math.nan, math.inf
STRICT = ResolvedEvalConfig(atol=1e-2, rtol=1e-2)
SYNCHRONISING = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::nonzero", "aten::masked_select"}
FLOATS = [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float32]


class CountWaits(TorchDispatchMode):
    """Counts what would make a program wait for a device."""

    def __init__(self):
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in SYNCHRONISING:
            self.waits.append(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=["on a CPU", "as on a device"])
def place(request, monkeypatch):
    """Both ways of the code: with and without looking at values in between."""
    if request.param == "as on a device":
        monkeypatch.setattr("fib_bench.checking.comparison.is_on_cpu", lambda tensor: False)
    return str(request.param)


def compare(name, found, expected, config):
    extent = measure_extent(expected)
    return compare_by(ErrorLimits.from_config(config, expected, extent), name, found, expected, extent)


def compared(found, expected, dtype=torch.float32):
    return compare("y", torch.tensor(found, dtype=dtype), torch.tensor(expected, dtype=dtype), STRICT)


def test_a_comparison_counts_and_says_which_elements_are_first_and_worst():
    found, expected = torch.zeros(2, 3), torch.zeros(2, 3)
    found[0, 1], found[1, 2] = 1.0, 5.0
    result = compare("y", found, expected, STRICT)
    assert (result.count, result.wrong, result.max_absolute_error) == (6, 2, 5.0)
    assert result.explain() == (
        "y: 2 of 6 wrong; first [0, 1] is 1, not 0\n  worst: [1, 2] is 5, not 0\n"
        "  allowed: absolute error 0.01 or relative error 0.01\n  2 beyond the error cap, which allows 0"
    )
    assert result.matched_ratio == pytest.approx(4 / 6)


class TestUndefinedElements:
    """Any value is right for an element that is NaN in the reference."""

    def test_a_matched_ratio_is_one_of_defined_elements(self):
        found, expected = torch.ones(20, 10), torch.ones(20, 10)
        expected[:10], found[:10] = NAN, 7.0
        found[10:12, :4] = 3.0
        result = compare("y", found, expected, ResolvedEvalConfig(error_cap=INF))
        assert result.matched_ratio == pytest.approx(0.92)
        assert result.is_within(0.92)
        assert not result.is_within(0.93)


@pytest.mark.usefixtures("place")
class TestWholeRows:
    """However many elements match, no row may be wrong as a whole."""

    CONFIG = ResolvedEvalConfig(error_cap=INF)

    @pytest.mark.parametrize("shape", [(200, 16), (20, 10, 16), (200, 16, 1)])
    @pytest.mark.parametrize("chunk", [7, 50, 1 << 17])
    def test_one_bad_row_is_too_many(self, shape, chunk, monkeypatch):
        for name in ("_CPU_CHUNK", "_DEVICE_CHUNK"):
            monkeypatch.setattr(f"fib_bench.checking.comparison.{name}", chunk)
        expected = torch.ones(shape)
        some, most = expected.clone(), expected.clone()
        some.view(200, 16)[17, :8] = 2.0
        most.view(200, 16)[17, :9] = 2.0
        assert compare("y", some, expected, self.CONFIG).is_within(0.95)
        result = compare("y", most, expected, self.CONFIG)
        assert not result.is_within(0.95)
        assert (result.worst_row, result.bad_rows) == ((9, 17), 1)
        assert result.explain().endswith("in 1 row more elements are wrong than may be; worst row 17 with 9")

    def test_undefined_elements_do_not_hide_one(self):
        expected = torch.ones(200, 16)
        expected[5, 4:] = NAN
        found = expected.clone()
        found[5] = 3.0
        assert not compare("y", found, expected, self.CONFIG).is_within(0.9)
        found[5, :2] = 1.0
        assert compare("y", found, expected, self.CONFIG).is_within(0.9)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_must_be_equal(dtype):
    assert compared([100], [100], dtype).wrong == 0
    assert compared([101], [100], dtype).wrong == 1


def test_large_integers_are_told_apart():
    result = compare("y", torch.tensor([2**62 + 1]), torch.tensor([2**62]), STRICT)
    assert (result.wrong, result.max_absolute_error) == (1, 1.0)
    assert f"is {2**62 + 1}, not {2**62}" in result.explain()


def test_booleans_must_be_the_bytes_0_and_1():
    """Any other byte reads as true, such as one that nobody has written."""
    found = torch.tensor([0, 1, 0xC3, 0x5A], dtype=torch.uint8).view(torch.bool)
    assert compare("y", found, torch.tensor([False, True, True, True]), STRICT).wrong == 2


def test_float4_is_compared_by_its_values():
    found, expected = (torch.tensor([byte], dtype=torch.uint8) for byte in (0x21, 0x91))
    dtype = torch.float4_e2m1fn_x2
    result = compare("y", found.view(dtype), expected.view(dtype), STRICT)
    assert (result.count, result.wrong, result.max_absolute_error) == (2, 1, 1.5)


def is_wrong(a, b, atol=1e-2, rtol=1e-2):
    if a == b or math.isnan(b):
        return False
    if not (math.isfinite(a) and math.isfinite(b)):
        return True
    return abs(a - b) > atol and (b == 0 or abs(a - b) / abs(b) > rtol)


tolerances = st.sampled_from([0.0, 1e-6, 1e-3, 1e-2, 0.125, 1.0])
elements = st.one_of(
    st.sampled_from([0.0, -0.0, NAN, INF, -INF, 1.0, 1.01, 1e-9]), st.floats(-2, 2, width=32), st.floats(width=32)
)


@pytest.mark.usefixtures("place")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    pairs=st.lists(st.one_of(st.tuples(elements, elements), elements.map(lambda x: (x, x))), min_size=1, max_size=30),
    dtype=st.sampled_from(FLOATS),
    atol=tolerances,
    rtol=tolerances,
    cap=st.sampled_from([1e-3, 0.5, 1.0, INF]),
    chunk=st.sampled_from([3, 8, 1 << 17]),
)
def test_a_comparison_is_what_a_loop_over_float64_finds(pairs, dtype, atol, rtol, cap, chunk):
    config = ResolvedEvalConfig(atol=atol, rtol=rtol, error_cap=cap, dtypes={})
    found, expected = (torch.tensor([pair[i] for pair in pairs]).to(dtype) for i in (0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fib_bench.checking.comparison._CPU_CHUNK", chunk)
        patch.setattr("fib_bench.checking.comparison._DEVICE_CHUNK", chunk)
        result = compare("y", found, expected, config)
    a, b = found.tolist(), expected.tolist()
    absolute, relative = zip(*map(naive_errors, a, b), strict=True)
    wrong = [i for i in range(len(a)) if is_wrong(a[i], b[i], atol, rtol)]
    finite = [abs(value) for value in b if math.isfinite(value)]
    limit = INF if cap == INF else cap * max(finite, default=0.0)
    assert result.count == len(pairs)
    assert result.wrong == len(wrong)
    assert result.max_absolute_error == max(absolute)
    assert result.max_relative_error == max([r for r, e in zip(relative, absolute, strict=True) if e > atol] or [0])
    assert result.raw_max_relative_error == max(relative)
    assert result.capped == sum(absolute[i] > limit for i in wrong)
    assert result.undefined == sum(map(math.isnan, b))
    defined = sum(not math.isnan(value) for value in b)
    assert result.bad_rows == (len(wrong) > max(1, defined / 2))  # one row holds all elements
    if wrong:
        worst = max(wrong, key=lambda i: absolute[i])
        found, wanted = f"{a[worst]:.4g}", f"{b[worst]:.4g}"
        same = f"{found}, and wrong by {a[worst] - b[worst]:.4g}"
        assert result.worst == f"[{worst}] is {same if found == wanted else f'{found}, not {wanted}'}"


def naive_errors(a, b):
    if a == b or math.isnan(b):
        return 0.0, 0.0
    absolute = abs(a - b)
    if not math.isfinite(absolute):
        return INF, INF
    return absolute, absolute / abs(b) if b else INF


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_nothing_waits_for_a_device_until_the_end(monkeypatch, dtype):
    monkeypatch.setattr("fib_bench.checking.comparison.is_on_cpu", lambda tensor: False)
    monkeypatch.setattr("fib_bench.checking.comparison._DEVICE_CHUNK", 8)
    expected = (torch.arange(30) % 7).to(dtype)
    extent = measure_extent(expected)
    rule = ErrorLimits.from_config(STRICT, expected, extent)
    with CountWaits() as mode:
        result = compare_by(rule, "y", expected.flip(0), expected, extent)
    assert result.wrong > 0
    assert mode.waits == []


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.bool])
def test_a_device_finds_what_the_cpu_finds_and_is_waited_for_once(dtype):
    generator = torch.Generator().manual_seed(0)
    expected, found = (torch.randn(3000, 2000, generator=generator).to(dtype) for _ in range(2))
    if dtype.is_floating_point:
        expected[5, 5] = found[5, 5] = found[6, 6] = NAN
    extent = measure_extent(expected.cuda())
    assert extent == measure_extent(expected)
    rule = ErrorLimits.from_config(STRICT, expected, extent)
    a, b = found.cuda(), expected.cuda()
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        waits.clear()  # it has warned of itself
        try:
            result = compare_by(rule, "y", a, b, extent)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert result == compare_by(rule, "y", found, expected, extent)
    assert len(waits) == 1, [str(warning.message) for warning in waits]


def test_one_output_of_which_more_is_undefined_refuses_the_workload():
    outputs = {"y": torch.tensor([NAN, NAN, 1.0]), "lse": torch.ones(3), "ids": torch.arange(3)}
    with pytest.raises(OutputsUndefined) as caught:
        raise_if_mostly_undefined("gqa", "w", outputs)
    assert caught.value.shares == {"y": pytest.approx(2 / 3), "lse": 0.0, "ids": 0.0}
    assert str(caught.value) == (
        "workload w of 'gqa': the reference leaves outputs undefined: NaN in 66.7% of 'y'; "
        "at most half of an output may be undefined"
    )


HALF = "import torch\ndef run(x):\n    return torch.where(torch.arange(len(x)) < {count}, torch.nan, x * 2)\n"


def test_a_solution_may_write_anything_where_little_is_undefined(evaluate):
    definition = make_definition({"x": "float32[n]"}, {"y": "float32[n]"}, HALF.format(count=100))
    codes = (HALF.format(count=count).replace("torch.nan", "0.0") for count in (100, 101))
    solutions = [make_solution(code, definition="made", name=f"s{index}") for index, code in enumerate(codes)]
    right, wrong = evaluate(*solutions, definition=definition, workloads=[make_workload(definition, {"n": 400})])
    assert (right.status, wrong.status) == ("PASSED", "INCORRECT_NUMERICAL"), (right.log, wrong.log)
    assert right.extra["outputs"]["y"]["undefined_share"] == 0.25
