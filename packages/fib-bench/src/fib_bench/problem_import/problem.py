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
    ScalarInput,
    SourceFile,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
)
from fib_schema.constraints import evaluate_constraint
from fib_schema.files import atomic_write
from fib_schema.syntax import parse_source

from ..authoring.sources import read_sources
from ..checking.comparison import dtype_name
from ..config.model import DATA_SET_FILE
from ..inputs.generation import ARGUMENTS, FIELD
from ..inputs.synthesis import Role, role_of, uniform_description

GENERATOR = "_generate_inputs"
"""The function in a reference that makes inputs as the problem does."""
_MIN_NUMBERS = 1024
"""Elements from which on values tell a standard normal or uniform distribution from others."""
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
        arguments: What the generator of the problem gets besides sizes and scalars.
    """

    name: str
    sizes: Mapping[str, int]
    inputs: Mapping[str, Argument]
    outputs: Mapping[str, torch.Tensor]
    arguments: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Problem:
    """A problem of another benchmark."""

    path: str
    name: str
    op_type: str
    description: str
    reference: str
    """Source with a function ``run``, which takes the inputs of `calls` in order, and the function `GENERATOR`."""
    calls: tuple[Call, ...]
    parameters: frozenset[str] = frozenset()
    """Inputs that are parameters of a model."""
    tolerances: Mapping[str, float] = attrs.field(factory=dict)
    notes: tuple[str, ...] = ()
    """The parts of the problem that are left out."""

    def to_definition(self) -> Definition:
        """The definition; `ProblemError` if calls differ in more than sizes, or it has no dtype or axis for one."""
        axes, names, constraints = _axes(self)
        first = self.calls[0]
        definition = Definition(
            self.name,
            self.op_type,
            axes,
            {name: self._spec(name, value, names) for name, value in first.inputs.items()},
            {name: self._spec(name, value, names) for name, value in first.outputs.items()},
            self.reference,
            description=self.description,
            constraints=constraints,
        )
        return attrs.evolve(definition, extra=self._extra(definition))

    def _extra(self, definition: Definition) -> dict[str, object]:
        """The generator of the inputs that a benchmark cannot draw: all but standard normal and uniform ones."""
        tensors = {name: spec for name, spec in definition.inputs.items() if spec.shape is not None}
        plain = [name for name in tensors if role_of(definition, name) is Role.PLAIN and self._is_normal(name)]
        made = [name for name, spec in tensors.items() if spec.description is None and name not in plain]
        parameters = [name for name in made if name in self.parameters]
        return {FIELD: {"function": GENERATOR, "inputs": made, "parameters": parameters}} if made else {}

    def _large(self, name: str) -> list[torch.Tensor]:
        """The values of a floating input that are enough to show their distribution."""
        values = [call.inputs[name] for call in self.calls]
        tensors = [value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()]
        is_fixed = name in self.parameters or any(value.dtype.itemsize not in {2, 4} for value in tensors)
        return [] if is_fixed else [value for value in tensors if value.numel() >= _MIN_NUMBERS]

    def _is_normal(self, name: str) -> bool:
        large = self._large(name)
        return bool(large) and all(map(_looks_normal, large))

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
        bounds = {_uniform_bounds(value) for value in self._large(name)} if name in self.calls[0].inputs else set()
        found = bounds.pop() if len(bounds) == 1 else None
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
    shapes = [dict(_shapes(call)) for call in problem.calls]
    for call in problem.calls:
        if kinds_of(call) != kinds_of(problem.calls[0]):
            text = f"call {call.name!r} has other inputs, ranks or dtypes than {problem.calls[0].name!r}"
            raise ProblemError(problem.path, text)
    slots = [(name, index) for name, shape in shapes[0].items() for index in range(len(shape))]
    return {(name, index): tuple(found[name][index] for found in shapes) for name, index in slots}


def _shapes(call: Call) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, value in {**call.inputs, **call.outputs}.items():
        if isinstance(value, torch.Tensor):
            yield name, tuple(value.shape)


def kinds_of(call: Call) -> dict[str, object]:
    """The ranks and dtypes of the values of a call."""
    values = {**call.inputs, **call.outputs}.items()
    return {
        name: (value.dim(), value.dtype) if isinstance(value, torch.Tensor) else type(value) for name, value in values
    }


def _axis_name(calls: Sequence[Call], sizes: tuple[int, ...], slot: Slot) -> str:
    for name in calls[0].sizes:
        if tuple(call.sizes.get(name) for call in calls) == sizes:
            return name
    return f"n{sizes[0]}" if len(set(sizes)) == 1 else f"{slot[0]}_{slot[1]}"


def load_modules(sources: dict[str, str], file: str = "") -> types.ModuleType:
    """Execute modules, which import each other by name, and return the last one; messages name their `file`."""
    before, module = {name: sys.modules.get(name) for name in sources}, types.ModuleType("empty")
    try:
        for name, source in sources.items():
            module = sys.modules[name] = types.ModuleType(name)
            exec(compile(source, file or name + ".py", "exec"), module.__dict__)  # noqa: S102 - a problem is a program
        return module
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


@attrs.frozen
class ForeignProblem:
    """A problem as its files describe it, and what solutions of it need."""

    problem: Problem
    main: str
    """Source of the entry file of a solution, which imports the solution's own file."""
    file: str
    """The name of that file."""
    files: Mapping[str, str]
    """Sources of the problem, by the name that others import them by."""
    is_destination_passing: bool = attrs.field(kw_only=True)

    def solution(self, path: Path) -> tuple[SourceFile, ...]:
        """The sources of a solution: its own file, which is not executed, an entry file, and files of the problem."""
        (own, *_) = read_sources(path)
        helpers = imported_by(self.main, self.files, str(path)) | imported_by(own.content, self.files, str(path))
        sources = {"main.py": self.main, self.file: own.content}
        sources |= {f"{name}.py": text for name, text in helpers.items()}
        return tuple(SourceFile(name, text) for name, text in sources.items())


def imported_by(source: str, files: Mapping[str, str], where: str, above: tuple[str, ...] = ()) -> dict[str, str]:
    """The sources of the modules that a source imports, directly or not; each behind those that it imports."""
    found: dict[str, str] = {}
    for name in _imports(source, where):
        if name in files and name not in above:
            found |= imported_by(files[name], files, f"{where}: {name}", (*above, name)) | {name: files[name]}
    return found


def _imports(source: str, where: str) -> Iterator[str]:
    with explained(where, "its source"):
        tree = parse_source(source)
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]


def on_any_device(source: str) -> str:
    """A source in which texts that name a CUDA device, and calls of `cuda`, mean the CPU where there is no GPU."""
    with_device = re.sub(r"\.cuda\(\)", '.to("cuda")', source)
    is_there = r"__import__(\1torch\1).cuda.is_available()"
    return re.sub(r"(['\"])cuda(?::\d+)?\1", rf"(\1cuda\1 if {is_there} else \1cpu\1)", with_device)


@attrs.frozen
class Imported:
    """A problem in a data set."""

    definition: Definition
    workloads: tuple[Workload, ...]
    notes: tuple[str, ...] = ()
    """Hints, such as settings to add."""


def add_problem(root: Path, problem: Problem) -> Imported:
    """Add a problem to a data set; `ProblemError` if no definition describes it, `DuplicateName` if it has another.

    A benchmark draws inputs that look standard normal or uniform, and has the problem's own function make all others.
    """
    definition = problem.to_definition()
    workloads = [_workload(definition, call) for call in problem.calls]
    return add_records(root, definition, workloads, problem.tolerances, problem.notes)


def add_records(
    root: Path, definition: Definition, workloads: Sequence[Workload], bounds: Mapping[str, float], notes: Sequence[str]
) -> Imported:
    """Add a definition, those of its workloads that are missing, and its tolerances; `add_problem` says what raises."""
    trace_set, name = TraceSet.from_path(root), definition.name
    is_there = name in trace_set.definition_names() and trace_set.get_definition(name) == definition
    known = [trace.workload for trace in trace_set.workloads.get(name, ())] if is_there else []
    missing = [workload for workload in workloads if workload.uuid not in {other.uuid for other in known}]
    if not missing:
        return Imported(definition, tuple(known), ("the data set has this problem already; its workloads stay",))
    if not is_there:  # after all that can fail for a reason of the problem
        trace_set.add_definitions([definition])
    trace_set.add_traces([Trace(name, workload) for workload in missing])
    return Imported(definition, tuple(missing), (*notes, *(_tolerance_notes(root, name, bounds) if bounds else ())))


def _workload(definition: Definition, call: Call) -> Workload:
    inputs = {
        name: RandomInput() if isinstance(value, torch.Tensor) else ScalarInput(value)
        for name, value in call.inputs.items()
    }
    sizes: dict[str, int] = {}
    for specs, values in ((definition.inputs, call.inputs), (definition.outputs, call.outputs)):
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                sizes |= zip(specs[name].shape or (), value.shape, strict=True)
    axes = {axis: sizes[axis] for axis in definition.var_axes}
    extra = {ARGUMENTS: dict(call.arguments)} if call.arguments else None
    return Workload(axes, inputs, f"{definition.name}-{call.name}", extra=extra)


def _looks_normal(value: torch.Tensor) -> bool:
    sample = value.flatten()[: 1 << 20].double()
    mean, deviation = float(sample.mean()), float(sample.std())
    inside = float((sample.abs() < 1).double().mean())  # 0.683 of normal values, 0.577 of uniform ones of deviation 1
    return abs(mean) < 0.1 and abs(deviation - 1) < 0.1 and abs(inside - 0.683) < 0.05


def _uniform_bounds(value: torch.Tensor) -> tuple[float, float] | None:
    """The bounds, of two decimals, between which values look uniform."""
    sample = value.flatten()[: 1 << 20].double()
    low, high = round(float(sample.min()), 2), round(float(sample.max()), 2)
    shares = [float((sample < low + (high - low) * part).double().mean()) for part in (0.25, 0.5, 0.75)]
    is_even = all(abs(share - part) < 0.05 for share, part in zip(shares, (0.25, 0.5, 0.75), strict=True))
    is_tight = max(abs(float(sample.min()) - low), abs(float(sample.max()) - high)) <= 0.01 * (high - low)
    return (low, high) if high > low and is_even and is_tight else None


def _tolerance_notes(root: Path, name: str, bounds: Mapping[str, float]) -> list[str]:
    """Add the tolerances of a problem to the settings of the data set, or say what to add to those of an author."""
    file, own = root / DATA_SET_FILE, {name: dict(bounds)}
    text = file.read_text() if file.exists() else "definition_config: {}\n"
    with contextlib.suppress(yaml.YAMLError):
        match yaml.safe_load(text):
            case {"definition_config": dict(others)} as settings if yaml.safe_dump(settings) == text:
                atomic_write(file, yaml.safe_dump(settings | {"definition_config": own | others}).encode())
                return []
    return [f"the tolerances are not in {file}; add to it:\n{yaml.safe_dump({'definition_config': own})}".rstrip()]
