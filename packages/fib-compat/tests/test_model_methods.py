import json
import math

import attrs
import compat_samples as samples
import pytest
from fib_schema import InvalidField, InvalidRecord
from flashinfer_bench import (
    AxisConst,
    BenchmarkConfig,
    Correctness,
    Definition,
    RandomInput,
    SafetensorsInput,
    TensorSpec,
    Workload,
)
from flashinfer_bench.bench import EvalConfig, ResolvedEvalConfig
from flashinfer_bench.data import ScalarInput

DEFINITION = samples.definition(
    inputs={"x": TensorSpec(shape=["batch"], dtype="float32"), "factor": TensorSpec(shape=None, dtype="float32")},
    reference="def run(x, factor):\n    return factor * x\n",
)
SOLUTION = samples.solution()
TRACE = attrs.evolve(
    samples.trace(),
    workload=Workload(
        axes={"batch": 2},
        inputs={"x": SafetensorsInput(path="blob/x.safetensors", tensor_key="x"), "factor": ScalarInput(value=2.0)},
        uuid="w",
    ),
    evaluation=attrs.evolve(samples.evaluation(), correctness=Correctness(max_relative_error=math.inf)),
)
CONFIG = BenchmarkConfig(
    iterations=7, definitions=["scale"], op_type_config={"elementwise": EvalConfig(atol=1e-3, extra={"a": [1]})}
)
OBJECTS = [DEFINITION, SOLUTION, TRACE, TRACE.workload, RandomInput(), CONFIG, ResolvedEvalConfig()]


@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: type(value).__name__)
def test_a_dumped_object_validates_to_an_equal_one(value):
    kind = type(value)
    assert kind.model_validate(value.model_dump()) == value
    assert kind.model_validate_json(value.model_dump_json(indent=2)) == value
    assert kind.model_validate(value) is value
    assert value.model_copy() == value


def test_records_dump_exactly_the_documented_fields():
    assert DEFINITION.inputs["factor"].model_dump() == {"shape": None, "dtype": "float32", "description": None}
    assert AxisConst(value=3).model_dump() == {"type": "const", "value": 3, "description": None}
    assert list(DEFINITION.model_dump()) == (
        ["name", "op_type", "axes", "inputs", "outputs", "reference", "tags", "description", "constraints"]
    )
    assert list(SOLUTION.model_dump()) == ["name", "definition", "author", "spec", "sources", "description"]


def test_json_mode_dumps_only_json_values():
    dumped = TRACE.model_dump(mode="json")
    assert dumped["evaluation"]["correctness"]["max_relative_error"] == "Infinity"
    assert type(dumped["evaluation"]["status"]) is str
    assert json.loads(TRACE.model_dump_json()) == dumped
    assert TRACE.model_dump()["evaluation"]["correctness"]["max_relative_error"] == math.inf
    with pytest.raises(ValueError, match="mode must be"):
        TRACE.model_dump(mode="yaml")


def test_unknown_fields_are_kept():
    plain = {**DEFINITION.model_dump(), "from_tomorrow": 1}
    assert Definition.model_validate(plain).model_dump()["from_tomorrow"] == 1


@pytest.mark.parametrize(
    ("kind", "plain", "problem"),
    [
        (AxisConst, {"type": "const", "value": 4.7}, r"\$.value: expected an integer"),
        (Definition, {"name": "x"}, "misses the required field 'op_type'"),
        (BenchmarkConfig, {"iteration": 3}, "no setting is named 'iteration'; did you mean 'iterations'"),
        (EvalConfig, ["rtol"], "cannot be made of these fields"),
    ],
)
def test_an_invalid_value_is_a_value_error_with_its_place(kind, plain, problem):
    with pytest.raises((InvalidRecord, InvalidField), match=problem) as refusal:
        kind.model_validate(plain)
    assert isinstance(refusal.value, ValueError)


def test_copies_are_validated_and_leave_the_original_unchanged():
    copied = DEFINITION.model_copy(update={"name": "other", "tags": ["new"]}, deep=True)
    assert (copied.name, copied.tags, DEFINITION.name) == ("other", ("new",), "rmsnorm_h64")
    with pytest.raises(InvalidField, match="name"):
        DEFINITION.model_copy(update={"name": 3})
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        copied.name = "third"
