"""JSON Schemas against the codec: what the codec reads is valid, and what it refuses is not, with known exceptions."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fib_schema import InvalidRecord, Solution, Trace, format_json, parse_json
from fib_schema._record import Record
from fib_schema.cli import main
from fib_schema.json_schema import _CONDITIONS, _CONSTRAINTS, RECORD_KINDS, json_schema
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

Plain = Any
VALIDATORS = {kind: Draft202012Validator(json_schema(cls)) for kind, cls in RECORD_KINDS.items()}

WORKLOAD: Plain = {
    "axes": {"n": 4},
    "inputs": {
        "x": {"type": "random"},
        "s": {"type": "scalar", "value": 2.0},
        "w": {"type": "safetensors", "path": "./blob/w.safetensors", "tensor_key": "w"},
    },
    "uuid": "w0",
}
RECORDS: dict[str, Plain] = {
    "definition": {
        "name": "scale",
        "op_type": "elementwise",
        "axes": {"n": {"type": "var"}, "k": {"type": "const", "value": 4, "description": "columns"}},
        "inputs": {"x": {"shape": ["n", "k"], "dtype": "float32"}, "s": {"shape": None, "dtype": "float32"}},
        "outputs": {"y": {"shape": ["n", "k"], "dtype": "float32", "optional": False}},
        "reference": "def run(x, s):\n    return x * s\n",
        "tags": ["status:verified"],
        "description": None,
        "constraints": ["n > 0"],
        "extra": {"origin": [1, None]},
    },
    "solution": {
        "name": "fast",
        "definition": "scale",
        "author": "ada",
        "spec": {
            "language": "cuda",
            "target_hardware": ["NVIDIA H200"],
            "entry_point": "src/main.cu::run",
            "dependencies": ["cublas"],
            "destination_passing_style": True,
            "binding": "tvm-ffi",
            "compile_options": {"cflags": [], "cuda_cflags": ["-O3"], "ldflags": []},
        },
        "sources": [{"path": "src/main.cu", "content": "// code"}, {"path": "a.h", "content": ""}],
        "description": "a description",
    },
    "workload": WORKLOAD,
    "trace": {
        "definition": "scale",
        "workload": WORKLOAD,
        "solution": "fast",
        "evaluation": {
            "status": "PASSED",
            "environment": {"hardware": "NVIDIA H200", "libs": {"torch": "2.11"}},
            "timestamp": "2026-01-01T00:00:00",
            "log": "",
            "correctness": {"max_relative_error": 0.5, "max_absolute_error": "NaN", "extra": {}},
            "performance": {"latency_ms": 1, "reference_latency_ms": 2.0, "speedup_factor": "Infinity"},
            "extra": None,
        },
    },
}

PATHS = ["", ".", "..", "a/b", "a//b", "/a", "a/", "./a", "a\\b", "C:a", "a\n", "\x7f", "ü", "x" * 201, "x" * 200]
ENTRY_POINTS = ["main.py::run", "src/main.cu::run", "a::", "::a", "a::b::c", "a:::b"]
WORDS = ["NaN", "Infinity", "-Infinity", "cutlass", "torch", "PASSED", "INCORRECT_NUMERICAL", "TIMEOUT", "float32"]
OTHERS = ["const", "random", "scalar", "n", "run", "n > 0", "1a", "a b"]
STRINGS = st.sampled_from([*PATHS, *ENTRY_POINTS, *WORDS, *OTHERS])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 5)
    | st.sampled_from([-1.5, -0.0, 0.5, 2.0])
    | STRINGS
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(STRINGS, inner, max_size=2),
    max_leaves=4,
)
KEYS = STRINGS | st.sampled_from(
    ["type", "value", "extra", "correctness", "performance", "solution", "evaluation", "$schema"]
)

REFUSED_BY_THE_CODEC_ALONE = (
    "is not among the axes",
    "is an input too",
    "is not among the sources",
    "occurs twice",
    "is a file and the folder of",
    "does not parse",
    "no top-level function",
    "constraint '",
    "is not a Python identifier",
    "is longer than 200 bytes",
    "half of a surrogate pair",
    "expected an integer, got number",  # such as 2.0
)
"""Parts of the messages for `fib_schema.json_schema.NOT_EXPRESSED`, as far as these records can have them."""


def places(plain: Plain) -> Iterator[tuple[Plain, Any]]:
    """All containers of a record with their keys."""
    for key in list(plain) if isinstance(plain, dict) else range(len(plain)):
        yield plain, key
        if isinstance(plain[key], dict | list):
            yield from places(plain[key])


@st.composite
def changed(draw: st.DrawFn, kind: str) -> Plain:
    """A record after a few changes: values replaced, removed and added."""
    record = copy.deepcopy(RECORDS[kind])
    for _ in range(draw(st.integers(0, 3))):
        container, key = draw(st.sampled_from(list(places(record))))
        change = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if change == "replace":
            container[key] = draw(VALUES)
        elif change == "remove":
            del container[key]
        elif isinstance(container, dict):
            container[draw(KEYS)] = draw(VALUES)
        else:
            container.append(draw(VALUES))
        if not list(places(record)):
            break
    return record


def refusal(plain: Plain, cls: type[Record]) -> str:
    """The codec's problems; empty if it reads the record."""
    try:
        parse_json(json.dumps(plain), cls)
    except InvalidRecord as error:
        return "\n".join(problem.message for problem in error.problems)
    return ""


@pytest.mark.parametrize("kind", RECORD_KINDS)
def test_a_schema_is_one(kind: str) -> None:
    Draft202012Validator.check_schema(json_schema(RECORD_KINDS[kind]))
    assert VALIDATORS[kind].is_valid(RECORDS[kind])
    assert refusal(RECORDS[kind], RECORD_KINDS[kind]) == ""


@pytest.mark.parametrize("kind", RECORD_KINDS)
@given(data=st.data())
def test_a_schema_and_the_codec_agree(kind: str, data: st.DataObject) -> None:
    plain = data.draw(changed(kind))
    problems = refusal(plain, RECORD_KINDS[kind])
    errors = [error.message for error in VALIDATORS[kind].iter_errors(plain)]

    if not problems:
        assert errors == [], "the codec reads what the schema refuses"
        written = json.loads(format_json(parse_json(json.dumps(plain), RECORD_KINDS[kind])))
        assert VALIDATORS[kind].is_valid(written)
    elif not errors:
        known = [any(part in line for part in REFUSED_BY_THE_CODEC_ALONE) for line in problems.splitlines()]
        assert any(known), f"the schema accepts what the codec refuses: {problems}"


@pytest.mark.parametrize(
    ("kind", "path", "value", "is_valid"),
    [
        ("solution", "name", "a\n", False),
        ("solution", "name", "...", True),
        ("solution", "name", "a/b", False),
        ("solution", "spec.entry_point", "a.h:::b", True),
        ("solution", "spec.entry_point", "a::b::c", False),
        ("solution", "spec.language", "helion", True),
        ("solution", "spec.language", "cobol", False),
        ("solution", "spec.binding", None, True),
        ("solution", "spec.compile_options", None, True),
        ("solution", "extra", None, False),
        ("solution", "sources", [], False),
        ("definition", "axes", {"ünits": {"type": "var"}}, True),
        ("definition", "axes", {"1n": {"type": "var"}}, False),
        ("definition", "axes", {"n": {"type": "dynamic"}}, False),
        ("definition", "axes", {"n": {"type": "const"}}, False),
        ("workload", "axes", {"n": -1}, False),
        ("workload", "inputs", {"w": {"type": "safetensors", "path": "../w", "tensor_key": ""}}, False),
        ("workload", "inputs", {"w": {"type": "safetensors", "path": "./w/..x", "tensor_key": ""}}, True),
        ("trace", "evaluation", None, False),
        ("trace", "solution", None, False),
        ("trace", "evaluation.status", "TIMEOUT", False),
        ("trace", "evaluation.status", "INCORRECT_NUMERICAL", False),
        ("trace", "evaluation.correctness", None, False),
        ("trace", "evaluation.performance.latency_ms", -1, False),
        ("trace", "evaluation.performance.latency_ms", "-Infinity", False),
        ("trace", "evaluation.performance.latency_ms", "NaN", True),
    ],
)
def test_fields_are_checked_as_by_the_codec(kind: str, path: str, value: object, is_valid: bool) -> None:
    plain = copy.deepcopy(RECORDS[kind])
    *folders, last = path.split(".")
    container = plain
    for folder in folders:
        container = container[folder]
    container[last] = value
    assert VALIDATORS[kind].is_valid(plain) is is_valid
    if is_valid and kind != "definition":  # whose axes are replaced, but not the shapes
        assert refusal(plain, RECORD_KINDS[kind]) == ""
    if not is_valid:
        assert refusal(plain, RECORD_KINDS[kind])


def test_a_workload_line_is_a_trace() -> None:
    line = {"definition": "scale", "workload": WORKLOAD, "solution": None, "evaluation": None}
    assert VALIDATORS["trace"].is_valid(line)
    assert VALIDATORS["trace"].is_valid({"definition": "scale", "workload": WORKLOAD})


def test_the_key_that_editors_read_is_kept() -> None:
    plain = {"$schema": "../solution.schema.json", **RECORDS["solution"]}
    assert VALIDATORS["solution"].is_valid(plain)
    solution = parse_json(json.dumps(plain), Solution)
    assert json.loads(format_json(solution))["$schema"] == plain["$schema"]
    assert solution.hash() == parse_json(json.dumps(RECORDS["solution"]), Solution).hash()


def test_every_constraint_belongs_to_a_field() -> None:
    schemas = {cls: json_schema(cls) for cls, _ in _CONSTRAINTS}
    for (cls, field), constraint in _CONSTRAINTS.items():
        assert constraint.items() <= schemas[cls]["properties"][field].items()
    assert _CONDITIONS.keys() <= {Trace, *(cls for cls in Record.__subclasses__())}


def objects_in(schema: Any) -> Iterator[tuple[str, Any]]:
    """A schema and those below `$defs`, each with its name."""
    yield schema["title"], schema
    yield from schema.get("$defs", {}).items()


@pytest.mark.parametrize("cls", RECORD_KINDS.values())
def test_every_field_is_described(cls: type[Record]) -> None:
    for title, schema in objects_in(json_schema(cls)):
        assert schema["description"]
        plain = [name for name, field in schema["properties"].items() if "description" not in field]
        assert (title, plain) == (title, [name for name in plain if name == "type"])


def test_descriptions_are_the_docstrings_of_fields() -> None:
    spec = json_schema(Solution)["$defs"]["BuildSpec"]
    assert spec["description"] == "Instructions for building and calling a solution."
    assert spec["properties"]["destination_passing_style"]["description"].startswith("Whether outputs are arguments")


@pytest.mark.parametrize("kind", RECORD_KINDS)
def test_a_record_means_the_same_with_its_defaults_written_out(kind: str) -> None:
    cls, schema = RECORD_KINDS[kind], json_schema(RECORD_KINDS[kind])
    defaults = {name: field["default"] for name, field in schema["properties"].items() if "default" in field}
    assert defaults.keys() == set(schema["properties"]) - set(schema["required"])
    short = {name: value for name, value in RECORDS[kind].items() if name not in defaults}
    assert VALIDATORS[kind].is_valid({**short, **defaults})
    assert parse_json(json.dumps({**short, **defaults}), cls) == parse_json(json.dumps(short), cls)


@pytest.mark.parametrize("pattern", ["definitions/**/*.json", "workloads/**/*.jsonl"])
def test_the_public_data_is_valid(public_data: Path, pattern: str) -> None:
    kind = "definition" if pattern.startswith("definitions") else "trace"
    texts = [line for file in public_data.glob(pattern) for line in _records_in(file)]
    assert texts
    assert [error.message for text in texts for error in VALIDATORS[kind].iter_errors(json.loads(text))] == []


def _records_in(file: Path) -> list[str]:
    text = file.read_text("utf-8")
    return text.splitlines() if file.suffix == ".jsonl" else [text]


class TestCommand:
    def test_prints_one(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["json-schema", "solution"]) == 0
        assert json.loads(capsys.readouterr().out) == json_schema(Solution)

    def test_writes_all(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["json-schema", "--out", str(tmp_path / "schemas")]) == 0
        written = {file.name: json.loads(file.read_text()) for file in (tmp_path / "schemas").iterdir()}
        assert written == {f"{kind}.schema.json": json_schema(cls) for kind, cls in RECORD_KINDS.items()}
        assert capsys.readouterr().out.count(".schema.json\n") == 4

    @pytest.mark.parametrize("arguments", [[], ["solution", "--out", "x"], ["sources"]])
    def test_wants_a_kind_or_a_folder(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            main(["json-schema", *arguments])
        assert caught.value.code == 2
        assert "fib-schema json-schema: " in capsys.readouterr().err
