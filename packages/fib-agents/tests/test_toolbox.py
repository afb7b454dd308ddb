"""Calls by name with JSON values, and the schemas that describe them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from fib_agents import Toolbox, Workspace, function_to_schema, get_all_tool_schemas
from fib_agents.toolbox import TOOLS
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=2),
    max_leaves=5,
)


def test_schemas_of_all_tools_are_valid():
    schemas = get_all_tool_schemas()
    assert len(schemas) == len(TOOLS)
    for schema in schemas:
        parameters = schema["parameters"]
        Draft202012Validator.check_schema(parameters)
        assert schema["name"] in TOOLS
        assert len(schema["description"]) > 20
        assert "workspace" not in parameters["properties"]
        assert all(one.get("description") for one in parameters["properties"].values())


def test_a_schema_follows_annotations_and_docstring():
    def tile(
        workspace: Workspace,
        name: str,
        size: int = 4,
        parts: Sequence[str] = ("a",),
        sizes: Mapping[str, float] | None = None,
    ) -> None:
        """Cut a kernel into tiles.

        Args:
            workspace: Not shown.
            name: Of the kernel,
                on two lines.
            size: Of a tile.
            parts: Some.
            sizes: By name.

        Raises:
            name: not an argument.
        """

    assert function_to_schema(tile) == {
        "name": "tile",
        "description": "Cut a kernel into tiles.",
        "parameters": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "Of the kernel, on two lines."},
                "size": {"type": "integer", "description": "Of a tile.", "default": 4},
                "parts": {"type": "array", "items": {"type": "string"}, "description": "Some.", "default": ["a"]},
                "sizes": {"type": "object", "additionalProperties": {"type": "number"}, "description": "By name."},
            },
            "required": ["name"],
            "additionalProperties": False,
        },
    }


def test_a_parameter_that_json_cannot_express_is_an_error():
    def bad(value: complex) -> None:
        """Bad."""

    def untyped(value) -> None:  # type: ignore[no-untyped-def]
        """Untyped."""

    with pytest.raises(TypeError, match="parameter 'value': JSON Schema cannot express"):
        function_to_schema(bad)
    with pytest.raises(TypeError, match="'value' has no annotation"):
        function_to_schema(untyped)


KERNEL = {"definition": "softmax_n64", "solution": {"k.py": "def run(x): return x"}}


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("nothing", {}, "nothing"),
        ("describe", {}, "'definition' is a required property"),
        ("describe", {"definition": 3}, "argument 'definition': 3 is not of type 'string'"),
        ("describe", {"definition": "softmax_n64", "workspace": "/"}, "'workspace' was unexpected"),
        ("evaluate", {"definition": "softmax_n64", "solution": {"k.py": 3}}, 'files by name, such as {"kernel.py"'),
        ("evaluate", {"definition": "softmax_n64", "solution": '{"k.py": ""}'}, 'pass {"kernel.py": source}'),
        ("describe", [], "the arguments must be an object, and are list"),
        ("evaluate", {"definition": "softmax_n64", "solution": "nobody"}, "nobody"),
        ("list_definitions", {"max_chars": 1}, "max_chars"),
        ("evaluate", {**KERNEL, "workloads": []}, "empty"),
        ("sanitize", {**KERNEL, "checks": []}, "empty"),
        ("profile", {**KERNEL, "sections": []}, "empty"),
        ("sanitize", {**KERNEL, "checks": ["x"]}, "memcheck"),
    ],
)
def test_wrong_calls_are_answered_with_the_problem(workspace, name, arguments, said):
    answer = Toolbox(workspace).answer(name, arguments)
    assert answer.is_error
    assert answer.text.startswith("error: ")
    assert said in answer.text


def test_null_stands_for_the_default(workspace):
    answer = Toolbox(workspace).answer("list_definitions", {"op_type": None})
    assert not answer.is_error
    assert answer.json["definitions"][0]["name"] == "softmax_n64"


def test_the_length_of_the_text_is_the_callers(workspace):
    answer = Toolbox(workspace).answer("describe", {"definition": "softmax_n64", "max_chars": 300})
    assert len(answer.text) <= 300
    assert "characters left out" in answer.text


@given(
    st.sampled_from(sorted(set(TOOLS) - {"evaluate", "compare", "explain_failure", "disassemble", "submit"})), VALUES
)
def test_no_arguments_of_a_model_raise(name, value):
    assert Toolbox(Workspace("/nonexistent")).answer(name, value).is_error
