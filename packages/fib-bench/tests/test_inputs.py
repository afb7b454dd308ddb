"""Inputs: from where a workload says, reproducible, and never against the definition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fib_bench import InputError, make_inputs
from fib_schema import Definition, SafetensorsInput, ScalarInput, Workload
from safetensors.torch import save_file

Make = Callable[..., Definition]
MakeWorkload = Callable[..., Workload]


@pytest.fixture
def gather(make_definition: Make) -> Definition:
    """Rows of a table, by indices that must lie within it."""
    return make_definition(
        {"table": "float16[num_pages,c4]", "page_indices": "int32[count]", "factor": "float32"},
        {"y": "float16[count,c4]"},
        "def run(table, page_indices, factor):\n    return table[page_indices.long()] * factor\n",
        constants={"c4": 4},
        constraints=["page_indices.numel() == count", "count == 0 or page_indices.max().item() < num_pages"],
    )


def test_equal_seeds_give_equal_inputs(gather: Definition, make_workload: MakeWorkload) -> None:
    workload = make_workload(gather, {"num_pages": 9, "count": 5})
    first, second = (make_inputs(gather, workload, seed=7) for _ in range(2))
    assert list(first) == list(gather.inputs)
    for name in ("table", "page_indices"):
        assert torch.equal(first[name], second[name])


@pytest.mark.parametrize("change", ["seed", "uuid"])
def test_other_seeds_and_workloads_give_other_values(
    gather: Definition, make_workload: MakeWorkload, change: str
) -> None:
    axes = {"num_pages": 9, "count": 5}
    first = make_inputs(gather, make_workload(gather, axes), seed=7)
    uuid, seed = ("w", 8) if change == "seed" else ("other", 7)
    second = make_inputs(gather, make_workload(gather, axes, uuid), seed=seed)
    assert not torch.equal(first["table"], second["table"])


def test_inputs_have_the_dtype_and_shape_of_the_definition(gather: Definition, make_workload: MakeWorkload) -> None:
    inputs = make_inputs(gather, make_workload(gather, {"num_pages": 9, "count": 5}), seed=0)
    table, indices = inputs["table"], inputs["page_indices"]
    assert isinstance(table, torch.Tensor)
    assert isinstance(indices, torch.Tensor)
    assert (table.dtype, tuple(table.shape)) == (torch.float16, (9, 4))
    assert (indices.dtype, tuple(indices.shape)) == (torch.int32, (5,))
    assert inputs["factor"] == 1.0


def test_tensors_without_elements_can_be_made(gather: Definition, make_workload: MakeWorkload) -> None:
    inputs = make_inputs(gather, make_workload(gather, {"num_pages": 0, "count": 0}), seed=0)
    table = inputs["table"]
    assert isinstance(table, torch.Tensor)
    assert tuple(table.shape) == (0, 4)


def test_axes_that_contradict_each_other_are_refused(gather: Definition, make_workload: MakeWorkload) -> None:
    workload = make_workload(gather, {"num_pages": 0, "count": 3})
    with pytest.raises(InputError, match="3 indices are wanted, but there is nothing to point at"):
        make_inputs(gather, workload, seed=0)


def test_a_constraint_that_does_not_hold_is_named_with_the_axes(
    make_definition: Make, make_workload: MakeWorkload
) -> None:
    definition = make_definition(
        {"x": "float32[n,m]"}, {"y": "float32[n]"}, "def run(x): ...", constraints=["n == m + 1"]
    )
    with pytest.raises(InputError, match=r"constraint 'n == m \+ 1' does not hold \(axes n=2, m=2\)"):
        make_inputs(definition, make_workload(definition, {"n": 2, "m": 2}), seed=0)


def test_a_constraint_that_cannot_be_evaluated_is_an_input_error(
    make_definition: Make, make_workload: MakeWorkload
) -> None:
    definition = make_definition(
        {"x": "float32[n]"}, {"y": "float32[n]"}, "def run(x): ...", constraints=["x[5].item() > 0"]
    )
    with pytest.raises(InputError, match="cannot be evaluated"):
        make_inputs(definition, make_workload(definition, {"n": 2}), seed=0)


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"num_pages": 3}, "gives no value for axis 'count'"),
        ({"num_pages": 3, "count": 2, "cuont": 2}, "no axis is named 'cuont'; did you mean 'count'"),
        ({"num_pages": 3, "count": 2, "c4": 5}, "axis 'c4' is 4 by the definition, and 5 by the workload"),
    ],
)
def test_axes_that_miss_the_definition_are_refused(
    gather: Definition, make_workload: MakeWorkload, axes: dict[str, int], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        make_inputs(gather, make_workload(gather, axes), seed=0)


def test_a_constant_axis_may_be_repeated(gather: Definition, make_workload: MakeWorkload) -> None:
    make_inputs(gather, make_workload(gather, {"num_pages": 3, "count": 2, "c4": 4}), seed=0)


def test_an_input_that_the_definition_does_not_have_is_refused(gather: Definition) -> None:
    workload = Workload({"num_pages": 3, "count": 2}, {"tabel": ScalarInput(1)}, "w")
    with pytest.raises(InputError, match="no input is named 'tabel'; did you mean 'table'"):
        make_inputs(gather, workload, seed=0)


def test_an_input_without_a_source_is_refused(gather: Definition, make_workload: MakeWorkload) -> None:
    workload = make_workload(gather, {"num_pages": 3, "count": 2}, table=None)
    with pytest.raises(InputError, match="input 'table': the workload does not say where it comes from"):
        make_inputs(gather, workload, seed=0)


def test_an_optional_input_without_a_source_is_none(make_definition: Make, make_workload: MakeWorkload) -> None:
    definition = make_definition({"x": "float32[n]", "b": "float32[n]?"}, {"y": "float32[n]"}, "def run(x, b): ...")
    assert make_inputs(definition, make_workload(definition, {"n": 2}, b=None), seed=0)["b"] is None
    assert isinstance(make_inputs(definition, make_workload(definition, {"n": 2}), seed=0)["b"], torch.Tensor)


@pytest.mark.parametrize(
    ("dtype", "value", "found"),
    [("float32", 2.5, 2.5), ("float32", 2, 2.0), ("int32", 3, 3), ("bool", True, True)],
)
def test_a_scalar_has_the_type_of_its_dtype(
    make_definition: Make, make_workload: MakeWorkload, dtype: str, value: float, found: float
) -> None:
    definition = make_definition({"s": dtype, "x": "float32[n]"}, {"y": "float32[n]"}, "def run(s, x): ...")
    given = make_inputs(definition, make_workload(definition, {"n": 1}, s=ScalarInput(value)), seed=0)["s"]
    assert (type(given), given) == (type(found), found)


@pytest.mark.parametrize(
    ("dtype", "value"), [("int32", 2.5), ("int32", True), ("float32", True), ("bool", 1), ("float32[n]", 1.0)]
)
def test_a_scalar_of_another_kind_is_refused(
    make_definition: Make, make_workload: MakeWorkload, dtype: str, value: float
) -> None:
    definition = make_definition({"s": dtype, "x": "float32[n]"}, {"y": "float32[n]"}, "def run(s, x): ...")
    with pytest.raises(InputError, match="input 's': the workload gives"):
        make_inputs(definition, make_workload(definition, {"n": 1}, s=ScalarInput(value)), seed=0)


class TestBlobs:
    @pytest.fixture
    def workload(self, gather: Definition, make_workload: MakeWorkload) -> Workload:
        source = SafetensorsInput("./blob/t.safetensors", "indices")
        return make_workload(gather, {"num_pages": 9, "count": 3}, page_indices=source)

    def write(self, root: Path, tensor: torch.Tensor) -> None:
        (root / "blob").mkdir()
        save_file({"indices": tensor}, root / "blob/t.safetensors")

    def test_are_read(self, tmp_path: Path, gather: Definition, workload: Workload) -> None:
        self.write(tmp_path, torch.tensor([4, 0, 8], dtype=torch.int32))
        indices = make_inputs(gather, workload, seed=0, root=tmp_path)["page_indices"]
        assert isinstance(indices, torch.Tensor)
        assert indices.tolist() == [4, 0, 8]

    @pytest.mark.parametrize(
        ("tensor", "said"),
        [
            (torch.zeros(4, dtype=torch.int32), r"has shape \(4,\), the axes say \(3,\)"),
            (torch.zeros(3, dtype=torch.int64), "has dtype torch.int64, expected int32"),
            (torch.full((3,), 9, dtype=torch.int32), "constraint .* does not hold"),
        ],
    )
    def test_that_contradict_the_definition_are_refused(
        self, tmp_path: Path, gather: Definition, workload: Workload, tensor: torch.Tensor, said: str
    ) -> None:
        self.write(tmp_path, tensor)
        with pytest.raises(InputError, match=said):
            make_inputs(gather, workload, seed=0, root=tmp_path, synthesize_missing=True)

    def test_that_are_missing_are_an_error_that_says_what_to_do(
        self, tmp_path: Path, gather: Definition, workload: Workload
    ) -> None:
        with pytest.raises(InputError, match="does not exist; get the blobs, or pass --synthesize-missing"):
            make_inputs(gather, workload, seed=0, root=tmp_path)

    def test_that_are_missing_are_made_on_request(self, tmp_path: Path, gather: Definition, workload: Workload) -> None:
        inputs = make_inputs(gather, workload, seed=0, root=tmp_path, synthesize_missing=True)
        assert isinstance(inputs["page_indices"], torch.Tensor)
