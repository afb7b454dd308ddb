"""Tools for agents that write GPU kernels. Each is a function of a `Workspace` and JSON values, and returns a `Result`.

`Toolbox` binds a workspace and calls tools by name; `get_all_tool_schemas` describes them to a language model;
`mcp_server` serves them. Nothing here depends on the vendor of a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fib_schema.package_init import lazy_exports, require_linux

__all__ = [
    "Answer",
    "ProfilerOptions",
    "Result",
    "Toolbox",
    "Workspace",
    "__version__",
    "check_source",
    "compare",
    "describe",
    "disassemble",
    "evaluate",
    "explain_failure",
    "extract_solution_to_files",
    "function_to_schema",
    "get_all_tool_schemas",
    "list_definitions",
    "list_profiler_options",
    "pack_solution_from_files",
    "profile",
    "profile_report",
    "read_guide",
    "sanitize",
    "sanitizer_report",
    "submit",
]

require_linux("fib-agents")

if TYPE_CHECKING:
    from .catalogue import describe, list_definitions, submit
    from .evaluation import compare, evaluate
    from .failures import explain_failure
    from .files import extract_solution_to_files, pack_solution_from_files
    from .guides import read_guide
    from .inspection import (
        ProfilerOptions,
        disassemble,
        list_profiler_options,
        profile,
        profile_report,
        sanitize,
        sanitizer_report,
    )
    from .results import Result
    from .schemas import function_to_schema
    from .source_check import check_source
    from .toolbox import Answer, Toolbox, get_all_tool_schemas
    from .workspace import Workspace

    __version__: str
else:
    __getattr__, __dir__ = lazy_exports(__name__, "fib-agents")
