"""Looks at a whole data set and says everything that is wrong with it, at once."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any, TypeVar

from . import _layout
from ._blob_checks import BlobChecks
from ._line_checks import LineChecks
from ._older import older_notices
from ._raw import read_json
from ._record import Record
from ._report import MAX_PROBLEMS, Findings, Report
from ._scan import Found, scan
from ._structured import Known, KnownSolution, structured
from ._workload_checks import constraint_problems, size_problem
from .definition import Definition
from .environment import get_fib_dataset_path
from .errors import DataSetNotFound, UnknownName
from .solution import Solution
from .syntax import parse_source

__all__ = ["MAX_PROBLEMS", "Report", "validate"]

R = TypeVar("R", bound=Record)


def validate(path: str | os.PathLike[str] | None = None) -> Report:
    """Look at every file of a data set.

    Bad data is reported, never raised. Files are read one at a time and tensors not at all, so that
    large sets need little memory.

    Args:
        path: The data set's root; None means ``FIB_DATASET_PATH`` or the default below the home folder.

    Raises:
        DataSetNotFound: There is no such directory (a FileNotFoundError).
    """
    root = os.fspath(get_fib_dataset_path() if path is None else Path(path))
    if not os.path.isdir(root):
        raise DataSetNotFound(root)
    findings = Findings()
    known = Known()
    for file in scan(root, _layout.DEFINITIONS, ".json", findings):
        _check_definition_file(file, known, findings)
    for file in scan(root, _layout.SOLUTIONS, ".json", findings):
        _check_solution_file(file, known, findings)
    lines = LineChecks(known, findings, BlobChecks(root, findings))
    for file in scan(root, _layout.WORKLOADS, ".jsonl", findings):
        lines.check(file)
    for file in _older_workloads_first(scan(root, _layout.TRACES, ".jsonl", findings)):
        lines.check(file)
    return findings.report(root)


def _older_workloads_first(files: list[Found]) -> list[Found]:
    """Traces refer to workloads, which older sets keep among the traces."""
    return sorted(files, key=lambda file: not file.name.startswith(_layout.OLDER_WORKLOADS))


def _check_definition_file(file: Found, known: Known, findings: Findings) -> None:
    plain, definition = _record(file, Definition, findings)
    name = _name(plain, file)
    if name in known.definition_files:
        _duplicate("definition", name, known.definition_files[name], file, findings)
        return
    known.definition_files[name] = file.name
    known.definitions[name] = definition
    if definition is not None:
        findings.counts["definitions"] += 1
        wanted = _layout.DEFINITIONS, definition.op_type, definition.name
        _check_path(file, ("", "op_type", "name"), wanted, findings)
        _check_definition(definition, file.name, findings)


def _check_solution_file(file: Found, known: Known, findings: Findings) -> None:
    plain, solution = _record(file, Solution, findings)
    name = _name(plain, file)
    if name in known.solution_files:
        _duplicate("solution", name, known.solution_files[name], file, findings)
        return
    known.solution_files[name] = file.name
    known.solutions[name] = None
    if solution is None:
        return
    known.solutions[name] = KnownSolution(solution.name, solution.definition, solution.author)
    findings.counts["solutions"] += 1
    if solution.definition not in known.definitions:
        message = str(UnknownName("definition", solution.definition, tuple(known.definitions)))
        findings.error(file.name, message, "unknown-definition", "$.definition")
    definition = known.definitions.get(solution.definition)
    op_type = definition.op_type if definition else None
    wanted = _layout.SOLUTIONS, solution.author, op_type, solution.definition, solution.name
    _check_path(file, ("", "author", "definition's op_type", "definition", "name"), wanted, findings)


def _record(file: Found, cls: type[R], findings: Findings) -> tuple[Any, R | None]:
    """The plain objects of a file, and the record that they make; None where they make none."""
    plain = read_json(file, cls.__name__.lower(), findings)
    if plain is None:
        return None, None
    made = structured(plain, cls, file.name, findings)
    for notice in older_notices(file.name, dict.fromkeys(made.changes, 1)):
        findings.add(notice)
    return plain, made.record


def _name(plain: Any, file: Found) -> str:
    name = plain.get("name") if isinstance(plain, dict) else None
    return name if isinstance(name, str) else file.stem


def _duplicate(kind: str, name: str, first: str, file: Found, findings: Findings) -> None:
    message = f"{first} holds a {kind} named {name!r} too; rename or remove one"
    findings.error(file.name, message, "duplicate-name", "$.name")


def _check_path(file: Found, words: tuple[str, ...], wanted: tuple[str | None, ...], findings: Findings) -> None:
    """Report where a path says something else than the record; None in `wanted` is not known."""
    right = "/".join("*" if value is None else value for value in wanted) + ".json"
    if len(file.parts) != len(wanted):
        findings.notice(file.name, f"lies at another depth than usual; move it to {right}", "unusual-path")
    levels = len(wanted) if len(file.parts) == len(wanted) else 1
    for part, word, value in zip(file.parts[-levels:], words[-levels:], wanted[-levels:], strict=True):
        if value is not None and part != value:
            message = f"its path says {part!r}, and its {word} is {value!r}; move it to {right} or correct the record"
            findings.error(file.name, message, "path-contradicts")


def _check_definition(definition: Definition, place: str, findings: Findings) -> None:
    for index, problem in constraint_problems(definition):
        findings.error(place, problem, "constraint", f"$.constraints[{index}]")
    for field, specs in (("inputs", definition.inputs), ("outputs", definition.outputs)):
        for name, spec in specs.items():
            if too_large := size_problem(spec, definition.const_axes):
                findings.error(place, too_large, "size", f"$.{field}.{name}")
    parameters = _parameters(definition.reference)
    inputs = list(definition.inputs)
    if parameters is not None and parameters[: len(inputs)] != inputs:
        message = (
            f"run takes ({', '.join(parameters)}), the inputs are ({', '.join(inputs)}); "
            f"arguments are passed in the order of the inputs"
        )
        findings.notice(place, message, "reference-parameters", "$.reference")


def _parameters(reference: str) -> list[str] | None:
    """The positional parameters of a reference's ``run``; None if it takes any number."""
    nodes = parse_source(reference).body
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == "run"]
    arguments = functions[-1].args
    if arguments.vararg:
        return None
    return [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
