"""Problems of other benchmarks: how their files run, and how they become records of a data set.

Axes are inferred from shapes. The files of a problem run in this process: they are as trusted as a reference.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
import yaml
from fib_schema import (
    AxisConst,
    AxisSpec,
    AxisVar,
    Definition,
    DType,
    FibError,
    RandomInput,
    SafetensorsInput,
    ScalarInput,
    SourceFile,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
)
from fib_schema.constraints import evaluate_constraint
from fib_schema.data_files import blob_file
from fib_schema.files import atomic_write
from fib_schema.workload import InputSpec

from ..authoring.sources import read_sources
from ..checking.elements import dtype_name
from ..config.benchmark import DATA_SET_FILE
from ..inputs.synthesis import Role, role_of, uniform_description

_CUDA = re.compile(r"cuda(:\d+)?")
_MIN_NORMAL = 1024
"""Elements from which on values tell a standard normal distribution from others; fewer are recorded."""
_MAX_NAME = 80
"""Letters of a name that is made here: that of a file of recorded values has it twice."""
Argument = torch.Tensor | int | float | bool
Slot = tuple[str, int]
"""A dimension of a tensor: its name and the dimension's index."""


@attrs.frozen
class ProblemError(FibError, ValueError):
    """A problem of another benchmark that cannot be imported."""

    path: str
    problem: str
    """The problem and its remedy."""

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


@attrs.frozen
class Call:
    """One call of the reference.

    Args:
        name: What distinguishes it from other calls of the problem.
        sizes: Numbers that the problem names; an axis with the size of one gets its name.
        inputs: Values by name, in order.
        outputs: The results; only their shapes and dtypes count.
    """

    name: str
    sizes: Mapping[str, int]
    inputs: Mapping[str, Argument]
    outputs: Mapping[str, torch.Tensor]


@attrs.frozen(kw_only=True)
class Problem:
    """A problem of another benchmark."""

    path: str
    name: str
    op_type: str
    description: str
    reference: str
    """Source with a function ``run``, which takes the inputs of `calls` in order."""
    calls: tuple[Call, ...]
    recorded: frozenset[str] = frozenset()
    """Inputs whose values are always recorded, such as the parameters of a model."""
    rtol: float | None = None
    atol: float | None = None
    notes: tuple[str, ...] = ()
    """The parts of the problem that are left out."""

    def to_definition(self) -> Definition:
        """The definition; `ProblemError` if calls differ in more than sizes, or it has no dtype or axis for one."""
        axes, names, constraints = _axes(self)
        first = self.calls[0]
        return Definition(
            self.name,
            self.op_type,
            axes,
            {name: self._spec(name, value, names) for name, value in first.inputs.items()},
            {name: self._spec(name, value, names) for name, value in first.outputs.items()},
            self.reference,
            description=self.description,
            constraints=constraints,
        )

    def _spec(self, name: str, value: Argument, axes: Mapping[Slot, str]) -> TensorSpec:
        if not isinstance(value, torch.Tensor):
            kind = "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float32"
            return TensorSpec(None, kind)
        dtype = dtype_name(value)
        if dtype not in tuple(DType):
            raise ProblemError(self.path, f"{name!r} has dtype {dtype}; a definition knows {', '.join(DType)}")
        shape = tuple(axes[name, index] for index in range(value.dim()))
        return TensorSpec(shape, dtype, description=self._description(name))

    def _description(self, name: str) -> str | None:
        """The bounds of values that are uniform in all calls, from which a benchmark draws them anew."""
        values = [call.inputs.get(name) for call in self.calls]
        bounds = {_uniform_bounds(value) if isinstance(value, torch.Tensor) else None for value in values}
        found = bounds.pop() if len(bounds) == 1 and name not in self.recorded else None
        return None if found is None else uniform_description(*found)


def identifier(text: str, taken: Iterable[str] = ()) -> str:
    """A name of an input or axis from any text, other than those that are taken."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "value"
    name = f"n{name}" if name[0].isdigit() else name
    while name in taken:
        name += "_"
    return name


def record_name(*parts: str) -> str:
    """A name of a definition from parts of any text; one that would be too long ends in a hash."""
    name = "_".join(filter(None, (re.sub(r"[^a-z0-9]+", "_", part.lower()).strip("_") for part in parts)))
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 9].rstrip('_')}_{digest}"


# -- axes ----------------------------------------------------------------------------------------


def _axes(problem: Problem) -> tuple[dict[str, AxisSpec], dict[Slot, str], tuple[str, ...]]:
    """The axes, the axis of each dimension, and constraints: equal sizes in all calls are one axis."""
    groups: dict[tuple[int, ...], list[Slot]] = {}
    for slot, sizes in _sizes(problem).items():
        groups.setdefault(sizes, []).append(slot)
    axes: dict[str, AxisSpec] = {}
    names: dict[Slot, str] = {}
    given: dict[str, tuple[int, ...]] = {}
    computed: dict[str, tuple[Slot, tuple[int, ...]]] = {}
    for sizes, slots in groups.items():
        name = identifier(_axis_name(problem.calls, sizes, slots[0]), axes)
        axes[name] = AxisConst(sizes[0]) if len(set(sizes)) == 1 else AxisVar()
        names |= dict.fromkeys(slots, name)
        if len(set(sizes)) > 1 and all(tensor in problem.calls[0].outputs for tensor, _ in slots):
            computed[name] = slots[0], sizes
        elif len(set(sizes)) > 1:
            given[name] = sizes
    return axes, names, tuple(_constraint(problem, name, *of, given) for name, of in computed.items())


def _constraint(
    problem: Problem, name: str, slot: Slot, sizes: tuple[int, ...], given: Mapping[str, tuple[int, ...]]
) -> str:
    """An axis of outputs alone as an expression of axes of inputs."""
    rows = [dict(zip((*given, name), row, strict=True)) for row in zip(*given.values(), sizes, strict=True)]
    for expression in _expressions(given, sizes[0]):
        constraint = f"{name} == {expression}"
        if all(evaluate_constraint(constraint, row) for row in rows):
            return constraint
    problem_text = f"dimension {slot[1]} of output {slot[0]!r} varies and is not a dimension of an input"
    raise ProblemError(problem.path, f"{problem_text}, nor a sum, product or quotient of such")


def _expressions(given: Mapping[str, tuple[int, ...]], size: int) -> Iterator[str]:
    """Expressions of one or two axes that may give a size in the first call."""
    for one, (first, *_) in given.items():
        yield f"{one} + {size - first}" if size > first else f"{one} - {first - size}"
        yield f"{one} * {max(size // max(first, 1), 1)}"
        yield f"{one} // {max(first // max(size, 1), 1)}"
        for other, (second, *_) in given.items():
            yield f"{one} * {other}"
            for sign, rest in (("+", size - first - second), ("-", size - first + second)):
                yield f"{one} {sign} {other} {'+' if rest >= 0 else '-'} {abs(rest)}"


def _sizes(problem: Problem) -> dict[Slot, tuple[int, ...]]:
    """The sizes of each dimension, one for each call."""
    shapes = [dict(_shapes(call)) for call in problem.calls]
    for call in problem.calls:
        if _kinds(call) != _kinds(problem.calls[0]):
            text = f"call {call.name!r} has other inputs, ranks or dtypes than {problem.calls[0].name!r}"
            raise ProblemError(problem.path, text)
    slots = [(name, index) for name, shape in shapes[0].items() for index in range(len(shape))]
    return {(name, index): tuple(found[name][index] for found in shapes) for name, index in slots}


def _shapes(call: Call) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, value in {**call.inputs, **call.outputs}.items():
        if isinstance(value, torch.Tensor):
            yield name, tuple(value.shape)


def _kinds(call: Call) -> dict[str, object]:
    values = {**call.inputs, **call.outputs}.items()
    return {
        name: (value.dim(), value.dtype) if isinstance(value, torch.Tensor) else type(value) for name, value in values
    }


def _axis_name(calls: Sequence[Call], sizes: tuple[int, ...], slot: Slot) -> str:
    for name in calls[0].sizes:
        if tuple(call.sizes.get(name) for call in calls) == sizes:
            return name
    return f"n{sizes[0]}" if len(set(sizes)) == 1 else f"{slot[0]}_{slot[1]}"


# -- running the files ---------------------------------------------------------------------------


@contextlib.contextmanager
def modules(sources: Mapping[str, str], path: str) -> Iterator[types.ModuleType]:
    """The last of some modules, which are executed in order and may import the earlier ones while the context lasts."""
    before = {name: sys.modules.get(name) for name in sources}
    module = types.ModuleType("empty")
    try:
        for name, source in sources.items():
            module = types.ModuleType(name)
            sys.modules[name] = module
            with explained(path, f"{name}.py"):
                exec(compile(source, f"{name}.py", "exec"), module.__dict__)  # noqa: S102 - a problem is a program
        yield module
    finally:
        for name, other in before.items():
            if other is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = other


@contextlib.contextmanager
def explained(path: str, what: str) -> Iterator[None]:
    """Turn what code of a problem raises, or its exit, into a `ProblemError`."""
    try:
        yield
    except ProblemError:
        raise
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())[:300]
        raise ProblemError(path, f"{what} raised {type(error).__name__}: {text}") from error


def attribute(module: types.ModuleType, name: str, path: str) -> Any:
    """A function or class of a module."""
    found = getattr(module, name, None)
    if not callable(found):
        raise ProblemError(path, f"defines no {name!r}; the format needs it")
    return found


def tensors_of(result: object, path: str) -> dict[str, torch.Tensor]:
    """The tensors that a reference returned, by name."""
    values: list[Any] = list(result) if isinstance(result, tuple | list) else [result]
    if not values or not all(isinstance(value, torch.Tensor) for value in values):
        kinds = ", ".join(type(value).__name__ for value in values) or "nothing"
        raise ProblemError(path, f"the reference returned {kinds}; a definition has tensors")
    names = ["output"] if len(values) == 1 else [f"output_{index}" for index in range(len(values))]
    return dict(zip(names, values, strict=True))


# -- sources -------------------------------------------------------------------------------------


@attrs.frozen
class ForeignProblem:
    """A problem as its files describe it, and what solutions of it need."""

    problem: Problem
    main: str
    """Source of the entry file of a solution, which imports the solution's own file."""
    file: str
    """The name of that file."""
    files: Mapping[str, Path]
    """Files of the problem, by the name that others import them by."""
    is_destination_passing: bool = attrs.field(kw_only=True)
    """Whether solutions get the outputs as arguments."""

    def solution(self, path: Path) -> tuple[SourceFile, ...]:
        """The sources of a solution: its own file, which is not executed, an entry file, and files of the problem."""
        (own, *_) = read_sources(path)
        helpers = imported_by(self.main, self.files, str(path)) | imported_by(own.content, self.files, str(path))
        sources = {"main.py": self.main, self.file: own.content}
        sources |= {f"{name}.py": text for name, text in helpers.items()}
        return tuple(SourceFile(name, text) for name, text in sources.items())


def imported_by(source: str, files: Mapping[str, Path], where: str, above: tuple[str, ...] = ()) -> dict[str, str]:
    """The sources of the modules that a source imports, directly or not; each behind those that it imports."""
    found: dict[str, str] = {}
    for name in _imports(source, where):
        if name in files and name not in above:
            (file,) = read_sources(files[name])
            found |= imported_by(file.content, files, str(files[name]), (*above, name)) | {name: file.content}
    return found


def _imports(source: str, where: str) -> Iterator[str]:
    for node in ast.walk(_parsed(source, where)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]


def _parsed(source: str, where: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise ProblemError(where, f"does not parse: {error}") from error


def on_cpu(source: str, where: str) -> str:
    """A source in which texts that name a CUDA device name the CPU, and calls of `cuda` are calls of `cpu`."""
    tree = _parsed(source, where)
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if _CUDA.fullmatch(text):
                node.value = "cpu"
            case ast.Call(func=ast.Attribute(attr="cuda") as function):
                function.attr = "cpu"
    return ast.unparse(tree)


# -- records -------------------------------------------------------------------------------------


@attrs.frozen
class Imported:
    """A problem in a data set."""

    definition: Definition
    workloads: tuple[Workload, ...]
    recorded_bytes: int
    notes: tuple[str, ...] = ()
    """Hints, such as settings to add."""


def add_problem(root: Path, problem: Problem, *, random_inputs: bool = False) -> Imported:
    """Add a problem to a data set.

    Values that look like standard normal ones become random inputs, which a benchmark draws anew; with `random_inputs`
    all floating ones do, but the parameters of a model. All others are recorded, because the operation may need them as
    they are: integers, parameters of a model, uniform values.

    Raises:
        ProblemError: The problem cannot be described by a definition.
        DuplicateName: The data set has another definition of this name.
    """
    trace_set = TraceSet.from_path(root)
    definition = problem.to_definition()
    name = definition.name
    is_there = name in trace_set.definition_names() and trace_set.get_definition(name) == definition
    known = [trace.workload for trace in trace_set.workloads.get(name, ())] if is_there else []
    calls = [call for call in problem.calls if _uuid(definition, call) not in {workload.uuid for workload in known}]
    if not calls:
        note = "the data set has this problem already; its workloads stay"
        return Imported(definition, tuple(known), 0, (note,))
    recorded = [_recorded(problem, definition, call, random_inputs) for call in calls]
    workloads = [_workload(definition, call, kept) for call, kept in zip(calls, recorded, strict=True)]
    if not is_there:  # after all that can fail for a reason of the problem
        trace_set.add_definitions([definition])
    for workload, kept in zip(workloads, recorded, strict=True):
        if kept:
            trace_set.add_workload_blob_tensor(name, workload.uuid, kept)
    trace_set.add_traces([Trace(name, workload) for workload in workloads])
    size = sum(tensor.nbytes for kept in recorded for tensor in kept.values())
    return Imported(definition, tuple(workloads), size, (*problem.notes, *_tolerance_notes(root, problem)))


def _uuid(definition: Definition, call: Call) -> str:
    return f"{definition.name}-{call.name}"


def _recorded(problem: Problem, definition: Definition, call: Call, random_inputs: bool) -> dict[str, torch.Tensor]:
    return {
        name: value.contiguous().cpu()
        for name, value in call.inputs.items()
        if isinstance(value, torch.Tensor) and not _is_random(problem, definition, name, value, random_inputs)
    }


def _workload(definition: Definition, call: Call, kept: Mapping[str, torch.Tensor]) -> Workload:
    uuid = _uuid(definition, call)
    path = blob_file(definition, uuid)
    inputs = {name: _input(name, value, kept, path) for name, value in call.inputs.items()}
    sizes: dict[str, int] = {}
    for specs, values in ((definition.inputs, call.inputs), (definition.outputs, call.outputs)):
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                sizes |= zip(specs[name].shape or (), value.shape, strict=True)
    return Workload({axis: sizes[axis] for axis in definition.var_axes}, inputs, uuid)


def _is_random(problem: Problem, definition: Definition, name: str, value: torch.Tensor, random_inputs: bool) -> bool:
    """Whether a benchmark may draw the values: standard normal ones, or uniform ones that are described as such."""
    if not value.is_floating_point() or name in problem.recorded:
        return False
    if definition.inputs[name].description is not None:
        return True
    return role_of(definition, name) is Role.PLAIN and (random_inputs or _looks_normal(value))


def _looks_normal(value: torch.Tensor) -> bool:
    if value.numel() < _MIN_NORMAL:
        return False
    sample = value.flatten()[: 1 << 20].double()
    mean, deviation = float(sample.mean()), float(sample.std())
    inside = float((sample.abs() < 1).double().mean())  # 0.683 of normal values, 0.577 of uniform ones of deviation 1
    return abs(mean) < 0.1 and abs(deviation - 1) < 0.1 and abs(inside - 0.683) < 0.05


def _uniform_bounds(value: torch.Tensor) -> tuple[float, float] | None:
    """The bounds, of two decimals, between which values look uniform."""
    if not value.is_floating_point() or value.numel() < _MIN_NORMAL:
        return None
    sample = value.flatten()[: 1 << 20].double()
    low, high = round(float(sample.min()), 2), round(float(sample.max()), 2)
    shares = [float((sample < low + (high - low) * part).double().mean()) for part in (0.25, 0.5, 0.75)]
    is_even = all(abs(share - part) < 0.05 for share, part in zip(shares, (0.25, 0.5, 0.75), strict=True))
    is_tight = max(abs(float(sample.min()) - low), abs(float(sample.max()) - high)) <= 0.01 * (high - low)
    return (low, high) if high > low and is_even and is_tight else None


def _input(name: str, value: Argument, kept: Mapping[str, torch.Tensor], path: str) -> InputSpec:
    if not isinstance(value, torch.Tensor):
        return ScalarInput(value)
    return SafetensorsInput(path, name) if name in kept else RandomInput()


def _tolerance_notes(root: Path, problem: Problem) -> list[str]:
    """Write the problem's tolerances to the settings of the data set, or say what to add to settings that exist."""
    bounds = {name: value for name, value in (("rtol", problem.rtol), ("atol", problem.atol)) if value is not None}
    if not bounds:
        return []
    settings = yaml.safe_dump({"definition_config": {problem.name: bounds}})
    file = root / DATA_SET_FILE
    if not file.exists():
        atomic_write(file, settings.encode())
        return []
    return [f"the tolerances of the problem are not in {file}, which exists; add to it:\n{settings.rstrip()}"]
