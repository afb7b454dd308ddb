"""Unknown keys are kept; those that look like misspelt fields are reported."""

import json

import pytest
from fib_schema import Definition, InvalidRecord, Problem, Severity, Solution, Trace, Workload, parse_json, validate
from fib_schema.problems import MISSPELT_CODE, find_misspellings

DEFINITION = {
    "name": "double",
    "op_type": "elementwise",
    "axes": {"n": {"type": "var"}},
    "inputs": {"x": {"shape": ["n"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["n"], "dtype": "float32"}},
    "reference": "def run(x):\n    return x * 2\n",
}
SOLUTION = {
    "name": "fast",
    "definition": "double",
    "author": "ada",
    "spec": {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run"},
    "sources": [{"path": "main.py", "content": "def run(x, y): ..."}],
}
WORKLOAD = {
    "definition": "double",
    "workload": {"axes": {"n": 4}, "inputs": {"x": {"type": "random"}}, "uuid": "w"},
    "solution": None,
    "evaluation": None,
}


def write(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def root(tmp_path):
    write(tmp_path / "definitions/elementwise/double.json", DEFINITION)
    write(tmp_path / "solutions/ada/elementwise/double/fast.json", SOLUTION)
    write(tmp_path / "workloads/elementwise/double.jsonl", WORKLOAD)
    return tmp_path


def with_spec(**fields):
    return {**SOLUTION, "spec": {**SOLUTION["spec"], **fields}}


def misspelt(plain, cls):
    return list(find_misspellings(parse_json(json.dumps(plain), cls)))


@pytest.mark.parametrize(
    ("plain", "cls", "found"),
    [
        (with_spec(destination_passing_stlye=False), Solution, ("$.spec", "destination_passing_stlye")),
        (with_spec(destinationPassingStyle=False), Solution, ("$.spec", "destinationPassingStyle")),
        (with_spec(dependancies=[]), Solution, ("$.spec", "dependancies")),
        (with_spec(compile_options={"cuda_flags": []}), Solution, ("$.spec.compile_options", "cuda_flags")),
        ({**SOLUTION, "desciption": ""}, Solution, ("$", "desciption")),
        (
            {**DEFINITION, "inputs": {"x": {**DEFINITION["inputs"]["x"], "optionnal": True}}},
            Definition,
            ("$.inputs.x", "optionnal"),
        ),
        ({**DEFINITION, "constrains": ["n > 0"]}, Definition, ("$", "constrains")),
        ({"definition": "d", "workload": WORKLOAD["workload"], "Solution": "s"}, Trace, ("$", "Solution")),
    ],
)
def test_a_misspelt_field_is_found_at_its_place(plain, cls, found):
    ((path, key, field),) = misspelt(plain, cls)
    assert (path, key) == found
    assert field in {"destination_passing_style", "dependencies", "cuda_cflags", "description", "optional"} | {
        "constraints",
        "solution",
    }


@pytest.mark.parametrize(
    ("plain", "cls"),
    [
        ({**DEFINITION, "description_de": "", "x_constraints": [], "tags_of_models": []}, Definition),
        ({**DEFINITION, "axes": {"n": {"type": "var", "parent": "m"}}}, Definition),
        ({**DEFINITION, "$schema": "definition.schema.json", "version": 3, "source": "", "stages": 1}, Definition),
        (with_spec(building="fast", extra_dependencies=[], stage=2), Solution),
        (with_spec(language_version="3", languages=["python"]), Solution),
        ({**SOLUTION, "name_": "fast2", "description": "", "descriptions": {}}, Solution),
        ({**SOLUTION, "d" * 10_000: 1, **{f"descriptio{n}": 1 for n in range(101)}}, Solution),
        ({**WORKLOAD["workload"], "x_tag": 1, "axis": {}, "input": {}}, Workload),
    ],
)
def test_honest_keys_are_not_reported(plain, cls):
    """A key is honest if the field that it resembles is there as well, or if it contains the field as a word."""
    assert misspelt(plain, cls) == []


def test_a_misspelt_required_field_is_named_where_it_is_missed():
    plain = {"optype" if key == "op_type" else key: value for key, value in DEFINITION.items()}
    with pytest.raises(InvalidRecord, match="misses the required field 'op_type' \\(it has 'optype': rename it\\)"):
        parse_json(json.dumps(plain), Definition)


class TestReporting:
    def test_validation_warns_and_stays_green(self, root):
        file = "solutions/ada/elementwise/double/fast.json"
        write(root / file, with_spec(destination_passing_stlye=False))
        report = validate(root)
        message = (
            "has the unknown key 'destination_passing_stlye', which has no effect; "
            "did you mean 'destination_passing_style'?"
        )
        assert report.warnings == (Problem(file, "$.spec", message, Severity.WARNING, MISSPELT_CODE),)
        assert report.is_ok

    def test_warnings_of_a_file_share_a_line_of_text(self, root):
        lines = [{**WORKLOAD, "workload": {**WORKLOAD["workload"], "uuid": str(n)}, "Evaluation": 1} for n in range(3)]
        for line in lines:
            del line["evaluation"]
        write(root / "workloads/elementwise/double.jsonl", *lines)
        report = validate(root)
        assert len(report.warnings) == 3
        line, _ = report.to_text().splitlines()
        assert "'Evaluation', which has no effect; did you mean 'evaluation'? (and 2 more like it: " in line
