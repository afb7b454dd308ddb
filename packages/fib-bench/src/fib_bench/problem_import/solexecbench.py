"""SOL-ExecBench's format: a folder with ``definition.json`` and ``workload.jsonl``, near to our own records.

Axes that are expressions of others become variable axes with a constraint, custom inputs those of the generator.

Source: the documentation of the format in NVIDIA's SOL-ExecBench.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fib_schema import Definition, Workload, parse_constraint, parse_json
from fib_schema.files import read_regular

from ..inputs.generation import FIELD
from .problem import Imported, ProblemError, add_records, explained

_MAX_BYTES = 64 << 20
_TOLERANCES = {"max_rtol": "rtol", "max_atol": "atol", "required_matched_ratio": "required_matched_ratio"}
_VARY = "the workloads state different tolerances, of which a definition has one: the strictest are used"


def add_solexecbench(root: Path, folder: Path, *, name: str | None = None, op_type: str = "sol") -> Imported:
    """Add a problem folder to a data set; nothing is executed. It raises what `add_problem` does."""
    where = str(folder)
    try:
        raw = json.loads(read_regular(folder / "definition.json", _MAX_BYTES))
        lines = [*map(json.loads, read_regular(folder / "workload.jsonl", _MAX_BYTES).splitlines())]
    except (OSError, ValueError) as error:
        raise ProblemError(where, f"has no readable definition.json and workload.jsonl: {error}") from error
    with explained(where, "definition.json"):
        sizes = {axis: spec["expression"] for axis, spec in raw["axes"].items() if spec["type"] == "expr"}
        definition = _definition({**raw, "name": name or raw["name"]}, sizes, _custom_inputs(lines), op_type)
    with explained(where, "workload.jsonl"):
        workloads = [_workload(definition, line, sizes) for line in lines]
    bounds, is_varied = _tolerances(lines)
    return add_records(root, definition, workloads, bounds, [_VARY] if is_varied else [])


def _custom_inputs(lines: list[dict[str, Any]]) -> list[str]:
    return [*dict.fromkeys(n for line in lines for n, given in line["inputs"].items() if given["type"] == "custom")]


def _definition(raw: dict[str, Any], sizes: Mapping[str, str], custom: list[str], op_type: str) -> Definition:
    function = raw.pop("custom_inputs_entrypoint", None)
    extra = {FIELD: {"function": function, "inputs": custom}} if custom else {}
    constraints = [*(raw.get("constraints") or ()), *(f"{axis} == {text}" for axis, text in sizes.items())]
    axes = {axis: {"type": "var"} if axis in sizes else spec for axis, spec in raw["axes"].items()}
    changed = {"op_type": raw.get("op_type") or op_type, "axes": axes, "constraints": constraints, "extra": extra}
    return parse_json(json.dumps(raw | changed), Definition)


def _workload(definition: Definition, line: Mapping[str, Any], sizes: Mapping[str, str]) -> Workload:
    axes: dict[str, int] = dict(line["axes"])
    for axis, text in sizes.items():  # those that others refer to come first
        parse_constraint(text)  # refuses all but arithmetic
        axes[axis] = int(eval(text, {"__builtins__": {}}, definition.const_axes | axes))  # noqa: S307 it is checked
    inputs = {
        name: {"type": "random"} if given["type"] == "custom" else given for name, given in line["inputs"].items()
    }
    return parse_json(json.dumps({"axes": axes, "inputs": inputs, "uuid": line["uuid"]}), Workload)


def _tolerances(lines: list[dict[str, Any]]) -> tuple[dict[str, float], bool]:
    stated: list[dict[str, float]] = [line.get("tolerance") or {} for line in lines]
    found: dict[str, float] = {}
    for key, name in _TOLERANCES.items():
        if values := [each[key] for each in stated if key in each]:
            found[name] = max(values) if key == "required_matched_ratio" else min(values)
    return found, any(each != stated[0] for each in stated)
