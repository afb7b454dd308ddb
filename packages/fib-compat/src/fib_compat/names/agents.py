"""Tools of `flashinfer_bench.agents`, over fib-agents. They return text, also of errors, which begins with ``ERROR:``.

Solutions run in the sandbox of fib-agents. The lines of reports are marked as untrusted text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path, PurePosixPath
from typing import Any, ParamSpec, TypeVar

import fib_agents
from fib_agents.errors import InvalidArguments
from fib_agents.inspection import CHECKS
from fib_schema import FibError, Solution, Workload, get_fib_dataset_path, load_json_file, parse_json, to_plain
from fib_schema.display import escape_controls
from fib_schema.files import explain_os_error

SUMMARY = "SOLUTION.md"
P = ParamSpec("P")
R = TypeVar("R", Solution, Workload)

FFI_PROMPT_SIMPLE = fib_agents.read_guide("tvm-ffi")
"""Text that teaches a language model to write TVM-FFI bindings."""
FFI_PROMPT = f"{FFI_PROMPT_SIMPLE}\n{fib_agents.read_guide('judging')}"
"""`FFI_PROMPT_SIMPLE` and how solutions are judged."""


def _errors_are_text(tool: Callable[P, str]) -> Callable[P, str]:
    @wraps(tool)
    def answer(*arguments: P.args, **options: P.kwargs) -> str:
        try:
            return tool(*arguments, **options)
        except FibError as error:
            problem = str(error)
        except OSError as error:
            problem = explain_os_error(error)
        return escape_controls(f"ERROR: {problem}")

    return answer


@_errors_are_text
def flashinfer_bench_list_ncu_options(ncu_path: str = "ncu") -> str:
    """List the sets and sections of Nsight Compute.

    Args:
        ncu_path: The name or path of ncu.
    """
    return fib_agents.list_profiler_options(ncu_path)


@_errors_are_text
def flashinfer_bench_run_ncu(
    solution: Solution | str,
    workload: Workload | str,
    *,
    device: str = "cuda:0",
    trace_set_path: str | None = None,
    set: str = "detailed",
    sections: list[str] | None = None,
    kernel_name: str | None = None,
    page: str = "details",
    ncu_path: str = "ncu",
    timeout: int = 60,
    tmpdir: str | None = None,
    max_lines: int | None = None,
) -> str:
    """Profile one call of a solution with Nsight Compute. Needs a GPU.

    Args:
        solution: A record, or the path of a JSON file.
        workload: A record, or the path of a JSON file.
        device: The GPU.
        trace_set_path: The data set with the definition; by default that of FIB_DATASET_PATH.
        set: The set of sections that is collected.
        sections: More sections.
        kernel_name: The only kernel that is profiled, or regex:EXPRESSION.
        page: The form of the report: details, raw or source.
        ncu_path: The name or path of ncu.
        timeout: The limit in seconds.
        tmpdir: No effect: files lie in the folder of the sandbox, which is removed.
        max_lines: The lines that are returned; the last line says how many are left out.
    """
    del tmpdir
    workspace = _workspace(trace_set_path, device, timeout, max_lines)
    options = fib_agents.ProfilerOptions(section_set=set, sections=sections, kernel=kernel_name, page=page)
    given = _record(solution, Solution, "solution"), _record(workload, Workload, "workload")
    return _first_lines(fib_agents.profile_report(workspace, *given, options, program=ncu_path), max_lines)


@_errors_are_text
def flashinfer_bench_run_sanitizer(
    solution: Solution | str,
    workload: Workload | str,
    *,
    device: str = "cuda:0",
    trace_set_path: str | None = None,
    sanitizer_types: list[str] | None = None,
    sanitizer_path: str = "compute-sanitizer",
    timeout: int = 300,
    tmpdir: str | None = None,
    max_lines: int | None = None,
) -> str:
    """Look for memory defects of a solution with compute-sanitizer. Needs a GPU.

    Args:
        solution: A record, or the path of a JSON file.
        workload: A record, or the path of a JSON file.
        device: The GPU.
        trace_set_path: The data set with the definition; by default that of FIB_DATASET_PATH.
        sanitizer_types: Some of memcheck, racecheck, initcheck, synccheck; by default all, one after the other.
        sanitizer_path: The name or path of compute-sanitizer.
        timeout: The limit of each check in seconds.
        tmpdir: No effect: files lie in the folder of the sandbox, which is removed.
        max_lines: The lines that are returned; the last line says how many are left out.
    """
    del tmpdir
    workspace = _workspace(trace_set_path, device, timeout, max_lines)
    checks = CHECKS if sanitizer_types is None else sanitizer_types
    given = _record(solution, Solution, "solution"), _record(workload, Workload, "workload")
    return _first_lines(fib_agents.sanitizer_report(workspace, *given, checks, program=sanitizer_path), max_lines)


def get_all_tool_schemas() -> list[dict[str, Any]]:
    """The schemas of the tools, in the form of `fib_agents.function_to_schema`."""
    tools = (flashinfer_bench_list_ncu_options, flashinfer_bench_run_ncu, flashinfer_bench_run_sanitizer)
    return [fib_agents.function_to_schema(tool) for tool in tools]


def extract_solution_to_files(solution: Solution, base_path: str | os.PathLike[str]) -> str:
    """Write the sources of a solution, and its metadata in ``SOLUTION.md``; returns the folder, which is new.

    Raises:
        FileExistsError: There is such a folder.
        InvalidArguments: A source has the name of the file with the metadata.
    """
    if any(PurePosixPath(source.path) == PurePosixPath(SUMMARY) for source in solution.sources):
        raise InvalidArguments("extract", (f"{solution.name} has a source named {SUMMARY}, where metadata is written",))
    folder = fib_agents.extract_solution_to_files(solution, base_path)
    plain = to_plain(solution) | {"sources": [source.path for source in solution.sources]}
    text = json.dumps(plain, indent=2)  # ASCII; no line of it can end the block
    Path(folder, SUMMARY).write_text(f"# Solution\n\n```json\n{text}\n```\n", "utf-8")
    return folder


def _workspace(trace_set_path: str | None, device: str, timeout: float, max_lines: int | None) -> fib_agents.Workspace:
    """The workspace of a call whose limits are valid."""
    if max_lines is not None and max_lines < 1:
        raise InvalidArguments("max_lines", (f"must be at least 1, got {max_lines}",))
    if not timeout > 0:
        raise InvalidArguments("timeout", (f"must be more than 0 seconds, got {timeout}",))
    root = get_fib_dataset_path() if trace_set_path is None else trace_set_path
    return fib_agents.Workspace(Path(root), device, timeout_seconds=float(timeout))


def _record(value: object, cls: type[R], name: str) -> R:
    """A record that is given as such, as its JSON value, or as the path of a file."""
    if isinstance(value, cls):
        return value
    if isinstance(value, Mapping):
        try:
            text = json.dumps(dict(value))
        except (TypeError, ValueError) as error:
            raise InvalidArguments(name, (f"is not a JSON value: {error}",)) from error
        return parse_json(text, cls, source=name)
    if isinstance(value, str | os.PathLike):
        return load_json_file(cls, value)
    raise InvalidArguments(name, (f"must be a record or the path of a JSON file, got {type(value).__name__}",))


def _first_lines(text: str, max_lines: int | None) -> str:
    lines = text.splitlines()
    if max_lines is None or len(lines) <= max_lines:
        return text
    return "\n".join((*lines[:max_lines], f"[{len(lines) - max_lines} lines left out]"))
