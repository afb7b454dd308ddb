"""Tests of the generator of inputs: valid values of a call from one key, on the host."""

import ctypes
from importlib import resources

import pytest
import torch
from fib_bench.config.model import DISTRIBUTIONS
from fib_bench.inputs.generation import make_inputs
from fib_bench.inputs.recipes import Input, native_input, other_scalars, plan_recipes
from fib_bench.recipe import BYTES, DIRECTION, INTEGER, MASK, NORMAL, RESCALE, SEALED, SHARES, UNIFORM, Recipe
from fib_compile.device import torch_dtype
from fib_compile.native_module import NativeModule, build_module
from fib_schema.files import private_folder
from hypothesis import given
from hypothesis import strategies as st

from .samples import make_definition, make_workload

FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int64", "int32", "int16", "int8")
PLAIN, SCALES, SPIKES = 1, 32, 64
ALL = 127


SOURCE = """
#include "generator.h"
extern "C" u64 size() { return sizeof(FibInput); }
extern "C" void generate(const FibInput* inputs, int count, u64 key, u64 thread, u64 threads) {
  for (int i = 0; i < count; ++i) fib_fill(inputs[i], key, thread, threads);
}
"""


@pytest.fixture(scope="session")
def generate(cache_path):
    """Write inputs in host memory, or the share of one thread: ``generate([input], key, thread=0, threads=1)``."""
    header = resources.files("fib_bench.inputs").joinpath("generator.h").read_text("utf-8")
    flags = ("-std=c++17", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")
    module = NativeModule(name="generator", sources={"generator.cpp": SOURCE, "generator.h": header}, flags=flags)
    library = ctypes.CDLL(str(build_module(module, private_folder(cache_path / "generator"))))
    assert library.size() == ctypes.sizeof(Input)

    def write(inputs, key, *, thread=0, threads=1):
        numbers = [ctypes.c_uint64(number) for number in (key, thread, threads)]
        library.generate((Input * len(inputs))(*inputs), len(inputs), *numbers)

    return write


@pytest.fixture(scope="session")
def fill(generate):
    """Write one input: ``fill(NORMAL, "bfloat16", (64, 128), key=3, mask=ALL)``."""

    def make(kind, dtype, shape, *, key=1, base=None, target=None, threads=1, index=0, strides=(), **fields):
        out = torch.zeros(shape, dtype=torch_dtype(dtype)) if target is None else target
        common = {"name": "x", "position": index, "elements": out.numel(), "row": shape[-1] if shape else 1}
        if strides:
            fields |= {"shape": shape, "strides": strides}
        recipe = Recipe(**{**common, "kind": kind, "dtype": dtype, "needs_base": base is not None, **fields})
        item = native_input(recipe, out.data_ptr(), 0 if base is None else base.data_ptr())
        for thread in range(threads):
            generate([item], key, thread=thread, threads=threads)
        return out

    return make


def bits(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8)


def wide(dtype="float32"):
    """The fields of an input in which everything may occur."""
    low, high = (-6.0, 2.0) if dtype == "float16" else (-4.0, 5.0)
    return {"mask": ALL, "low": low, "high": high}


def base_of(kind, dtype, shape):
    made = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    return made.to(torch_dtype(dtype)) if kind == RESCALE else None


CONTENTS = [
    *((kind, dtype) for kind in (NORMAL, UNIFORM, SHARES, DIRECTION, RESCALE) for dtype in FLOATS),
    *((INTEGER, dtype) for dtype in INTEGERS), (BYTES, "float4_e2m1"), (MASK, "bool"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "dtype"), CONTENTS)
@pytest.mark.parametrize("shape", [(5, 24), (7, 13), (70, 3), (300,), (9, 1)])
def test_values_depend_on_the_key_and_not_on_the_number_of_threads(fill, kind, dtype, shape):
    fields = {**wide(dtype), "first": 3, "last": 90} if kind in {NORMAL, INTEGER} else {"low": 0.5, "high": 0.85}
    base = base_of(kind, dtype, shape)
    one, *others = (
        bits(fill(kind, dtype, shape, base=base, threads=threads, **fields)) for threads in (1, 2, 32, 64, 77)
    )
    assert all(torch.equal(one, other) for other in others)
    if shape[-1] > 1:
        assert not torch.equal(one, bits(fill(kind, dtype, shape, base=base, key=2, **fields)))


@pytest.mark.parametrize("dtype", [*INTEGERS, "bfloat16"])
def test_sealed_values_come_back_with_their_key_alone(fill, dtype):
    plain = fill(
        INTEGER if dtype in INTEGERS else NORMAL if dtype == "bfloat16" else MASK, dtype, (31, 7), first=3, last=9
    )
    sealed = fill(SEALED, dtype, (31, 7), base=plain, key=5, threads=3)
    assert (bits(sealed) != bits(plain)).float().mean() > 0.9
    opened = (fill(SEALED, dtype, (31, 7), base=sealed, key=key) for key in (5, 6))
    assert [torch.equal(bits(each), bits(plain)) for each in opened] == [True, False]


@pytest.mark.parametrize("dtype", FLOATS)
def test_values_are_rounded_as_torch_rounds(fill, dtype):
    exact = fill(NORMAL, "float32", (64, 500), mask=PLAIN, scale=30.0)
    assert torch.equal(bits(fill(NORMAL, dtype, (64, 500), mask=PLAIN, scale=30.0)), bits(exact.to(torch_dtype(dtype))))
    tiny = fill(NORMAL, "float32", (64, 500), mask=PLAIN, scale=1e-5)
    assert torch.equal(bits(fill(NORMAL, dtype, (64, 500), mask=PLAIN, scale=1e-5)), bits(tiny.to(torch_dtype(dtype))))


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "float8_e5m2"])
def test_values_beyond_the_range_become_the_largest(fill, dtype):
    found = fill(NORMAL, dtype, (64, 500), mask=PLAIN, scale=1e6).float()
    assert found.isfinite().all()
    assert found.abs().max() == torch.finfo(torch_dtype(dtype)).max


def test_plain_values_are_normal(fill):
    found = fill(NORMAL, "float32", (256, 1024), mask=PLAIN).double()
    assert abs(found.mean()) < 0.01
    assert abs(found.std() - 1) < 0.01
    assert abs(found.pow(4).mean() - 3) < 0.1
    assert 4 < found.abs().max() < 5
    for one, other in ((found[:, 1:], found[:, :-1]), (found[1:], found[:-1])):
        assert abs((one * other).mean()) < 0.01


@pytest.mark.parametrize("change", [{"key": 2}, {"key": 1 << 40 | 1}, {"index": 1}])
def test_other_keys_and_inputs_share_nothing(fill, change):
    one, other = (
        fill(NORMAL, "float32", (64, 1024), mask=PLAIN),
        fill(NORMAL, "float32", (64, 1024), mask=PLAIN, **change),
    )
    assert abs((one * other).mean()) < 0.02
    assert (one == other).float().mean() < 1e-3


@pytest.fixture(scope="session")
def rows(fill):
    """Rows of tensors in which everything may occur."""
    return torch.cat([fill(NORMAL, "float32", (512, 512), key=key, **wide()) for key in range(8)])


class TestMixture:
    """All distributions within one tensor."""

    def test_most_rows_are_normal_and_each_other_kind_occurs(self, rows):
        middle, deviation = rows.median(-1).values, rows.abs().median(-1).values / 0.6745
        shares = {
            "zeros": (rows == 0).float().mean(-1) > 0.9,
            "ones": (middle > 0.7) & ((rows - middle.unsqueeze(-1)).abs().median(-1).values < 0.05),
            "tiny": (deviation > 0) & (deviation < 0.01),
            "shifted": (rows.abs() - 3).abs().median(-1).values < 1.5,
            "wide": (deviation > 5) | ((deviation > 0.05) & (deviation < 0.4)),
        }
        assert all(0.01 < share.float().mean() < 0.1 for share in shares.values()), shares
        assert ((deviation > 0.4) & (deviation < 2.5)).float().mean() > 0.75

    def test_every_kind_of_row_has_elements_far_from_the_others(self, rows):
        centre = rows.median(-1, keepdim=True).values
        distance = (rows - centre).abs()
        far = distance > 4.9 * distance.median(-1, keepdim=True).values / 0.6745
        assert 0.003 < far.float().mean() < 0.03
        assert far.any(-1).float().mean() > 0.7
        assert 0.002 < (rows == 0).float().mean(-1).median() < 0.02

    def test_no_sum_over_a_row_follows_from_a_part_of_it(self, rows):
        whole, part = rows.square().mean(-1).sqrt(), rows[:, ::32].square().mean(-1).sqrt()
        assert ((part / whole - 1).abs() > 0.02).float().mean() > 0.85

    def test_parts_of_some_rows_have_another_mean(self, fill):
        made = fill(NORMAL, "float32", (512, 512), mask=PLAIN | 16)
        parts = made[made.abs().median(-1).values < 2].view(-1, 8, 64).mean(-1)  # not those with signs of columns
        assert 0.3 < (parts.amax(-1) - parts.amin(-1) > 0.7).float().mean() < 0.5

    def test_no_two_rows_are_proportional(self, rows):
        sample = rows[:512].double()
        directions = torch.nn.functional.normalize(sample - sample.median(-1, keepdim=True).values, dim=-1)
        likeness = (directions @ directions.T).abs().fill_diagonal_(0)
        assert likeness.max() < 0.99

    def test_keys_decide_which_rows_are_unlike(self, fill):
        kinds = [
            fill(NORMAL, "float32", (64, 64), key=key, **wide()).abs().median(-1).values < 0.01 for key in range(200)
        ]
        share = torch.stack(kinds).float().mean(0)
        assert share.min() > 0.02
        assert share.max() < 0.25

    @pytest.mark.parametrize("dtype", FLOATS)
    def test_values_are_finite_in_every_dtype(self, fill, dtype):
        found = fill(NORMAL, dtype, (512, 96), **wide(dtype)).float()
        assert found.isfinite().all()
        assert found.abs().max() < (33 if dtype == "float16" else 160)

    def test_products_of_long_rows_fit_into_float16(self, fill):
        for key in range(3):
            left, right = (
                fill(NORMAL, "float16", (64, 28672), key=key, index=index, **wide("float16")).float()
                for index in (0, 1)
            )
            assert (left @ right.T).half().isfinite().all()

    def test_only_what_is_allowed_occurs(self, fill):
        scaled = fill(NORMAL, "float32", (512, 256), mask=PLAIN | SCALES)
        deviations = scaled.std(-1)
        assert deviations.min() > 0.4
        assert deviations.max() < 2.4
        assert deviations.std() > 0.3
        assert not (scaled == 0).any()
        with_zeros = fill(NORMAL, "float32", (512, 256), mask=PLAIN | 8)
        assert 0.05 < ((with_zeros == 0).all(-1)).float().mean() < 0.2


def test_uniform_values_stay_within_their_bounds(fill):
    found = fill(UNIFORM, "float32", (100, 100), low=0.1, high=0.95)
    assert found.min() >= 0.1
    assert found.max() <= 0.95
    assert abs(found.mean() - 0.525) < 0.01
    assert found.unique().numel() > 9_900


@given(low=st.integers(-(2**63), 2**63 - 1), span=st.integers(1, 2**64 - 1), key=st.integers(0, 2**64 - 1))
def test_integers_stay_within_any_bounds(fill, low, span, key):
    high = min(low + span, 2**63 - 1)
    found = fill(INTEGER, "int64", (4, 33), key=key, first=low, last=high)
    assert low <= int(found.min()) <= int(found.max()) <= high


@pytest.mark.parametrize("dtype", INTEGERS)
def test_all_integers_between_the_bounds_occur(fill, dtype):
    found = fill(INTEGER, dtype, (64, 64), first=-3, last=4)
    counts = torch.stack([(found == value).sum() for value in range(-3, 5)])
    assert counts.sum() == 4096
    assert counts.min() > 400


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_outside_the_bounds_stay(fill, dtype):
    base = torch.tensor([[-1, 5, 100, 7, -1, 2, 0, 9, 100]], dtype=torch_dtype(dtype))
    found = fill(INTEGER, dtype, (1, 9), base=base, first=0, last=9)
    outside = (base < 0) | (base > 9)
    assert torch.equal(found[outside], base[outside])
    assert ((found >= 0) & (found <= 9))[~outside].all()


@given(
    rows=st.integers(1, 5), row=st.integers(1, 300), key=st.integers(0, 2**64 - 1),
    kind=st.sampled_from([SHARES, DIRECTION]),
)  # fmt: skip
def test_rows_have_their_sum_or_their_length(fill, rows, row, key, kind):
    found = fill(kind, "float32", (rows, row), key=key)
    totals = found.square().sum(-1) if kind == DIRECTION else found.sum(-1)
    assert torch.allclose(totals, torch.ones(rows), atol=1e-5)
    assert (found >= 0).all() or kind == DIRECTION


def test_shares_of_a_row_are_unequal_and_lie_anywhere(fill):
    rows = torch.cat([fill(SHARES, "float32", (64, 4099), key=key) for key in range(4)])
    effective = 1 / rows.square().sum(-1)  # the number of equal shares with the same sum of squares
    assert 5 < effective.median() < 300
    assert effective.max() > 5 * effective.min()
    means = torch.stack([part.sum(-1).mean() for part in rows.chunk(8, dim=-1)])
    assert 0.06 < means.min() <= means.max() < 0.2
    assert len(rows.argmax(-1).unique()) > 200
    assert len({float(value) for value in rows.amax(-1)}) == 256


def test_directions_point_anywhere(fill):
    rows = torch.cat([fill(DIRECTION, "float32", (64, 128), key=key) for key in range(8)])
    assert (rows.mean(0).abs() < 0.03).all()
    assert (rows.square().mean(0) * 128 - 1).abs().max() < 0.6
    assert ((rows @ rows.T).fill_diagonal_(0).abs().max()) < 0.9


@pytest.mark.parametrize("dtype", FLOATS)
def test_rescaled_values_keep_zeros_signs_and_infinities(fill, dtype):
    base = torch.linspace(-4, 4, 4096).view(16, 256).to(torch_dtype(dtype))
    base[0, :4] = 0.0
    if dtype != "float8_e4m3fn":
        base[1, 0], base[1, 1] = torch.inf, -torch.inf
    found = fill(RESCALE, dtype, (16, 256), base=base, low=0.5, high=0.85).float()
    old = base.float()
    assert torch.equal(found[~old.isfinite()], old[~old.isfinite()])
    large = old.isfinite() & (old.abs() > 0.1)
    ratios = found[large] / old[large]
    assert ratios.min() > 0.44
    assert ratios.max() < 0.96
    assert (found[old == 0] == 0).all()


def test_rescaled_rows_have_factors_of_their_own(fill):
    found = fill(RESCALE, "float32", (64, 1024), base=torch.ones(64, 1024), low=0.5, high=0.85)
    assert found.min() >= 0.5
    assert found.max() <= 0.85
    assert found.mean(-1).std() > 0.03
    assert found.std(-1).min() > 0.02


def test_rescaled_values_get_other_signs_and_no_zeros(fill):
    base = torch.linspace(-4, 4, 4096).view(16, 256)
    base[3] = 0.0
    for shape in ((16, 256), (32, 128), (128, 32), (4096 // 7, 7)):
        old = base.flatten()[: shape[0] * shape[1]].view(shape)
        found = fill(RESCALE, "float32", shape, base=old, low=0.5, high=0.85, last=1, scale=2.0)
        assert (found != 0).all()
        assert 0.45 < (found * old > 0).float().sum() / (old != 0).sum() < 0.55
        ratios = found.abs() / torch.where(old == 0, 2.0, old.abs())
        assert 0.5 <= ratios.min() <= ratios.max() <= 0.86


@pytest.mark.parametrize("row", [1, 2, 7, 64, 1000])
def test_elements_of_rescaled_rows_change_places(fill, row):
    """Else the largest recorded elements are the only ones that can be selected."""
    base = torch.arange(1.0, 8 * row + 1).view(8, row)
    one, other = (fill(RESCALE, "float32", (8, row), base=base, key=key, low=1.0, high=1.0, first=2) for key in (1, 2))
    assert torch.equal(one.sort(-1).values, base)
    assert row < 64 or ((one != base).float().mean() > 0.95 and (one != other).float().mean() > 0.95)
    assert row < 64 or (one[0] != one[1] - row).float().mean() > 0.9  # each row has a permutation of its own
    assert row < 64 or one.diff(dim=-1).abs().unique().numel() > row // 4


@given(chance=st.floats(0.1, 0.9), row=st.integers(1, 70), key=st.integers(0, 2**64 - 1), begins=st.booleans())
def test_masks_are_drawn_anew_and_no_row_is_empty(fill, chance, row, key, begins):
    found = fill(MASK, "bool", (8192 // row, row), key=key, high=chance, first=int(begins))
    assert not begins or found[:, 0].all()
    drawn = found[:, int(begins) :].float()
    assert not drawn.numel() or abs(drawn.mean() - chance) < 4 / drawn.numel() ** 0.5


@pytest.mark.parametrize(("kind", "dtype"), [item for item in CONTENTS if item[0] != BYTES])
def test_inputs_that_are_not_contiguous_get_the_same_values(fill, kind, dtype):
    shape, strides = (3, 4, 16), (200, 40, 2)
    fields = {**wide(dtype), "first": 3, "last": 90} if kind in {NORMAL, INTEGER} else {"low": 0.5, "high": 0.85}
    base = base_of(kind, dtype, shape)
    expected = fill(kind, dtype, shape, base=base, **fields)
    memory = torch.zeros(600, dtype=expected.dtype)
    apart = None if base is None else memory.clone().as_strided(shape, strides).copy_(base)
    target = memory.as_strided(shape, strides)
    fill(kind, dtype, shape, base=apart, target=target, strides=strides, **fields)
    assert torch.equal(bits(target), bits(expected))
    target.zero_()
    assert not bits(memory).any()


def plan(
    inputs, *, op_type="elementwise", constraints=(), distributions=DISTRIBUTIONS, recorded=(), given=None,
    reference="pass", output="float32[]", **axes,
):  # fmt: skip
    """Plan the recipes of a made definition: ``plan({"x": "float32[n,m]"}, n=4, m=8)``."""
    extra = {"spare": f"float32[{','.join(axes)}]?"}  # so that every axis is known
    definition = make_definition(
        {**inputs, **extra}, {"out": output}, f"def run(*args): {reference}", op_type=op_type,
        constraints=constraints,
    )  # fmt: skip
    absent = dict.fromkeys((*(given or {}), "spare"))
    values = {**absent, **(given or {})}
    if missing := {name: text for name, text in inputs.items() if name not in values}:
        part = make_definition({**missing, **extra}, {"out": "float32[]"}, "def run(*args): ...", op_type=op_type)
        values |= make_inputs(part, make_workload(part, axes, spare=None), seed=1)
    return plan_recipes(definition, axes, values, distributions=distributions, recorded=recorded)


@pytest.mark.parametrize(
    ("name", "text", "op_type", "expected"),
    [
        ("x", "float32[n,m]", "elementwise", {"kind": NORMAL, "mask": ALL, "scale": 1.0, "low": -4.0, "high": 5.0}),
        ("x", "float16[n,m]", "elementwise", {"kind": NORMAL, "mask": ALL, "low": -6.0, "high": 2.0}),
        ("x", "float32[n]", "elementwise", {"kind": NORMAL, "mask": ALL, "row": 1}),
        ("weight", "bfloat16[n,m]", "elementwise", {"kind": NORMAL, "mask": PLAIN | SCALES | SPIKES, "scale": 0.25}),
        ("weight", "float8_e4m3fn[n,m]", "elementwise", {"kind": NORMAL, "scale": 1.0}),
        ("top_p", "float32[n]", "elementwise", {"kind": UNIFORM, "low": 0.1, "high": 0.95}),
        ("A", "float32[n]", "mamba_ssu", {"kind": UNIFORM, "low": -16.0, "high": -1.0}),
        ("x_scale", "float32[n]", "elementwise", {"kind": UNIFORM, "low": 0.5, "high": 1.5}),
        ("probs", "float32[n,m]", "elementwise", {"kind": SHARES, "needs_base": False}),
        ("q", "bfloat16[n,m]", "gdn", {"kind": DIRECTION, "needs_base": False}),
        ("routing_logits", "float32[n,m]", "moe", {"kind": NORMAL, "mask": PLAIN}),
        ("x", "float4_e2m1[n,m]", "elementwise", {"kind": BYTES}),
        ("x", "int8[n,m]", "elementwise", {"kind": INTEGER, "first": -128, "last": 127, "needs_base": False}),
        ("seeds", "int64[n]", "elementwise", {"kind": INTEGER, "first": 0, "last": 2**31 - 1}),
        ("token_ids", "int32[n]", "elementwise", {"kind": INTEGER, "first": 0, "last": 99}),
        ("top_k", "int32[n]", "elementwise", {"kind": INTEGER, "first": 1, "last": 64}),
        ("mask", "bool[n,m]", "elementwise", {"kind": MASK, "high": 0.5, "needs_base": False}),
    ],
)
def test_recipes_follow_from_the_meaning_of_an_input(name, text, op_type, expected):
    recipes, reasons = plan({name: text}, op_type=op_type, n=8, m=16, vocab_size=100)
    assert not reasons
    assert {field: getattr(recipes[name], field) for field in expected} == expected


def test_only_normal_values_have_no_spikes():
    recipes, _ = plan({"x": "float32[n,m]"}, distributions=("normal",), n=8, m=16)
    assert recipes["x"].mask == PLAIN | SCALES


@pytest.mark.parametrize(
    ("reference", "selecting"),
    [
        ("return torch.topk(x, 3).values, y", "x"),
        ("return y[x.argmax()]", "x"),
        ("scores = y.float(); best = scores.sort(); return x", "y"),
        ("n = x.shape[0]; return y.topk(n)", "y"),
        ("z = torch.empty(3); z.copy_(x + y); return z.topk(2)", "xy"),
        ("z, u = x, y; return z.argsort()", "xy"),
        ("f = lambda a: a.argmax(); return f(x)", "xy"),  # the arguments of a helper are not followed
        ("return x + y", ""),
    ],
)
def test_inputs_that_reach_a_selection_by_values_have_no_ties(reference, selecting):
    recipes, _ = plan({"x": "float32[n,m]", "y": "float32[n,m]"}, reference=reference, n=8, m=16)
    assert {name: recipe.mask for name, recipe in recipes.items()} == {
        name: PLAIN | SCALES if name in selecting else ALL for name in "xy"
    }


@pytest.mark.parametrize(
    ("name", "text", "op_type", "fields"),
    [("x", "float32[n,m]", "elementwise", (0, 1)), ("top_p", "float32[n]", "elementwise", (0, 0)),
     ("routing_logits", "float32[n,m]", "moe", (1, 0))],
)  # fmt: skip
def test_recorded_values_are_rescaled(name, text, op_type, fields):
    recipes, _ = plan({name: text}, op_type=op_type, recorded={name}, n=8, m=16)
    recipe = recipes[name]
    assert (recipe.kind, (recipe.first, recipe.last), recipe.needs_base) == (RESCALE, fields, True)


def test_recorded_values_that_are_selected_change_places():
    inputs = {"x": "float32[n,m]", "y": "float32[n,m]"}
    recipes, _ = plan(inputs, reference="return x.argmax(-1), y", recorded=inputs, n=8, m=16)
    assert {name: recipe.first for name, recipe in recipes.items()} == {"x": 2, "y": 0}


@pytest.mark.parametrize(
    ("reference", "mask"),
    [("return torch.multinomial(x.softmax(-1), 1)", ALL), ("return (x.exp() / torch.rand_like(x)).argmax(-1)", ALL),
     ("return x.argmax(-1)", PLAIN | SCALES), ("return (x > 0).int()", PLAIN | SCALES)],
)  # fmt: skip
def test_rows_of_a_sampler_may_have_ties(reference, mask):
    recipes, _ = plan({"x": "float32[n,m]"}, reference=reference, output="int64[]", n=8, m=16)
    assert recipes["x"].mask == mask


def test_signs_of_recorded_values_stay_where_they_mean_something():
    for value in (torch.rand(8, 16), torch.where(torch.rand(8, 16) < 0.5, 0.0, -torch.inf)):
        recipes, _ = plan({"x": "float32[n,m]"}, given={"x": value}, recorded={"x"}, n=8, m=16)
        assert not recipes or recipes["x"].last == 0


def test_recorded_probabilities_and_masks_are_drawn_like_those_that_are_made():
    given = {"probs": torch.rand(8, 16).softmax(-1), "mask": torch.arange(16).expand(8, 16) < 4}
    recipes, _ = plan({"probs": "float32[n,m]", "mask": "bool[n,m]"}, given=given, recorded=given, n=8, m=16)
    assert (recipes["probs"].kind, recipes["probs"].needs_base) == (SHARES, False)
    assert (recipes["mask"].kind, recipes["mask"].high, recipes["mask"].first) == (MASK, 0.25, 1)
    recipes, _ = plan({"probs": "float32[n,m]"}, given={"probs": torch.rand(8, 16)}, recorded={"probs"}, n=8, m=16)
    assert recipes["probs"].kind == RESCALE


def test_scalars_get_other_valid_values():
    inputs = {"eps": "float32", "bound": "float32", "local_expert_offset": "int32", "count": "int32", "x": "float32[n]"}
    definition = make_definition(inputs, {"y": "float32[n]"}, "def run(*args): ...", constraints=("bound > 1",))
    given = {"eps": 1.0, "bound": 2.0, "local_expert_offset": 224, "count": 3, "x": torch.ones(1)}
    axes = {"n": 1, "num_experts": 256, "num_local_experts": 32}
    assert other_scalars(definition, axes, given) == [{"eps": 0.625, "local_expert_offset": 0}, {"count": 1}]
    assert other_scalars(definition, axes, {**given, "local_expert_offset": 0})[0]["local_expert_offset"] == 32
    assert other_scalars(definition, {**axes, "num_local_experts": 256}, given)[0] == {"eps": 0.625}


@pytest.mark.parametrize(
    ("value", "others"),
    [(True, [False]), (False, [True]), (64, [32]), (7, [3]), (1, [2]), (0, [1]), (-1, [1]), (None, []), (0.0, [])],
)
def test_integers_and_booleans_get_another_value(value, others):
    definition = make_definition({"k": "int32", "x": "float32[n]"}, {"y": "float32[n]"}, "def run(*args): ...")
    given = {"k": value, "x": torch.ones(1)}
    assert other_scalars(definition, {"n": 1}, given) == [{"k": other} for other in others]


@pytest.mark.parametrize(
    ("text", "value", "reason"),
    [
        ("float32[n,m]", torch.zeros(8, 16), "all recorded values are zero"),
        ("bool[n,m]", torch.ones(8, 16, dtype=torch.bool), "all of its elements are equal"),
        ("int32[n]", torch.ones(8, dtype=torch.int32), "no rule states which values are valid"),
    ],
)
def test_there_is_a_reason_for_values_that_stay(text, value, reason):
    recipes, reasons = plan({"x": text}, given={"x": value}, recorded={"x"}, n=8, m=16)
    assert (recipes, reasons) == ({}, {"x": reason})


def test_structure_scalars_and_inputs_without_elements_are_nothing_to_generate():
    given = {"kv_indices": torch.zeros(8, dtype=torch.int32), "eps": 1.5, "x": torch.zeros(0, 16)}
    assert plan({"kv_indices": "int32[n]", "eps": "float32", "x": "float32[n,m]"}, given=given, n=8, m=16) == ({}, {})


def test_what_a_constraint_reads_stays():
    inputs = {"x": "float32[n,m]", "y": "float32[n,m]"}
    recipes, reasons = plan(inputs, constraints=("x.max().item() < 100", "y.shape[0] == n"), n=8, m=16)
    assert list(recipes) == ["y"]
    assert reasons == {"x": "a constraint reads its values"}


def test_tokens_keep_their_padding(fill):
    tokens = torch.tensor([[5, 7, -1, -1]], dtype=torch.int64)
    recipes, _ = plan({"input_ids": "int64[n,m]"}, given={"input_ids": tokens}, n=1, m=4, vocab_size=10)
    recipe = recipes["input_ids"]
    assert recipe.needs_base
    found = fill(INTEGER, "int64", (1, 4), base=tokens, first=recipe.first, last=recipe.last)
    assert found[0, 2:].tolist() == [-1, -1]


def test_strides_are_those_of_the_input():
    value = torch.empty_strided((2, 3, 4, 5, 16), (30000, 1000, 250, 48, 2))
    recipes, _ = plan({"x": "float32[a,b,c,d,m]"}, given={"x": value}, a=2, b=3, c=4, d=5, m=16)
    assert (recipes["x"].shape, recipes["x"].strides) == ((2, 12, 5, 16), (30000, 250, 48, 2))
    apart = torch.empty_strided((2, 3, 4, 5, 16), (300000, 9000, 1000, 48, 2))
    _, reasons = plan({"x": "float32[a,b,c,d,m]"}, given={"x": apart}, a=2, b=3, c=4, d=5, m=16)
    assert reasons == {"x": "its elements lie apart in more than 4 dimensions"}
