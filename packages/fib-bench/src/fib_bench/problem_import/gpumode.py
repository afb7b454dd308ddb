"""GPU MODE's format: a folder with ``task.yml``, and ``reference.py`` with `generate_input` and `ref_kernel`.

The tests and benchmarks of the task become workloads, with the values that `generate_input` makes. A part of the
data that the reference only fills and returns is an output of the definition, which solutions get as an argument.

Source: the format of the problems of GPU MODE's kernel competitions.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
import yaml
from fib_schema import AxisConst
from fib_schema.files import read_regular

from ..authoring.sources import read_sources
from .problem import (
    Argument,
    Call,
    ForeignProblem,
    Problem,
    ProblemError,
    attribute,
    explained,
    identifier,
    imported_by,
    modules,
    on_cpu,
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
_USED_NAMES = ("sys", "torch", "types", "custom_kernel")
"""Names that the adapters use; a part gets another one."""
_RUN = '''import sys
import types

import torch

_SOURCES = {{
{sources}}}


def _load():
    """Execute the modules of the problem, which import each other by name, and return the last one."""
    before = {{name: sys.modules.get(name) for name in _SOURCES}}
    try:
        for name, source in _SOURCES.items():
            module = sys.modules[name] = types.ModuleType(name)
            exec(compile(source, name + ".py", "exec"), module.__dict__)
        return module
    finally:
        for name, other in before.items():
            if other is None:
                del sys.modules[name]
            else:
                sys.modules[name] = other


_PROBLEM = _load()


def run({parameters}):
{lines}    return _PROBLEM.ref_kernel({data})
'''
_FILL = """from submission import custom_kernel


def run({parameters}):
    _result = custom_kernel({data})
    _results = _result if isinstance(_result, (tuple, list)) else (_result,)
    for _output, _found in zip({outputs}, _results, strict=True):
        if _found is not _output:
            _output.copy_(_found)
"""
_RETURN = """from submission import custom_kernel


def run({parameters}):
    return custom_kernel({data})
"""


@attrs.frozen
class _Parts:
    """The data of a call: its parts in order, and how the reference treats them."""

    names: tuple[str, ...]
    is_tuple: bool
    """Whether the data is a tuple; otherwise it is its only part."""
    outputs: tuple[str, ...]
    """Parts that the reference fills and returns; empty if it returns other tensors."""
    written: tuple[str, ...]
    """Parts that the reference writes to, and that are not `outputs`."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Parts whose values matter."""
        return tuple(name for name in self.names if name not in self.outputs)

    @property
    def expression(self) -> str:
        """Source of the data, of variables with the names of the parts."""
        return _tuple_of(self.names) if self.is_tuple else self.names[0]

    def reference(self, problem: Problem, sources: Mapping[str, str]) -> str:
        """Source of the reference, with all modules that it needs."""
        lines = [f"    {name} = {name}.clone()  # the reference writes to it\n" for name in self.written]
        lines += [f"    {name} = {_allocation(problem, name)}\n" for name in self.outputs]
        return _RUN.format(
            sources="".join(f"    {name!r}: {text!r},\n" for name, text in sources.items()),
            parameters=", ".join(self.inputs),
            lines="".join(lines),
            data=self.expression,
        )

    def adapter(self) -> str:
        """Source of the entry file of a solution."""
        parameters, outputs = ", ".join([*self.inputs, *self.outputs]), _tuple_of(self.outputs)
        return (_FILL if self.outputs else _RETURN).format(parameters=parameters, data=self.expression, outputs=outputs)


def read_gpumode(
    folder: Path, *, name: str | None = None, op_type: str = "gpumode", cases: Sequence[str] = CASES
) -> ForeignProblem:
    """Run a problem folder, with the files that its ``reference.py`` imports, and describe it.

    On a machine without a GPU its data is made on the CPU. A solution is a file with a function `custom_kernel`.
    Of the lists of the task those in `cases` become workloads.

    Raises:
        KernelFileError: A file cannot be read.
        ProblemError: It is not of the format, it raises, or a definition cannot describe it.
    """
    where, task = str(folder), _read_task(folder)
    chosen = _cases(where, task, cases)
    files = _files(folder, task)
    (reference,) = read_sources(folder / "reference.py")
    sources = {**imported_by(reference.content, files, where), "reference": reference.content}
    is_here = torch.cuda.is_available()
    executed = sources if is_here else {key: on_cpu(text, where) for key, text in sources.items()}
    with modules(executed, where) as module, torch.no_grad():
        kernel, generate = (attribute(module, wanted, where) for wanted in ("ref_kernel", "generate_input"))
        runner = _Runner(where, generate, kernel, _part_names(reference.content))
        shown = [runner.show(label, case) for label, case in chosen]
    parts, tolerances = shown[0][0], _tolerances_of(reference.content)
    functions = [node.name for node in ast.parse(reference.content).body if isinstance(node, ast.FunctionDef)]
    if any(other != parts for other, _ in shown):
        raise ProblemError(where, "the reference treats its data differently in different cases")
    problem = Problem(
        path=where,
        name=name or record_name("gpumode", folder.resolve().name),
        op_type=op_type,
        description=str(task.get("description", ""))[:_MAX_DESCRIPTION] or f"Problem {folder.name} of GPU MODE.",
        reference=f"def run({', '.join(parts.inputs)}):\n    raise NotImplementedError\n",
        calls=tuple(call for _, call in shown),
        rtol=tolerances.get("rtol"),
        atol=tolerances.get("atol"),
        notes=(_CHECK,) if "check_implementation" in functions else (),
    )
    problem = attrs.evolve(problem, reference=parts.reference(problem, sources))
    return ForeignProblem(problem, parts.adapter(), "submission.py", files, is_destination_passing=bool(parts.outputs))


def _tuple_of(names: Sequence[str]) -> str:
    """Source of a tuple of variables."""
    return f"({', '.join(names)},)"


# -- the task ------------------------------------------------------------------------------------


def _read_task(folder: Path) -> dict[str, Any]:
    file = folder / "task.yml"
    try:
        task = yaml.safe_load(read_regular(file, _MAX_TASK_BYTES))
    except FileNotFoundError:
        raise ProblemError(str(folder), "has no task.yml; name the folder of one problem") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ProblemError(str(file), f"is not YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(task, dict):
        raise ProblemError(str(file), "must be a mapping with 'tests' and 'benchmarks'")
    return task


def _cases(where: str, task: Mapping[str, Any], kinds: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Arguments of `generate_input`, each with a name."""
    found = []
    for kind in kinds:
        cases = task.get(kind) or []
        if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
            raise ProblemError(where, f"{kind!r} of task.yml must be a list of mappings")
        found += [(f"{kind.removesuffix('s')}-{index}", case) for index, case in enumerate(cases)]
    if not found:
        raise ProblemError(where, f"task.yml has no {' and no '.join(kinds)}; there is nothing to import")
    return found


def _files(folder: Path, task: Mapping[str, Any]) -> dict[str, Path]:
    """The Python files that a task lists, and those beside it, by the name that others import them by."""
    paths = {path.name: path for path in sorted(folder.glob("*.py"))}
    listed = task.get("files")
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict) and entry.get("source") != _SUBMISSION:
            paths[str(entry.get("name"))] = folder / str(entry.get("source"))
    named = {name.removesuffix(".py"): path for name, path in paths.items() if name.endswith(".py")}
    return {name: path for name, path in named.items() if name != "submission" and path.suffix == ".py"}


# -- one case ------------------------------------------------------------------------------------


@attrs.frozen
class _Runner:
    """Calls the reference on a case, and observes what it does with the data."""

    where: str
    generate: Callable[..., Any]
    kernel: Callable[[Any], Any]
    names: Sequence[str]

    def show(self, label: str, case: Mapping[str, Any]) -> tuple[_Parts, Call]:
        """The parts of the data, and the call."""
        with explained(self.where, f"generate_input of {label}"):
            data = self.generate(**case)
        values = self._named(data)
        kept = {name: _clone(value) for name, value in values.items()}
        is_tuple = isinstance(data, tuple | list)
        with explained(self.where, f"ref_kernel on {label}"):
            outputs = tensors_of(self.kernel(data), self.where)
        written = [name for name, value in values.items() if not _is_same(value, kept[name])]
        returned = [_part_of(output, values) for output in outputs.values()]
        filled = [name for name in returned if name is not None]
        if len(filled) < len(returned):
            filled = self._buffers(kept, outputs, is_tuple) if not filled and not written else []
        elif not self._only_fills(kept, filled, outputs, is_tuple):
            filled = []
        names = filled or [identifier(name, values) for name in outputs]
        outputs = dict(zip(names, outputs.values(), strict=True))
        parts = _Parts(tuple(values), is_tuple, tuple(filled), tuple(name for name in written if name not in filled))
        sizes = {key: value for key, value in case.items() if type(value) is int and key != "seed"}
        return parts, Call(label, sizes, {name: kept[name] for name in parts.inputs}, outputs)

    def _named(self, data: object) -> dict[str, Argument]:
        values: list[Any] = list(data) if isinstance(data, tuple | list) else [data]
        found: dict[str, Argument] = {}
        for index, value in enumerate(values):
            told = self.names[index] if len(self.names) == len(values) else "_"
            name = identifier(told if told.strip("_") else f"input_{index}", (*found, *_USED_NAMES))
            if not isinstance(value, torch.Tensor | int | float):
                kind = type(value).__name__
                problem = f"part {name!r} of the data is a {kind}; only tensors and numbers can be inputs"
                raise ProblemError(self.where, problem)
            found[name] = value
        return found

    def _only_fills(
        self, kept: Mapping[str, Argument], filled: Sequence[str], outputs: Mapping[str, torch.Tensor], is_tuple: bool
    ) -> bool:
        """Whether the reference gives the same outputs whatever these parts held before."""
        values = {name: _clone(value) for name, value in kept.items()}
        for name in filled:
            before = torch.as_tensor(kept[name])
            values[name] = torch.where(before == 1, 2, 1).to(before.dtype)  # other values than it had
        with explained(self.where, "ref_kernel"):
            again = tensors_of(self.kernel(tuple(values.values()) if is_tuple else values[filled[0]]), self.where)
        pairs = zip(again.values(), outputs.values(), strict=True)
        return all(_is_same(one, two) for one, two in pairs)

    def _buffers(self, kept: Mapping[str, Argument], outputs: Mapping[str, torch.Tensor], is_tuple: bool) -> list[str]:
        """Parts that the reference neither reads nor returns, one like each output: buffers that solutions may fill."""
        found: list[str] = []
        for output in outputs.values():
            alike = [
                name
                for name, value in kept.items()
                if isinstance(value, torch.Tensor)
                and name not in found
                and (value.shape, value.dtype) == (output.shape, output.dtype)
                and self._only_fills(kept, [name], outputs, is_tuple)
            ]
            found += alike[:1]
        return found if len(found) == len(outputs) else []


def _clone(value: Argument) -> Argument:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _is_same(value: Argument, before: Argument) -> bool:
    if isinstance(value, torch.Tensor) and isinstance(before, torch.Tensor):
        return value.shape == before.shape and bool(((value == before) | (value.isnan() & before.isnan())).all())
    return bool(value == before)


def _part_of(output: torch.Tensor, values: Mapping[str, Argument]) -> str | None:
    """The part of the data that an output is."""
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and value.data_ptr() == output.data_ptr() and value.shape == output.shape:
            return name
    return None


# -- sources -------------------------------------------------------------------------------------


def _allocation(problem: Problem, name: str) -> str:
    """Source of an empty tensor for an output."""
    definition = problem.to_definition()
    spec, places = definition.outputs[name], definition.var_axes_bindings
    sizes = ""
    for axis in spec.shape or ():
        known = definition.axes[axis]
        place = f"{places[axis][0]}.shape[{places[axis][1]}]" if axis in places else ""
        sizes += f"{known.value if isinstance(known, AxisConst) else place}, "
    tensor = next((key for key, value in definition.inputs.items() if value.shape is not None), None)
    device = f"{tensor}.device" if tensor else "'cuda'"
    return f"torch.empty(({sizes}), dtype=torch.{spec.dtype}, device={device})"


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
    """The tolerances that the reference states when it makes its check."""
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
