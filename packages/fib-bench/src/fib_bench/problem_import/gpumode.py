"""GPU MODE's format: a folder with ``task.yml``, and ``reference.py`` with `generate_input` and `ref_kernel`.

The tests and benchmarks of the task become workloads, whose values `generate_input` makes in each run. A part of the
data that the reference only fills and returns is an output of the definition, which solutions get as an argument.

Source: the format of the problems of GPU MODE's kernel competitions.
"""

from __future__ import annotations

import ast
import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
import yaml
from fib_schema import AxisConst, Definition
from fib_schema.files import read_regular

from ..authoring.sources import read_sources
from .problem import (
    GENERATOR,
    Argument,
    Call,
    ForeignProblem,
    Problem,
    ProblemError,
    attribute,
    explained,
    identifier,
    imported_by,
    kinds_of,
    load_modules,
    on_any_device,
    record_name,
    tensors_of,
)

CASES = ("tests", "benchmarks")
"""The lists of a task that hold arguments of `generate_input`."""
_SUBMISSION = "@SUBMISSION@"
_TOLERANCES = ("rtol", "atol")
_MAX_TASK_BYTES = 1 << 20
_MAX_DESCRIPTION = 2000
_CHECK = "the task has a check_implementation of its own, which is not used: outputs are compared with the reference's"
_USED_NAMES = ("sys", "torch", "types", "custom_kernel", "_PROBLEM", "made_object")
"""Names that the adapters use; a part gets another one."""
_RUN = """import sys
import types

import torch


{load}

_PROBLEM = load_modules(
    {{
{sources}    }}
)

{helper}
def {generator}(arguments, device):
    seed = {{"seed": arguments["seed"]}} if "seed" in arguments["case"] else {{}}
    data = _PROBLEM.generate_input(**arguments["case"] | seed)
    return {{{places}}}


def run({parameters}):
{lines}    return _PROBLEM.ref_kernel({data})
"""
_FILL = """{head}from submission import custom_kernel

{helper}
def run({parameters}):
    _result = custom_kernel({data})
    _results = _result if isinstance(_result, (tuple, list)) else (_result,)
    for _output, _found in zip({outputs}, _results, strict=True):
        if _found is not _output:
            _output.copy_(_found)
"""
_RETURN = """{head}from submission import custom_kernel

{helper}
def run({parameters}):
    return custom_kernel({data})
"""


@attrs.frozen
class _Parts:
    """The data of a call: its parts in order, and how the reference treats them."""

    places: Mapping[str, str]
    """Source of each part, of the variable ``data``."""
    expression: str
    """Source of the data, of variables with the names of the parts."""
    outputs: tuple[str, ...]
    """Parts that the reference fills and returns; empty if it returns other tensors."""
    written: tuple[str, ...]
    """Parts that the reference writes to, and that are not `outputs`."""

    @property
    def _helper(self) -> str:
        """Source of the function that the expression calls for objects."""
        return f"\n{inspect.getsource(made_object)}\n" if made_object.__name__ in self.expression else ""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Parts whose values matter."""
        return tuple(name for name in self.places if name not in self.outputs)

    def reference(self, problem: Problem, sources: Mapping[str, str]) -> str:
        """Source of the reference, with all modules that it needs."""
        lines = [f"    {name} = {name}.clone()  # the reference writes to it\n" for name in self.written]
        lines += [f"    {name} = {_allocation(problem, name)}\n" for name in self.outputs]
        return _RUN.format(
            load=inspect.getsource(load_modules),
            sources="".join(f"        {name!r}: {text!r},\n" for name, text in sources.items()),
            parameters=", ".join(self.inputs),
            lines="".join(lines),
            data=self.expression,
            places=", ".join(f"{name!r}: {place}" for name, place in self.places.items()),
            generator=GENERATOR,
            helper=self._helper,
        )

    def adapter(self) -> str:
        """Source of the entry file of a solution."""
        parameters, outputs = ", ".join([*self.inputs, *self.outputs]), _tuple_of(self.outputs)
        head = "import reference as _PROBLEM\n" if self._helper else ""
        return (_FILL if self.outputs else _RETURN).format(
            head=head, helper=self._helper, parameters=parameters, data=self.expression, outputs=outputs
        )


def read_gpumode(
    folder: Path, *, name: str | None = None, op_type: str = "gpumode", cases: Sequence[str] = CASES
) -> ForeignProblem:
    """Run a problem folder, with the files that its ``reference.py`` imports, and describe it.

    On a machine without a GPU its data is made on the CPU. A solution is a file with a function `custom_kernel`.
    Of the lists of the task those in `cases` become workloads. What cannot be read or described is a `ProblemError`.
    """
    where, task = str(folder), _read_task(folder)
    chosen = _cases(where, task, cases)
    files = _files(folder, task)
    (reference,) = read_sources(folder / "reference.py")
    found = {**imported_by(reference.content, files, where), "reference": reference.content}
    sources = {key: on_any_device(text) for key, text in found.items()}
    with explained(where, "reference.py"):
        module = load_modules(sources)
    with torch.no_grad():
        kernel, generate = (attribute(module, wanted, where) for wanted in ("ref_kernel", "generate_input"))
        runner = _Runner(where, module, generate, kernel, _part_names(reference.content))
        shown = [runner.show(label, case) for label, case in chosen]
    parts = shown[0][0]
    functions = [node.name for node in ast.parse(reference.content).body if isinstance(node, ast.FunctionDef)]
    alike = [call for other, call in shown if (other, kinds_of(call)) == (parts, kinds_of(shown[0][1]))]
    left_out = [label for label, _ in chosen if label not in {call.name for call in alike}]
    notes = [_CHECK] if "check_implementation" in functions else []
    notes += [f"left out, because their data has other parts or dtypes: {', '.join(left_out)}"] if left_out else []
    problem = Problem(
        path=where,
        name=name or record_name("gpumode", folder.resolve().name),
        op_type=op_type,
        description=str(task.get("description", ""))[:_MAX_DESCRIPTION] or f"Problem {folder.name} of GPU MODE.",
        reference=f"def run({', '.join(parts.inputs)}):\n    raise NotImplementedError\n",
        calls=tuple(alike),
        tolerances=_tolerances_of(reference.content),
        notes=tuple(notes),
    )
    problem = attrs.evolve(problem, reference=parts.reference(problem, sources))
    return ForeignProblem(problem, parts.adapter(), "submission.py", files, is_destination_passing=bool(parts.outputs))


def _tuple_of(names: Sequence[str]) -> str:
    return f"({', '.join(names)},)"


def _read_task(folder: Path) -> dict[str, Any]:
    file = folder / "task.yml"
    try:
        task = yaml.safe_load(read_regular(file, _MAX_TASK_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        raise ProblemError(str(folder), "has no task.yml; name the folder of one problem") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ProblemError(str(file), f"is not YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(task, dict):
        raise ProblemError(str(file), "must be a mapping with 'tests' and 'benchmarks'")
    return task


def _cases(where: str, task: Mapping[str, Any], kinds: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for kind in kinds:
        cases = task.get(kind) or []
        if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
            raise ProblemError(where, f"{kind!r} of task.yml must be a list of mappings")
        found += [(f"{kind.removesuffix('s')}-{index}", case) for index, case in enumerate(cases)]
    if not found:
        raise ProblemError(where, f"task.yml has no {' and no '.join(kinds)}; there is nothing to import")
    return found


def _files(folder: Path, task: Mapping[str, Any]) -> dict[str, str]:
    """The sources of Python files that a task lists, and of those beside it, by the name that others import."""
    paths = {path.name: path for path in sorted(folder.glob("*.py"))}
    listed = task.get("files")
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict) and entry.get("source") != _SUBMISSION:
            paths[str(entry.get("name"))] = folder / str(entry.get("source"))
    named = {name.removesuffix(".py"): path for name, path in paths.items() if path.suffix == ".py"}
    paths = {name: path for name, path in named.items() if name != "submission" and path.is_file()}
    return {name: read_sources(path)[0].content for name, path in paths.items()}


@attrs.frozen
class _Runner:
    """Calls the reference on a case, and observes what it does with the data."""

    where: str
    module: types.ModuleType
    generate: Callable[..., Any]
    kernel: Callable[[Any], Any]
    names: Sequence[str]

    def show(self, label: str, case: Mapping[str, Any]) -> tuple[_Parts, Call]:
        """The parts of the data, and the call."""
        with explained(self.where, f"generate_input of {label}"):
            data = self.generate(**case)
        values, places, expression = self._parts(data)
        kept = {name: _clone(value) for name, value in values.items()}
        with explained(self.where, f"ref_kernel on {label}"):
            outputs = tensors_of(self.kernel(data), self.where)
        written = [name for name, value in values.items() if not _is_same(value, kept[name])]
        returned = [_part_of(output, values) for output in outputs.values()]
        filled = [name for name in returned if name is not None]
        if len(filled) < len(returned):
            filled = self._buffers(kept, outputs, expression) if not filled and not written else []
        elif not self._only_fills(kept, filled, outputs, expression):
            filled = []
        names = filled or [identifier(name, values) for name in outputs]
        outputs = dict(zip(names, outputs.values(), strict=True))
        parts = _Parts(places, expression, tuple(filled), tuple(name for name in written if name not in filled))
        sizes = {key: value for key, value in case.items() if type(value) is int and key != "seed"}
        return parts, Call(label, sizes, {name: kept[name] for name in parts.inputs}, outputs, {"case": dict(case)})

    def _parts(self, data: object) -> tuple[dict[str, Argument], dict[str, str], str]:
        """The tensors and numbers of the data by name, the place of each, and source of the data made of them."""
        found: dict[str, Argument] = {}
        places: dict[str, str] = {}

        def source_of(value: object, told: str, place: str) -> str:
            match value:
                case tuple() | list():
                    names = self.names if place == "data" and len(self.names) == len(value) else ["_"] * len(value)
                    prefix = "input" if place == "data" else told
                    items = [
                        source_of(item, name if name.strip("_") else f"{prefix}_{index}", f"{place}[{index}]")
                        for index, (name, item) in enumerate(zip(names, value, strict=True))
                    ]
                    return f"[{', '.join(items)}]" if isinstance(value, list) else _tuple_of(items)
                case dict():
                    items = [f"{k!r}: {source_of(item, f'{told}_{k}', f'{place}[{k!r}]')}" for k, item in value.items()]
                    return f"{{{', '.join(items)}}}"
                case torch.Tensor() | int() | float():
                    name = identifier(told, (*found, *_USED_NAMES))
                    found[name], places[name] = value, place
                    return name
                case None | str():
                    return repr(value)
                case set() if not value:
                    return "{*()}"
            kind = type(value).__name__
            if getattr(self.module, kind, None) is type(value):
                return f"{made_object.__name__}(_PROBLEM, {kind!r}, {source_of(vars(value), told, f'vars({place})')})"
            problem = (
                f"part {told!r} of the data is a {kind}; known are tensors, numbers, lists, dicts and objects of them"
            )
            raise ProblemError(self.where, problem)

        told = self.names[0] if len(self.names) == 1 and self.names[0].strip("_") else "input_0"
        return found, places, source_of(data, told, "data")

    def _only_fills(
        self, kept: Mapping[str, Argument], filled: Sequence[str], outputs: Mapping[str, torch.Tensor], expression: str
    ) -> bool:
        """Whether the reference gives the same outputs whatever these parts held before."""
        values = {name: _clone(value) for name, value in kept.items()}
        for name in filled:
            before = torch.as_tensor(kept[name])
            values[name] = torch.where(before == 1, 2, 1).to(before.dtype)  # other values than it had
        with explained(self.where, "ref_kernel"):
            names = {"__builtins__": {}, made_object.__name__: made_object, "_PROBLEM": self.module}
            data = eval(expression, names, values)  # noqa: S307 of names and literals that were made here
            again = tensors_of(self.kernel(data), self.where)
        pairs = zip(again.values(), outputs.values(), strict=True)
        return all(_is_same(one, two) for one, two in pairs)

    def _buffers(self, kept: Mapping[str, Argument], outputs: Mapping[str, torch.Tensor], expression: str) -> list[str]:
        """Parts that the reference neither reads nor returns, one like each output: buffers that solutions may fill."""
        found: list[str] = []
        for output in outputs.values():
            alike = [
                name
                for name, value in kept.items()
                if isinstance(value, torch.Tensor)
                and name not in found
                and (value.shape, value.dtype) == (output.shape, output.dtype)
                and self._only_fills(kept, [name], outputs, expression)
            ]
            found += alike[:1]
        return found if len(found) == len(outputs) else []


def made_object(problem: object, name: str, attributes: dict[str, object]) -> object:
    """An object of a class of a problem."""
    made = object.__new__(getattr(problem, name))
    vars(made).update(attributes)
    return made


def _clone(value: Argument) -> Argument:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _is_same(value: Argument, before: Argument) -> bool:
    if isinstance(value, torch.Tensor) and isinstance(before, torch.Tensor):
        return value.shape == before.shape and bool(((value == before) | (value.isnan() & before.isnan())).all())
    return bool(value == before)


def _part_of(output: torch.Tensor, values: Mapping[str, Argument]) -> str | None:
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and value.data_ptr() == output.data_ptr() and value.shape == output.shape:
            return name
    return None


def _allocation(problem: Problem, name: str) -> str:
    definition = problem.to_definition()
    spec = definition.outputs[name]
    sizes = "".join(f"{_size(definition, axis)}, " for axis in spec.shape or ())
    tensor = next((key for key, value in definition.inputs.items() if value.shape is not None), None)
    device = f"{tensor}.device" if tensor else "'cuda'"
    return f"torch.empty(({sizes}), dtype=torch.{spec.dtype}, device={device})"


def _size(definition: Definition, axis: str) -> str:
    """Source of the size of an axis, of the shapes of inputs; that of outputs alone is in a constraint."""
    known, places = definition.axes[axis], definition.var_axes_bindings
    if isinstance(known, AxisConst):
        return str(known.value)
    if axis in places:
        return f"{places[axis][0]}.shape[{places[axis][1]}]"
    (computed,) = (text.partition(" == ")[2] for text in definition.constraints if text.startswith(f"{axis} == "))
    return re.sub(r"[A-Za-z_]\w*", lambda found: _size(definition, found[0]), computed)


def _part_names(reference: str) -> tuple[str, ...]:
    """The names that `ref_kernel` gives the parts of its data; that of the data itself if it does not unpack it."""
    for node in ast.walk(ast.parse(reference)):
        if isinstance(node, ast.FunctionDef) and node.name == "ref_kernel" and node.args.args:
            data = node.args.args[0].arg
            for inner in ast.walk(node):
                match inner:
                    case ast.Assign(targets=[ast.Tuple(elts=elements)], value=ast.Name(id=value)) if value == data:
                        return tuple(e.id if isinstance(e, ast.Name) else "_" for e in elements)
            return (data,)
    return ()


def _tolerances_of(reference: str) -> dict[str, float]:
    for node in ast.walk(ast.parse(reference)):
        match node:
            case ast.Call(func=ast.Name(id="make_match_reference"), keywords=keywords):
                return {
                    str(keyword.arg): float(keyword.value.value)
                    for keyword in keywords
                    if keyword.arg in _TOLERANCES
                    and isinstance(keyword.value, ast.Constant)
                    and isinstance(keyword.value.value, int | float)
                }
    return {}
