"""Tests of the sensitivity of checks: wrong answers that would pass tighten a check, honest ones still pass."""

import math

import pytest
import torch
from fib_bench import ResolvedEvalConfig
from fib_bench.checking.comparison import examine, insensitive_to_all

DEFAULT = ResolvedEvalConfig()
NAN, INF = math.nan, math.inf


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def checked(expected, config=DEFAULT, **inputs):
    return examine("y", expected, inputs, config)


@pytest.fixture(params=["on a CPU", "as on a device"], autouse=True)
def place(request, monkeypatch):
    """Both ways of the code: with and without looking at values in between; in several chunks each."""
    monkeypatch.setattr("fib_bench.checking.comparison._CPU_CHUNK", 1000)
    monkeypatch.setattr("fib_bench.checking.comparison._DEVICE_CHUNK", 1000)
    if request.param == "as on a device":
        monkeypatch.setattr("fib_bench.checking.comparison.is_on_cpu", lambda tensor: False)


class TestOrdinaryOutputs:
    def test_are_checked_by_the_tolerances_of_their_dtype(self):
        check = checked(normal(50, 60), x=normal(50, 60, seed=1))
        assert not check.is_tightened
        assert (check.rule.atol, check.rule.rtol, check.insensitive_to) == (1e-2, 1e-2, ())
        assert check.rejects == ("zeros", "input x", "shuffled", "scaled")


class TestLargeOutputs:
    """Elements near zero are differences of large sums, whose rounding errors they have."""

    def test_may_err_near_zero_by_what_sums_in_another_order_do(self):
        expected = normal(50, 60) * 169  # 28,672 products of normally distributed numbers
        error = 0.004 * normal(50, 60, seed=1)
        error[0, 0] = 5 * 0.004
        expected[0, 0] = 0.3
        check = checked(expected)
        assert check.compare(expected + error, expected).wrong == 0
        assert check.compare(expected + 0.1 * normal(50, 60, seed=1), expected).wrong > 0
        assert not check.is_tightened

    @pytest.mark.parametrize(
        ("config", "atol"),
        [
            (ResolvedEvalConfig(rtol=1e-5, atol=1e-3), 1e-3),  # no sum in another order satisfies it, and the user asks
            (ResolvedEvalConfig(atol=0.5), 0.5),
            (ResolvedEvalConfig(rtol=0.0, atol=1e-2), 1e-2),
        ],
    )
    def test_are_checked_as_strictly_as_asked(self, config, atol):
        assert checked(normal(50, 60) * 169, config).rule.atol == atol


class TestSmallOutputs:
    @pytest.mark.parametrize("scale", [0.03, 1e-3, 1e-6, 1e-20])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("ratio", [None, 0.95])
    def test_get_a_tolerance_of_their_scale(self, scale, dtype, ratio):
        expected = (normal(50, 60) * scale).to(dtype)
        check = checked(expected, ResolvedEvalConfig(required_matched_ratio=ratio), x=normal(50, 60, seed=1) * scale)
        assert check.is_tightened
        assert check.rule.atol < scale
        assert check.insensitive_to == ()
        wrong = {
            "zeros": torch.zeros_like(expected),
            "scaled": (expected * 1.05).to(dtype),
            "shuffled": expected.flip(0),
            "something else": (normal(50, 60, seed=2) * scale).to(dtype),
        }
        for answer in wrong.values():
            assert not check.compare(answer, expected).is_within(ratio)

    def test_far_below_their_inputs_may_be_leftovers_of_a_difference_and_are_only_reported(self):
        """Another order of the same sum leaves something else."""
        x = normal(50, 60) * 1e4
        expected = (x + 0.1 + 0.2) - x
        check = checked(expected - expected.mean(), x=x)
        assert not check.is_tightened
        assert check.insensitive_to == ("zeros", "shuffled", "scaled")

    def test_whose_large_elements_make_a_row_are_not_insensitive(self):
        """Zeros are wrong in the whole row, which no matched ratio allows."""
        expected = torch.zeros(50, 60)
        expected[0] = 1.0
        assert checked(expected, ResolvedEvalConfig(required_matched_ratio=0.95)).rejects[:1] == ("zeros",)


class TestWhatNoToleranceHelps:
    def test_an_input_that_is_the_output(self):
        x = normal(50, 60)
        assert checked(x.clone(), x=x, other=normal(50, 60, seed=1)).insensitive_to == ("input x",)

    def test_inputs_that_cannot_be_returned_are_not_tried(self):
        inputs = {"n": 3, "none": None, "index": torch.arange(3000), "short": normal(7)}
        assert examine("y", normal(3000), inputs, DEFAULT).rejects == ("zeros", "shuffled", "scaled")

    def test_zeros(self):
        """Shuffling and scaling leave them as they are, and are no wrong answers."""
        check = checked(torch.zeros(50, 60), x=normal(50, 60))
        assert (check.insensitive_to, check.rejects, check.is_tightened) == (("zeros",), ("input x",), False)

    def test_nothing_but_nan(self):
        check = checked(torch.full((5, 5), NAN), x=normal(5, 5))
        assert (check.extent.undefined_share, check.insensitive_to) == (1.0, ("zeros", "input x"))

    def test_what_is_not_finite_is_taken_for_right_in_every_wrong_answer(self):
        """A cheat can copy it: rows without keys have a logarithm of minus infinity, for instance."""
        expected = 7 + normal(50, 60) * 1e-3
        expected[::2] = -INF
        check = checked(expected)
        assert (check.extent.infinite_share, check.insensitive_to) == (0.5, ("shuffled",))
        assert checked(torch.where(expected.isfinite(), 0.0, expected)).insensitive_to == ("zeros",)


class TestExactOutputs:
    @pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
    def test_integers_have_no_tolerance(self, dtype):
        check = checked(torch.arange(100).to(dtype), x=torch.arange(100))
        assert (check.rule.atol, check.rule.rtol, check.insensitive_to) == (0.0, 0.0, ("input x",))
        assert check.rejects == ("zeros", "shuffled")

    def test_float4_is_probed_by_its_values(self):
        packed = torch.randint(0, 256, (40, 50), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        expected = packed.view(torch.float4_e2m1fn_x2)
        check = checked(expected, x=expected.clone())
        assert (check.insensitive_to, check.rejects) == (("input x",), ("zeros", "shuffled", "scaled"))
        assert check.compare(expected, expected).count == 4000


class TestSeveralInputSets:
    """A function that passes on one set may fail on another; a solution profits only from passing on all."""

    def test_what_one_rejects_is_found_out(self):
        assert insensitive_to_all([checked(torch.zeros(100)), checked(normal(100))]) == ()

    def test_what_is_no_wrong_answer_somewhere_finds_nothing_out(self):
        near, constant = checked(7 + normal(100) * 1e-3), checked(torch.full((100,), 7.0))
        assert insensitive_to_all([near, constant]) == ("shuffled",)
        assert insensitive_to_all([constant, constant]) == ()
        assert insensitive_to_all([]) == ()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int32, torch.bool])
@pytest.mark.parametrize("ratio", [None, 0.95])
def test_a_device_sees_what_the_cpu_sees(dtype, ratio):
    """The shuffled answers differ, but not so that it matters."""
    config = ResolvedEvalConfig(required_matched_ratio=ratio)
    for magnitude in (1.0, 1e-2, 0.0):
        expected, x = (normal(50, 60) * magnitude).to(dtype), normal(50, 60, seed=1) * magnitude
        assert examine("y", expected.cuda(), {"x": x.cuda()}, config) == checked(expected, config, x=x)


def in_pieces(sum_of, length, pieces):
    """A sum over a length, in float32, piece by piece from the end."""
    step = -(-length // pieces)
    total = sum_of(slice(length - length % step if length % step else length - step, length))
    for start in reversed(range(0, length - step if length % step == 0 else length - length % step, step)):
        total = total + sum_of(slice(start, start + step))
    return total


def gemm(a, b):
    """In one go; piece by piece; in float64; with partial sums rounded to the dtype, as a split-K kernel may."""
    x, y = a.float(), b.float()
    parts = [(x[:, i::4] @ y[i::4]).to(a.dtype).float() for i in range(4)]
    split = parts[0] + parts[1] + parts[2] + parts[3]
    return [x @ y, in_pieces(lambda k: x[:, k] @ y[k], x.shape[1], 7), x.double() @ y.double(), split]


def softmax(a):
    x = a.float()
    exponentials = (x - x.amax(-1, keepdim=True)).exp()
    backwards = in_pieces(lambda k: exponentials[:, k].sum(-1, keepdim=True), x.shape[1], 7)
    powers = torch.exp2(x * math.log2(math.e))
    return [x.softmax(-1), exponentials / backwards, a.double().softmax(-1), powers / powers.sum(-1, keepdim=True)]


def rmsnorm(a, weight):
    """The third rounds before the weight is applied, as the widely used modules do."""
    x, w = a.float(), weight.float()
    rms = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    square = in_pieces(lambda k: x[:, k].square().sum(-1, keepdim=True), x.shape[1], 7)
    return [x * rms * w, x * (square / x.shape[1] + 1e-6).rsqrt() * w, (x * rms).to(a.dtype).float() * w]


def decode(query, keys, values):
    """Attention whose rows have 1, 2, 4, ... keys, so that their outputs are of very different sizes.

    The second rounds the weights to the dtype, as kernels do that multiply on tensor cores.
    """
    q, k, v = query.float(), keys.float(), values.float()
    scores = q @ k.T
    counts = (1 << torch.arange(len(q))).clamp(max=len(k))
    scores = scores.masked_fill(torch.arange(len(k)) >= counts[:, None], -INF)
    weights = scores.softmax(-1)
    return [weights @ v, weights.to(query.dtype).float() @ v, scores.double().softmax(-1) @ v.double()]


OPS = {
    "gemm": (gemm, ((24, 1000), (1000, 30))),
    "softmax": (softmax, ((12, 3000),)),
    "rmsnorm": (rmsnorm, ((24, 500), (500,))),
    "decode": (decode, ((12, 64), (2048, 64), (2048, 64))),
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("magnitude", [1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_honest_answers_pass_a_tightened_check(op, dtype, magnitude, seed):
    compute, shapes = OPS[op]
    tensors = [(normal(*shape, seed=10 * seed + i) * magnitude).to(dtype) for i, shape in enumerate(shapes)]
    expected, *others = (answer.to(dtype) for answer in compute(*tensors))
    check = examine("y", expected, {f"x{i}": tensor for i, tensor in enumerate(tensors)}, DEFAULT)
    for other in others if check.is_tightened else others[:1]:  # the usual tolerance is not ours to prove
        comparison = check.compare(other, expected)
        assert comparison.is_within(None), (check.to_extra(), comparison.explain())
    if dtype is not torch.float16 or expected.abs().max() > 1e-4:
        assert not set(check.insensitive_to) & {"zeros"}


class TestOutputsOfTheSameKind:
    def test_keep_the_tightened_rule_and_get_a_cap_of_their_own(self):
        config = ResolvedEvalConfig(error_cap=0.5)
        generator = torch.Generator().manual_seed(0)
        first, other = (torch.randn(64, generator=generator) * scale for scale in (1e-4, 2e-4))
        check = examine("y", first, {}, config)
        alike = check.alike(other)
        assert check.is_tightened
        assert (alike.rule.atol, alike.rule.rtol, alike.rejects) == (check.rule.atol, check.rule.rtol, check.rejects)
        assert alike.rule.limit == pytest.approx(0.5 * float(other.abs().max()))
        assert not alike.is_right(alike.compare(torch.zeros(64), other))
        assert alike.is_right(alike.compare(other, other))
