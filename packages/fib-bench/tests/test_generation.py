"""Tests of input generation: sources, reproducibility, constraints, distributions."""

import pytest
import torch
from fib_bench import InputError, make_inputs
from fib_bench.config.model import DISTRIBUTIONS
from fib_bench.inputs.generation import distributions_of
from fib_compile.device import is_cuda_available
from fib_schema import SafetensorsInput, ScalarInput, Workload
from safetensors.torch import save_file

from .samples import make_definition, make_workload

GATHER = make_definition(
    {"table": "float16[num_pages,c4]", "page_indices": "int32[count]", "factor": "float32"},
    {"y": "float16[count,c4]"},
    "def run(table, page_indices, factor):\n    return table[page_indices.long()] * factor\n",
    constants={"c4": 4},
    constraints=["page_indices.numel() == count", "count == 0 or page_indices.max().item() < num_pages"],
)
"""Rows of a table, by indices that must lie within it."""


def test_equal_seeds_give_equal_inputs():
    workload = make_workload(GATHER, {"num_pages": 9, "count": 5})
    first, second = (make_inputs(GATHER, workload, seed=7) for _ in range(2))
    assert list(first) == list(GATHER.inputs)
    for name in ("table", "page_indices"):
        assert torch.equal(first[name], second[name])


@pytest.mark.parametrize("change", ["seed", "uuid"])
def test_other_seeds_and_workloads_give_other_values(change):
    axes = {"num_pages": 9, "count": 5}
    first = make_inputs(GATHER, make_workload(GATHER, axes), seed=7)
    uuid, seed = ("w", 8) if change == "seed" else ("other", 7)
    second = make_inputs(GATHER, make_workload(GATHER, axes, uuid), seed=seed)
    assert not torch.equal(first["table"], second["table"])


def test_inputs_have_the_dtype_and_shape_of_the_definition():
    inputs = make_inputs(GATHER, make_workload(GATHER, {"num_pages": 9, "count": 5}), seed=0)
    table, indices = inputs["table"], inputs["page_indices"]
    assert (table.dtype, tuple(table.shape)) == (torch.float16, (9, 4))
    assert (indices.dtype, tuple(indices.shape)) == (torch.int32, (5,))
    assert inputs["factor"] == 1.0


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        ("n == m + 1", r"constraint 'n == m \+ 1' does not hold \(axes n=2, m=2\)"),
        ("x[5, 0].item() > 0", "cannot be evaluated"),
    ],
)
def test_a_constraint_that_does_not_hold_or_cannot_be_evaluated_is_named(constraint, said):
    definition = make_definition({"x": "float32[n,m]"}, {"y": "float32[n]"}, "def run(x): 1", constraints=[constraint])
    with pytest.raises(InputError, match=said):
        make_inputs(definition, make_workload(definition, {"n": 2, "m": 2}), seed=0)


SIZES = {"num_pages": 3, "count": 2}


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        (make_workload(GATHER, {"num_pages": 3}), "gives no value for axis 'count'"),
        (make_workload(GATHER, {**SIZES, "cuont": 2}), "no axis is named 'cuont'; did you mean 'count'"),
        (make_workload(GATHER, {**SIZES, "c4": 5}), "axis 'c4' is 4 in the definition and 5 in the workload"),
        (make_workload(GATHER, {**SIZES, "num_pages": 0}), "2 page numbers are needed, the pool has 0 pages"),
        (make_workload(GATHER, SIZES, table=None), "input 'table': the workload gives no source"),
        (Workload(SIZES, {"tabel": ScalarInput(1)}, "w"), "no input is named 'tabel'; did you mean 'table'"),
    ],
)
def test_a_workload_that_misses_the_definition_is_refused(workload, said):
    with pytest.raises(InputError, match=said):
        make_inputs(GATHER, workload, seed=0)


@pytest.mark.parametrize(
    ("dtype", "value", "found"), [("float32", 2.5, 2.5), ("float32", 2, 2.0), ("int32", 3, 3), ("bool", True, True)]
)
def test_a_scalar_has_the_type_of_its_dtype(dtype, value, found):
    definition = make_definition({"s": dtype, "x": "float32[n]"}, {"y": "float32[n]"}, "def run(s, x): ...")
    given = make_inputs(definition, make_workload(definition, {"n": 1}, s=ScalarInput(value)), seed=0)["s"]
    assert (type(given), given) == (type(found), found)


@pytest.mark.parametrize(
    ("dtype", "value"), [("int32", 2.5), ("int32", True), ("float32", True), ("bool", 1), ("float32[n]", 1.0)]
)
def test_a_scalar_of_another_kind_is_refused(dtype, value):
    definition = make_definition({"s": dtype, "x": "float32[n]"}, {"y": "float32[n]"}, "def run(s, x): ...")
    with pytest.raises(InputError, match="input 's': the workload gives"):
        make_inputs(definition, make_workload(definition, {"n": 1}, s=ScalarInput(value)), seed=0)


class TestBlobs:
    @pytest.fixture
    def workload(self):
        source = SafetensorsInput("./blob/t.safetensors", "indices")
        return make_workload(GATHER, {"num_pages": 9, "count": 3}, page_indices=source)

    def write(self, root, tensor):
        (root / "blob").mkdir()
        save_file({"indices": tensor}, root / "blob/t.safetensors")

    def test_are_read(self, tmp_path, workload):
        self.write(tmp_path, torch.tensor([4, 0, 8], dtype=torch.int32))
        indices = make_inputs(GATHER, workload, seed=0, root=tmp_path)["page_indices"]
        assert indices.tolist() == [4, 0, 8]

    def test_pairs_of_fp4_may_be_stored_as_bytes(self, tmp_path):
        save_file({"x": torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8)}, tmp_path / "x.safetensors")
        definition = make_definition({"x": "float4_e2m1[n,m]"}, {"y": "float32[n]"}, "def run(x): ...")
        workload = make_workload(definition, {"n": 2, "m": 2}, x=SafetensorsInput("x.safetensors", "x"))
        x = make_inputs(definition, workload, seed=0, root=tmp_path)["x"]
        assert x.view(torch.uint8).tolist() == [[1, 2], [3, 4]]

    @pytest.mark.parametrize(
        ("tensor", "said"),
        [
            (torch.zeros(4, dtype=torch.int32), r"has shape \(4,\), the axes say \(3,\)"),
            (torch.zeros(3, dtype=torch.int64), "has dtype torch.int64, expected int32"),
            (torch.full((3,), 9, dtype=torch.int32), "constraint .* does not hold"),
        ],
    )
    def test_that_contradict_the_definition_are_refused(self, tmp_path, workload, tensor, said):
        self.write(tmp_path, tensor)
        with pytest.raises(InputError, match=said):
            make_inputs(GATHER, workload, seed=0, root=tmp_path, synthesize_missing=True)

    def test_that_are_missing_are_an_error_that_says_what_to_do(self, tmp_path, workload):
        with pytest.raises(InputError, match="does not exist; get the blobs, or pass --synthesize-missing"):
            make_inputs(GATHER, workload, seed=0, root=tmp_path)


class TestDistributions:
    @pytest.fixture
    def definition(self):
        """One input of every nature."""
        return make_definition(
            {
                "x": "bfloat16[n,m]", "weight": "bfloat16[m]", "x_scale": "float32[n]", "probs": "float32[n,m]",
                "cos_sin_cache": "float32[n,c8]", "routing_logits": "float32[n,m]", "kv_indices": "int32[n]",
                "mask": "bool[n,m]", "eps": "float32", "pages": "float32[num_pages]?",
            },
            {"y": "float32[n]"},
            "def run(*args): ...",
        )  # fmt: skip

    @pytest.mark.parametrize("distribution", DISTRIBUTIONS)
    def test_change_plain_inputs_only(self, definition, distribution):
        workload = make_workload(definition, {"n": 20, "m": 30, "num_pages": 40}, pages=None)
        normal = make_inputs(definition, workload, seed=3)
        found = make_inputs(definition, workload, seed=3, distribution=distribution)
        changed = {
            name
            for name, value in normal.items()
            if not (torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value)
        }
        assert changed == (set() if distribution == "normal" else {"x"})

    def test_keep_products_of_float16_finite(self):
        definition = make_definition(
            {"A": "float16[M,K]", "B": "float16[N,K]"}, {"C": "float16[M,N]"}, "def run(A, B): return A @ B.T\n"
        )
        workload = make_workload(definition, {"M": 32, "N": 32, "K": 16384})
        for distribution in DISTRIBUTIONS:
            inputs = make_inputs(definition, workload, seed=0, distribution=distribution)
            A, B = inputs["A"], inputs["B"]
            assert (A.float() @ B.float().T).half().isfinite().all()

    def test_booleans_take_all_but_ties(self):
        definition = make_definition({"x": "float32[n]"}, {"mask": "bool[n]"}, "def run(x):\n    return x > 5\n")
        assert distributions_of(definition, DISTRIBUTIONS) == ("normal", "wide", "tiny", "shifted")
        assert distributions_of(definition, ("zeros_and_ones",)) == ("normal",)

    @pytest.mark.parametrize(
        ("inputs", "output", "reference", "applies"),
        [
            ({"x": "float32[n]"}, "float32[n]", "return x", True),
            ({"x": "float32[n]"}, "int64[n]", "return x", False),
            ({"probs": "float32[n]", "weight": "float32[n]"}, "float32[n]", "return x", False),
            ({"x": "float32[n]"}, "float32[n]", "return torch.topk(x, 3).values", False),
            ({"x": "float32[n]", "z": "float32[n]"}, "float32[n]", "return torch.topk(z, 3).values + x", True),
            ({"mystery": "int32[n]", "x": "float32[n]"}, "float32[n]", "return x", True),
        ],
    )
    def test_apply_where_they_make_a_difference_and_the_outputs_stay_defined(self, inputs, output, reference, applies):
        definition = make_definition(inputs, {"y": output}, f"def run(x): {reference}\n")
        assert distributions_of(definition, DISTRIBUTIONS) == (DISTRIBUTIONS if applies else ("normal",))
        assert distributions_of(definition, ("tiny", "wide")) == (("tiny", "wide") if applies else ("normal",))
        assert distributions_of(definition, ()) == ("normal",)


@pytest.mark.gpu
@pytest.mark.skipif(not is_cuda_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_all_tensors_are_on_the_device_and_are_the_same_again(tmp_path, distribution):
    save_file({"b": torch.tensor([1.0, 2.0])}, tmp_path / "t.safetensors")
    definition = make_definition(
        {
            "x": "float16[n,m]", "f": "float8_e4m3fn[n,m]", "w_scale": "float32[n]", "probs": "float32[n,m]",
            "mask": "bool[n,m]", "bytes": "int8[n]", "cos_sin_cache": "float32[n,m]", "kv_indptr": "int32[c5]",
            "kv_indices": "int32[num_kv_indices]", "cache": "bfloat16[num_pages,c8]", "b": "float32[c2]",
        },
        {"y": "float32[n]"},
        "def run(*args): ...",
        constraints=["kv_indptr[-1].item() == num_kv_indices", "x.max().item() < 1e9", "b.max() < cache.max() + 99"],
    )  # fmt: skip
    axes = {"n": 16, "m": 32, "num_kv_indices": 11, "num_pages": 20}
    workload = make_workload(definition, axes, b=SafetensorsInput("t.safetensors", "b"))
    options = {"seed": 1, "root": tmp_path, "distribution": distribution}
    first, second = (make_inputs(definition, workload, device="cuda:0", **options) for _ in range(2))
    on_cpu = make_inputs(definition, workload, **options)
    for name, value in first.items():
        same, other = second[name], on_cpu[name]
        assert isinstance(other, torch.Tensor)
        assert str(value.device) == "cuda:0"
        assert torch.equal(value.float(), same.float())
        if name in {"kv_indptr", "kv_indices", "b"}:
            assert torch.equal(value.cpu(), other)
