"""Tests of the generated reference: its examples are valid, and it covers what fib-bench knows."""

import json
import os
import re
import shutil
import sys
from importlib import resources
from pathlib import Path

import attrs
import pytest
import yaml
from fib_bench import BenchmarkConfig, ResolvedEvalConfig
from fib_bench.evaluators import evaluator_for
from fib_schema import Definition, TraceSet
from fib_schema.data_files import load_json_file
from fib_schema.validation import validate

DOCS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(DOCS))
pytest.importorskip("sphinx", reason="needs the dependency group docs")

from data_format import EXAMPLES, RECORD_KINDS, record_classes, record_reference, settings_reference  # noqa: E402
from generated_text import GENERATORS, replaced  # noqa: E402
from op_type_reference import definitions, op_type_reference  # noqa: E402


@pytest.fixture
def public_definitions():
    given = os.environ.get("FIB_TEST_DATASET")
    folder = Path(given) if given else DOCS.parents[1] / "shared" / "flashinfer-trace"
    if not folder.is_dir():
        pytest.skip("the public flashinfer-trace data set is not here; set FIB_TEST_DATASET to its folder")
    return {path.stem: path for path in (folder / "definitions").rglob("*.json")}


def test_the_example_data_set_is_valid(tmp_path):
    folder = tmp_path / "set"
    shutil.copytree(EXAMPLES, folder)
    assert validate(folder).problems == ()
    config = BenchmarkConfig().for_data_set(trace_set := TraceSet.from_path(folder))
    (definition,) = trace_set.definitions.values()
    assert config.resolve_eval_config(definition).num_trials == 4
    assert config.resolve_eval_config(definition).tolerance("float32").atol == 1e-5
    assert trace_set.get_best_trace("scaled_silu_h64") is not None


@pytest.mark.parametrize("kind", RECORD_KINDS)
def test_every_field_of_a_record_has_a_row(kind):
    text = record_reference(kind)
    for cls in record_classes(RECORD_KINDS[kind]):
        assert all(f"| `{name}` | " in text for name in attrs.fields_dict(cls) if name != "unknown_fields")
    assert "| None |" not in text


def test_every_setting_has_a_row():
    text = settings_reference()
    names = {*attrs.fields_dict(BenchmarkConfig), *attrs.fields_dict(ResolvedEvalConfig)}
    names -= {"data_set_layers", "overrides"}
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == names


def test_every_op_type_with_declared_work_has_a_section():
    declared = yaml.safe_load(resources.files("fib_bench.timing").joinpath("work.yaml").read_text("utf-8"))
    assert {definition.op_type for definition in definitions()} == set(declared) - {"layernorm"}  # no public definition
    text = op_type_reference()
    assert text.count("**Check.** By the evaluator") == text.count("\n\n**Speed of light.**") == len(definitions())
    assert "|  |" not in text  # all made values are described


def test_the_interfaces_are_those_of_the_public_data_set(public_definitions):
    for definition in definitions():
        public = load_json_file(Definition, public_definitions[definition.name])
        for mine, other in ((definition.inputs, public.inputs), (definition.outputs, public.outputs)):
            assert {name: (spec.shape, spec.dtype) for name, spec in mine.items()} == {
                name: (spec.shape, spec.dtype) for name, spec in other.items()
            }
        assert definition.const_axes == public.const_axes
        config = BenchmarkConfig().resolve_eval_config(public)
        assert evaluator_for(definition, config).name == evaluator_for(public, config).name


def test_every_generated_part_is_used_and_no_unknown_one():
    named = [
        name
        for path in DOCS.rglob("*.md")
        for name in re.findall(r"^<!-- generated: (\S+) -->$", path.read_text(), re.M)
    ]
    assert sorted(named) == sorted(GENERATORS)
    assert replaced("a\n<!-- generated: roles -->\nb").startswith("a\n| role | values |")
    with pytest.raises(KeyError):
        replaced("<!-- generated: nothing -->")


def test_examples_hold_no_name_of_a_machine():
    (file,) = EXAMPLES.glob("traces/*/*/*.jsonl")
    assert json.loads(file.read_text())["evaluation"]["extra"]["where"]["host"] == "workstation"
