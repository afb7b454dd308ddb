"""Validation of a whole data set, with every problem in one report."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import attrs

from . import data_files
from ._blob_checks import BlobChecks
from ._line_checks import Known, KnownSolution, LineChecks
from ._workload_checks import constraint_problems, size_problem
from .data_files import NO_DATA_SET, DataFile, describe_missing_data, list_files
from .definition import Definition
from .environment import get_fib_dataset_path
from .errors import DataSetNotFound, UnknownName
from .problems import MAX_PROBLEMS, Findings, Report
from .reader import read_json
from .solution import Solution
from .syntax import parse_source
from .traffic import load_traffic

__all__ = ["MAX_PROBLEMS", "Report", "validate"]


def validate(path: str | os.PathLike[str] | None = None) -> Report:
    """Check every file of a data set.

    Bad data is reported, never raised, and so is a folder that has no record. Files are read one at a time, and of
    tensors only the headers, so that large sets need little memory.

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
    for file in list_files(root, data_files.DEFINITIONS, ".json", findings):
        _check_definition_file(file, known, findings)
    for file in list_files(root, data_files.SOLUTIONS, ".json", findings):
        _check_solution_file(file, known, findings)
    lines = LineChecks(known, findings, BlobChecks(root, findings))
    for file in list_files(root, data_files.WORKLOADS, ".jsonl", findings):
        lines.check(file)
    for file in _legacy_workloads_first(list_files(root, data_files.TRACES, ".jsonl", findings)):
        lines.check(file)
    findings.add(*(attrs.evolve(problem, code="traffic") for problem in load_traffic(root).problems))
    if not findings.errors and not findings.counts:
        findings.error(root, describe_missing_data(root), NO_DATA_SET)
    return findings.report(root)


def _legacy_workloads_first(files: list[DataFile]) -> list[DataFile]:
    """Files of legacy workloads, which lie among the traces, come first because traces refer to them."""
    return sorted(files, key=lambda file: not file.name.startswith(data_files.LEGACY_WORKLOADS))


def _check_definition_file(file: DataFile, known: Known, findings: Findings) -> None:
    parsed = read_json(file, Definition, findings, checks_keys=True)
    definition, name = parsed.record, _name(parsed.plain, file)
    if name in known.definition_files:
        _duplicate("definition", name, known.definition_files[name], file, findings)
        return
    known.definition_files[name] = file.name
    known.definitions[name] = definition
    if definition is not None:
        findings.counts["definitions"] += 1
        wanted = data_files.DEFINITIONS, definition.op_type, definition.name
        _check_path(file, ("", "op_type", "name"), wanted, findings)
        _check_definition(definition, file.name, findings)


def _check_solution_file(file: DataFile, known: Known, findings: Findings) -> None:
    parsed = read_json(file, Solution, findings, checks_keys=True)
    solution, name = parsed.record, _name(parsed.plain, file)
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
    wanted = data_files.SOLUTIONS, solution.author, op_type, solution.definition, solution.name
    _check_path(file, ("", "author", "definition's op_type", "definition", "name"), wanted, findings)


def _name(plain: Any, file: DataFile) -> str:
    name = plain.get("name") if isinstance(plain, dict) else None
    return name if isinstance(name, str) else file.stem


def _duplicate(kind: str, name: str, first: str, file: DataFile, findings: Findings) -> None:
    message = f"{first} holds a {kind} named {name!r} too; rename or remove one"
    findings.error(file.name, message, "duplicate-name", "$.name")


def _check_path(file: DataFile, words: tuple[str, ...], wanted: tuple[str | None, ...], findings: Findings) -> None:
    """Report where a path contradicts its record; None in `wanted` is unknown."""
    right = "/".join("*" if value is None else value for value in wanted) + ".json"
    if len(file.parts) != len(wanted):
        findings.warning(file.name, f"lies at another depth than usual; move it to {right}", "unusual-path")
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
    run, inputs = _arguments_of_run(definition.reference), list(definition.inputs)
    parameters = [argument.arg for argument in (*run.posonlyargs, *run.args)]
    text = f"run takes ({', '.join(parameters)}), the inputs are ({', '.join(inputs)})"
    if not _takes(run, len(inputs)):
        findings.error(place, f"{text}: it cannot be called with them", "reference-parameters", "$.reference")
    elif run.vararg is None and parameters[: len(inputs)] != inputs:
        message = f"{text}; arguments are passed in the order of the inputs"
        findings.warning(place, message, "reference-parameters", "$.reference")


def _arguments_of_run(reference: str) -> ast.arguments:
    """The parameters of a reference's ``run``."""
    nodes = parse_source(reference).body
    return [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == "run"][-1].args


def _takes(run: ast.arguments, count: int) -> bool:
    """Whether a function can be called with `count` positional arguments."""
    positional = len(run.posonlyargs) + len(run.args)
    is_named_required = any(default is None for default in run.kw_defaults)
    is_enough = positional - len(run.defaults) <= count
    return is_enough and not is_named_required and (run.vararg is not None or count <= positional)
