"""Tests of input variation: fresh, valid, reproducible values for timed calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
import pytest
import torch
from fib_bench.inputs.generation import Value, make_inputs
from fib_bench.inputs.variation import LinkGranularity, Variation, link_granularity, vary, varying_inputs
from fib_compile.device import is_cuda_available
from fib_schema import (
    AxisConst,
    AxisVar,
    Definition,
    RandomInput,
    SafetensorsInput,
    TraceSet,
    Workload,
    evaluate_constraint,
)
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

Make = Callable[..., Definition]
MakeWorkload = Callable[..., Workload]
NUMBERS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
FLOATS = (*NUMBERS, "float4_e2m1") if hasattr(torch, "float4_e2m1fn_x2") else NUMBERS  # torch 2.8 brought that


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, in its shape: equality that does not care what they mean."""
    return tensor.contiguous().view(-1).view(torch.uint8).view(*tensor.shape, -1).squeeze(-1)


def seeded(seed: int, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def tensors(values: Mapping[str, Value]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def slotted(target: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors as the only slot."""
    return {name: tensor.unsqueeze(0) for name, tensor in target.items()}


def varied(
    first: Mapping[str, Value], second: Mapping[str, Value], names: Mapping[str, Variation], seed: int
) -> dict[str, torch.Tensor]:
    target = {name: value.clone() for name, value in tensors(first).items()}
    vary(slotted(target), first, second, names, seeded(seed))
    return target


@pytest.fixture
def two_sets(make_definition: Make, make_workload: MakeWorkload) -> Callable[..., tuple[Definition, list[dict]]]:
    """Two input sets: ``two_sets({"x": "float32[n]"}, n=4)``."""

    def make(
        inputs: Mapping[str, str], *, op_type: str = "elementwise", constraints: tuple[str, ...] = (), **axes: int
    ) -> tuple[Definition, list[dict[str, Value]]]:
        extra = {"spare": f"float32[{','.join(axes)}]?"}  # so that every axis is known
        definition = make_definition(
            {**inputs, **extra}, {"y": "float32[]"}, "def run(*args): ...", op_type=op_type, constraints=constraints
        )
        workload = make_workload(definition, axes, spare=None)
        return definition, [make_inputs(definition, workload, seed=seed) for seed in (1, 2)]

    return make


@pytest.mark.parametrize("dtype", FLOATS)
def test_each_element_comes_from_one_set_or_the_other(two_sets: Callable, dtype: str) -> None:
    definition, (first, second) = two_sets({"x": f"{dtype}[n,m]"}, n=64, m=256)
    names = varying_inputs(definition, [first, second])
    assert names == {"x": Variation.MIXED}
    found, a, b = (bits(values["x"]) for values in (varied(first, second, names, 0), first, second))
    assert ((found == a) | (found == b)).all()
    both = a != b
    assert 0.49 < (found == a)[both].float().mean() < 0.51
    share = (found == a).flatten(1).float().mean(1)
    assert share.min() > 0.3  # no row is that of one set
    assert share.max() < 0.8


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [1, 2, 3, 8, 100])
def test_small_tensors_differ_from_both_sets_and_from_each_other(two_sets: Callable, dtype: str, size: int) -> None:
    definition, (first, second) = two_sets({"x": f"{dtype}[n]"}, n=size)
    names = varying_inputs(definition, [first, second])
    assert names == {"x": Variation.RESCALED}
    found = [tuple(bits(varied(first, second, names, seed)["x"]).flatten().tolist()) for seed in range(20)]
    if dtype == "float4_e2m1":
        assert size == 1 or len(set(found)) > 2
    else:
        assert not {tuple(bits(values["x"]).flatten().tolist()) for values in (first, second)} & set(found)
        assert len(set(found)) > (18 if size > 2 and not dtype.startswith("float8") else 2)


@given(size=st.integers(2, 200), seed=st.integers(0, 2**20))
def test_a_mixture_is_never_one_of_the_sets(size: int, seed: int) -> None:
    first, second = {"x": torch.zeros(size)}, {"x": torch.ones(size)}
    found = varied(first, second, {"x": Variation.MIXED}, seed)["x"]
    assert 0 < found.sum() < size


@given(rows=st.integers(2, 40), seed=st.integers(0, 2**20))
def test_permuted_rows_are_never_in_their_old_order(rows: int, seed: int) -> None:
    first = {"x": torch.arange(2.0 * rows).view(rows, 2)}
    found = varied(first, first, {"x": Variation.PERMUTED}, seed)["x"]
    assert not torch.equal(found, first["x"])
    assert sorted(found[:, 0].tolist()) == first["x"][:, 0].tolist()


def test_all_variations_have_a_link_granularity() -> None:
    assert all(isinstance(link_granularity(variation), LinkGranularity) for variation in Variation)


def test_equal_seeds_give_equal_values_and_others_give_others(two_sets: Callable) -> None:
    inputs = {"x": "float16[n,m]", "w_scale": "float32[n,m]", "probs": "float32[n,m]", "router_bias": "float32[n]"}
    definition, (first, second) = two_sets(inputs, n=32, m=40)
    names = varying_inputs(definition, [first, second])
    assert set(names) == set(inputs)
    one, same, other = (varied(first, second, names, seed) for seed in (5, 5, 6))
    for name in inputs:
        assert torch.equal(one[name], same[name])
        assert not torch.equal(one[name], other[name])


def test_values_are_written_into_the_storage_given(two_sets: Callable) -> None:
    inputs = {"x": "bfloat16[n,m]", "probs": "float32[n,m]", "f": "float8_e4m3fn[n]"}
    definition, (first, second) = two_sets(inputs, n=32, m=40)
    names = varying_inputs(definition, [first, second])
    memory = torch.zeros(1 << 16, dtype=torch.uint8)
    target, offset = {}, 0
    for name in inputs:
        like = first[name]
        size = like.numel() * like.element_size()
        target[name] = memory[offset : offset + size].view(like.dtype).view(like.shape)
        offset += size + 256
    expected = varied(first, second, names, 5)
    before = {name: tensor.clone() for name, tensor in tensors(first).items()}
    vary(slotted(target), first, second, names, seeded(5))
    for name in inputs:
        assert torch.equal(bits(target[name]), bits(expected[name]))
        assert torch.equal(bits(first[name]), bits(before[name]))


def test_probabilities_stay_probabilities_and_are_new_even_in_one_row(two_sets: Callable) -> None:
    definition, (first, second) = two_sets({"probs": "float32[n,vocab_size]"}, n=1, vocab_size=1000)
    names = varying_inputs(definition, [first, second])
    assert names == {"probs": Variation.SHUFFLED}
    found = [varied(first, second, names, seed)["probs"] for seed in range(10)]
    assert len({tuple(row.flatten().tolist()) for row in found}) == 10
    for row in found:
        assert torch.allclose(row.sum(-1), torch.ones(1))
        assert not torch.equal(row, first["probs"])


def test_what_is_no_floating_tensor_keeps_its_values(two_sets: Callable) -> None:
    inputs = {"x": "float32[n]", "mask": "bool[n]", "kv_indices": "int32[n]", "bytes": "int8[n]", "eps": "float32"}
    definition, sets = two_sets({**inputs, "cos_sin_cache": "float32[n,n]"}, n=8, num_pages=9)
    assert set(varying_inputs(definition, sets)) == {"x"}


@pytest.mark.parametrize(
    ("constraint", "keeps"),
    [
        ("x.max().item() < 100", True),
        ("n == 0 or x[0] < 100", True),
        ("x.sum() + z.sum() < 1000", True),
        ("x.shape[0] == n and len(x) == n and x.numel() == n and x.ndim == 1", False),
        ("x is None or x.shape[0] == n", False),
        ("z.min() < 100", False),
    ],
)
def test_an_input_whose_values_a_constraint_reads_keeps_them(two_sets: Callable, constraint: str, keeps: bool) -> None:
    definition, sets = two_sets({"x": "float32[n]", "z": "float32[n]"}, constraints=(constraint,), n=8)
    assert ("x" not in varying_inputs(definition, sets)) is keeps


class TestTheSameInAllSets:
    """Blobs, and a single set."""

    def test_plain_values_and_weights_are_rescaled(self, two_sets: Callable) -> None:
        for dtype in NUMBERS:
            definition, (first, _) = two_sets({"x": f"{dtype}[n,m]", "weight": f"{dtype}[n]"}, n=300, m=64)
            names = varying_inputs(definition, [first])
            assert names == {"x": Variation.RESCALED, "weight": Variation.RESCALED}
            found = varied(first, first, names, 0)
            for name in names:
                new, old = found[name].float(), first[name].float()
                normal = old.abs() > 0.1  # not among the subnormals of fp8
                ratio = new[normal] / old[normal]
                assert 0.4 < ratio.min() < 0.6
                assert 0.8 < ratio.max() < 1.0
                assert torch.equal(new == 0, old == 0) or dtype.startswith("float8")

    @pytest.mark.skipif("float4_e2m1" not in FLOATS, reason="this version of torch has no float4")
    def test_packed_numbers_change_their_signs(self, two_sets: Callable) -> None:
        definition, (first, _) = two_sets({"w": "float4_e2m1[n,m]"}, n=300, m=64)
        names = varying_inputs(definition, [first])
        change = bits(varied(first, first, names, 0)["w"]) ^ bits(first["w"])
        assert set(change.unique().tolist()) == {0x00, 0x08, 0x80, 0x88}

    def test_routing_scores_are_permuted_and_scales_are_kept(self, two_sets: Callable) -> None:
        inputs = {"routing_logits": "bfloat16[n,m]", "routing_bias": "bfloat16[m]", "x_scale": "float32[n,m]"}
        definition, (first, _) = two_sets(inputs, n=30, m=64)
        names = varying_inputs(definition, [first, {name: first[name] for name in first}])
        assert names == {"routing_logits": Variation.PERMUTED}
        found = varied(first, first, names, 0)["routing_logits"]
        assert sorted(found.tolist()) == sorted(first["routing_logits"].tolist())

    def test_a_blob_is_found_to_be_the_same(
        self, tmp_path: Path, make_definition: Make, make_workload: MakeWorkload
    ) -> None:
        save_file({"b": torch.randn(9000)}, tmp_path / "t.safetensors")
        definition = make_definition({"a": "float32[n]", "b": "float32[n]"}, {"y": "float32[n]"}, "def run(a, b): ...")
        workload = make_workload(definition, {"n": 9000}, b=SafetensorsInput("t.safetensors", "b"))
        sets = [make_inputs(definition, workload, seed=seed, root=tmp_path) for seed in range(3)]
        assert varying_inputs(definition, sets) == {"a": Variation.MIXED, "b": Variation.RESCALED}


# -- the public data set -----------------------------------------------------------------------

SIZES = {
    "M": 3, "batch_size": 3, "len_cu_seqlens": 4, "len_indptr": 4, "max_seq_len": 64, "num_kv_heads": 2,
    "num_kv_indices": 20, "num_pages": 24, "num_qo_heads": 4, "num_seqs": 3, "num_tokens": 5, "pool_size": 8,
    "seq_len": 3, "state_cache_size": 8, "total_kv": 20, "total_q": 12, "total_seq_len": 12,
}  # fmt: skip
"""Small values for every variable axis of the data set; together they satisfy its constraints."""


def _data_set() -> Path | None:
    given = os.environ.get("FIB_TEST_DATASET")
    here = Path(__file__).resolve()
    beside = [parent.parent / "shared" / "flashinfer-trace" for parent in here.parents if (parent / ".git").exists()]
    return next((path for path in ([Path(given)] if given else beside) if path.is_dir()), None)


def _narrowed(definition: Definition) -> Definition:
    """The definition with its wide axes cut to a sixteenth: the rules are the same, the tensors are not huge."""
    axes: dict[str, AxisConst | AxisVar] = {}
    for name, axis in definition.axes.items():
        is_wide = isinstance(axis, AxisConst) and axis.value >= 128
        axes[name] = AxisConst(axis.value // 16) if isinstance(axis, AxisConst) and is_wide else axis
    return attrs.evolve(definition, axes=axes)


def _definitions() -> list[Definition]:
    root = _data_set()
    return [_narrowed(found) for found in TraceSet.from_path(root).definitions.values()] if root else []


needs_data = pytest.mark.skipif(
    _data_set() is None, reason="the public flashinfer-trace data set is not here; set FIB_TEST_DATASET to its folder"
)


def _check_valid(definition: Definition, workload: Workload, values: Mapping[str, Value]) -> None:
    """Whether values may be handed to a kernel: the constraints hold, and what a rule promises is so."""
    names = {**definition.const_axes, **workload.axes, **values}
    assert all(evaluate_constraint(constraint, names) for constraint in definition.constraints)
    for name, tensor in tensors(values).items():
        spec = definition.inputs[name]
        assert tuple(tensor.shape) == tuple(names[axis] for axis in spec.shape or ())
        if not tensor.is_floating_point():
            continue
        numbers = tensor.float()
        assert numbers.isfinite().all()
        if name == "probs":
            assert torch.allclose(numbers.sum(-1), torch.ones(numbers.shape[:-1]))
        if name in {"q", "k"} and definition.op_type == "gdn":
            assert torch.allclose(numbers.norm(dim=-1), torch.ones(numbers.shape[:-1]), atol=2e-2)
        if "scale" in name:
            assert (numbers > 0).all()
        if name == "A" and definition.op_type == "mamba_ssu":
            assert (numbers < 0).all()
        if name == "top_p":
            assert ((numbers > 0) & (numbers < 1)).all()


@needs_data
@pytest.mark.parametrize("definition", _definitions(), ids=lambda definition: definition.name)
def test_inputs_of_the_public_data_set_vary_and_stay_valid(definition: Definition) -> None:
    axes = {axis: SIZES[axis] for axis in definition.var_axes}
    workload = Workload(axes, {name: RandomInput() for name in definition.inputs}, "small")
    first, second = (make_inputs(definition, workload, seed=seed) for seed in (1, 2))
    for sets in ([first, second], [first]):
        names = varying_inputs(definition, sets)
        made = [varied(sets[0], sets[-1], names, seed) for seed in (1, 2)]
        for values in made:
            _check_valid(definition, workload, {**sets[0], **values})
        for name in names:
            seen = {bytes(bits(values[name]).numpy().tobytes()) for values in (first, second, *made)}
            assert len(seen) == 4, name
        kept = [n for n, value in tensors(first).items() if value.is_floating_point() and n not in names]
        if len(sets) == 2:
            assert all(name == "cos_sin_cache" or first[name].numel() < 16 for name in kept), kept
        assert names


# -- a GPU -------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not is_cuda_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_on_a_gpu_nothing_waits_for_the_device(make_definition: Make, make_workload: MakeWorkload) -> None:
    inputs = {f"x{dtype}": f"{dtype}[n,m]" for dtype in FLOATS} | {
        "probs": "float32[n,m]", "few": "bfloat16[c3]", "x_scale": "float32[n,m]", "routing_logits": "bfloat16[n,m]",
    }  # fmt: skip
    definition = make_definition(inputs, {"y": "float32[]"}, "def run(*args): ...")
    workload = make_workload(definition, {"n": 64, "m": 128})
    first, second = (make_inputs(definition, workload, seed=seed, device="cuda:0") for seed in (1, 2))
    for sets in ([first, second], [first]):
        names = varying_inputs(definition, sets)
        made = []
        for seed in (5, 5, 6):
            target = {name: value.clone() for name, value in tensors(first).items()}
            generator = seeded(seed, "cuda:0")
            vary(slotted(target), sets[0], sets[-1], names, generator)
            made.append(target)
        for name in names:
            one, same, other = (bits(values[name]) for values in made)
            assert torch.equal(one, same)
            assert not torch.equal(one, other)
            assert not any(torch.equal(one, bits(values[name])) for values in (first, second))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [3, 5000])
def test_each_slot_gets_values_of_its_own_and_what_lies_between_stays(dtype: str, size: int) -> None:
    from fib_compile.device import torch_dtype

    first, second = (
        torch.randint(0, 0x38, (size, 16), dtype=torch.uint8, generator=seeded(seed)).view(torch_dtype(dtype))
        for seed in (1, 2)
    )
    gap = 512
    memory = torch.full((4, first.nbytes + gap), 0x77, dtype=torch.uint8)
    target = memory[:, : first.nbytes].view(first.dtype).view(4, *first.shape)
    vary({"x": target}, {"x": first}, {"x": second}, {"x": Variation.MIXED}, seeded(3))
    assert len({bytes(slot.tolist()) for slot in memory}) == 4
    assert bool((memory[:, first.nbytes :] == 0x77).all())
    for slot in target:
        assert bool(((bits(slot) == bits(first)) | (bits(slot) == bits(second))).all())
