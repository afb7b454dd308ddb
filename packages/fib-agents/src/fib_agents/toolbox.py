"""Toolbox: tools by name for one workspace, with checked arguments. Agent loops and the MCP server call tools here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from functools import cache
from typing import Any

import attrs
from fib_schema import FibError, UnknownName
from fib_schema.display import escape_controls
from fib_schema.files import explain_os_error

from .catalogue import describe, list_definitions, submit
from .errors import InvalidArguments
from .evaluation import compare, evaluate
from .failures import explain_failure
from .inspection import disassemble, profile, sanitize
from .results import DEFAULT_CHARS, MIN_CHARS, Result, shorten
from .schemas import function_to_schema
from .source_check import check_source
from .workspace import Workspace

TOOLS: Mapping[str, Callable[..., Result]] = {
    tool.__name__: tool
    for tool in (
        list_definitions, describe, check_source, evaluate, explain_failure, compare, profile, sanitize, disassemble,
        submit,
    )
}  # fmt: skip
"""The tools, in the order of their use."""
READ_ONLY = frozenset(TOOLS) - {"submit"}
_LENGTH = {
    "type": "integer",
    "minimum": MIN_CHARS,
    "maximum": 100_000,
    "description": f"the length of the answer's text; the middle of a longer one is left out (default {DEFAULT_CHARS})",
}


@attrs.frozen
class Answer:
    """The answer to a call of a tool."""

    text: str
    json: Mapping[str, Any]
    is_error: bool = False


@attrs.frozen
class Toolbox:
    """The tools of one workspace."""

    workspace: Workspace

    def call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        """Call a tool with JSON values.

        Raises:
            UnknownName: There is no such tool.
            InvalidArguments: The arguments do not match its schema.
            FibError: What the tool raises; also OSError and CancelledError.
        """
        if name not in TOOLS:
            raise UnknownName("tool", name, tuple(TOOLS))
        if not isinstance(arguments, Mapping):
            raise InvalidArguments(name, (f"the arguments must be an object, and are {type(arguments).__name__}",))
        given = {key: value for key, value in arguments.items() if value is not None}  # models write null for defaults
        if problems := [_problem(error) for error in _validator(name).iter_errors(given)]:
            raise InvalidArguments(name, tuple(problems))
        given.pop("max_chars", None)
        return TOOLS[name](self.workspace, **given)

    def answer(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        """Call a tool; what it raises becomes an answer that says so, because the model has to read it.

        Raises:
            CancelledError: The workspace was cancelled.
        """
        try:
            result = self.call(name, arguments)
        except CancelledError:
            raise
        except FibError as error:
            return _failed(f"{type(error).__name__}: {error}")
        except OSError as error:
            return _failed(explain_os_error(error))
        return Answer(result.to_text(arguments.get("max_chars") or DEFAULT_CHARS), result.to_json())


def get_all_tool_schemas() -> list[dict[str, Any]]:
    """The schemas of all tools: ``name``, ``description``, ``parameters``."""
    return [tool_schema(name) for name in TOOLS]


def tool_schema(name: str) -> dict[str, Any]:
    """The schema of a tool; its parameters are those of the function, and ``max_chars``."""
    schema = function_to_schema(TOOLS[name])
    schema["parameters"]["properties"]["max_chars"] = dict(_LENGTH)
    return schema


@cache
def _validator(name: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(tool_schema(name)["parameters"])


def _problem(error: Any) -> str:
    where = error.json_path.removeprefix("$.").removeprefix("$")
    choices = " or ".join(one["description"] for one in error.schema.get("anyOf", ()) if "description" in one)
    message = f"must be {choices}" if error.validator == "anyOf" and choices else error.message
    shown = message if len(message) <= 300 else f"{message[:300]}..."
    return f"argument {where!r}: {shown}" if where else str(shown)


def _failed(problem: str) -> Answer:
    text = shorten(escape_controls(f"error: {problem}"), DEFAULT_CHARS)
    return Answer(text, {"error": escape_controls(problem)[:DEFAULT_CHARS]}, is_error=True)
