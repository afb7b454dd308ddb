"""Definitions from a Python reference: its annotations are the types of inputs and outputs, or texts beside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs
from fib_schema import (
    AxisConst,
    AxisVar,
    Definition,
    DType,
    RandomInput,
    ScalarInput,
    TensorSpec,
    UnknownName,
    Workload,
)

from .sources import KernelFileError, parse, read_sources

EXAMPLE = 'def run(x: "float32[rows, width=1024]", weight: "float32[width]") -> "y: float32[rows, width]":'
_TYPE = re.compile(r"(\w+)\s*(?:\[([^\]]*)\])?(?:\s+(-?\d[\d.e+-]*?)\.\.(-?\d[\d.e+-]*))?")
_AXIS = re.compile(r"([A-Za-z_]\w*)(?:\s*=\s*(\d+))?")


@attrs.define
class _Axes:
    """The axes that types name; a size makes an axis constant."""

    path: str
    sizes: dict[str, int | None] = attrs.field(factory=dict)

    def add(self, name: str, size: int | None) -> None:
        known = self.sizes.get(name)
        if size is not None and known is not None and size != known:
            raise KernelFileError(self.path, f"axis {name!r} has two sizes: {known} and {size}")
        self.sizes[name] = known if size is None else size

    def tensor(self, where: str, text: str) -> TensorSpec:
        """The tensor or scalar that a type such as ``float32[rows, width=1024]`` names."""
        match = _TYPE.fullmatch(text.strip())
        if match is None:
            problem = f"{where}: {text!r} is not a type; write 'float32[rows, width=64]', 'int32[rows] 0..9' or 'int32'"
            raise KernelFileError(self.path, problem)
        try:
            DType(match[1])
        except ValueError:
            raise KernelFileError(self.path, f"{where}: {UnknownName('dtype', match[1], tuple(DType))}") from None
        description = f"uniform values from {match[3]} to {match[4]}" if match[3] else None
        if match[2] is None:
            return TensorSpec(None, match[1], description)
        names = []
        for part in filter(None, map(str.strip, match[2].split(","))):
            axis = _AXIS.fullmatch(part)
            if axis is None:
                problem = f"{where}: {part!r} is not an axis; write a name, or name=size for a constant one"
                raise KernelFileError(self.path, problem)
            self.add(axis[1], int(axis[2]) if axis[2] else None)
            names.append(axis[1])
        return TensorSpec(tuple(names), match[1], description)


def definition_from_reference(
    name: str,
    path: Path,
    *,
    op_type: str | None = None,
    description: str | None = None,
    inputs: Iterable[str] = (),
    outputs: Iterable[str] = (),
    sizes: Mapping[str, int] | None = None,
) -> Definition:
    """Make a definition from a Python file whose function ``run`` is the reference; `KernelFileError` if it is none.

    Annotations of ``run`` are texts: ``x: "float32[rows, width=1024]"``, a scalar without brackets, and for outputs
    ``-> "y: float32[rows, width]"`` or a tuple of such texts. In their place `inputs` and `outputs` may have
    ``x: float32[rows, width]``, and `sizes` those of constant axes. Without an op_type it is the name before the first
    ``_``.
    """
    (source, *_) = sources = read_sources(path)
    if len(sources) > 1 or not source.path.endswith(".py"):
        raise KernelFileError(str(path), "a reference is one .py file")
    function = _reference(str(path), parse(source))
    axes, given = _Axes(str(path), dict(sizes or {})), dict(_named(str(path), text) for text in inputs)
    parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    if unknown := given.keys() - {parameter.arg for parameter in parameters}:
        raise KernelFileError(str(path), f"run has no parameter {min(unknown)!r}")
    types = {p.arg: given.get(p.arg) or _input_type(str(path), p) for p in parameters}
    of_outputs = [_named(str(path), text) for text in outputs] or _output_types(str(path), function.returns)
    tensors = {parameter: axes.tensor(parameter, text) for parameter, text in types.items()}
    results = {output: axes.tensor(output, text) for output, text in of_outputs}
    return Definition(
        name,
        op_type or name.partition("_")[0],
        {axis: AxisVar() if size is None else AxisConst(size) for axis, size in axes.sizes.items()},
        tensors,
        results,
        source.content,
        description=description,
    )


def random_workload(definition: Definition, sizes: Mapping[str, int]) -> Workload:
    """A workload of sizes for all variable axes and no others; inputs are random, scalars are 1 or true."""
    axes = definition.var_axes
    for axis in sizes:
        if axis not in axes:
            raise UnknownName("variable axis", axis, tuple(axes))
    if missing := [axis for axis in axes if axis not in sizes]:
        raise KernelFileError(definition.name, f"a workload gives all variable axes; {', '.join(missing)} is missing")
    inputs = {
        name: RandomInput() if spec.shape is not None else ScalarInput(True if spec.dtype == "bool" else 1)
        for name, spec in definition.inputs.items()
    }
    named = "-".join(f"{axis}-{size}" for axis, size in sizes.items()) or "only"
    return Workload(dict(sizes), inputs, f"{definition.name}-{named}")


def _reference(path: str, module: ast.Module) -> ast.FunctionDef:
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name == "run":
            if node.args.vararg or node.args.kwarg:
                raise KernelFileError(f"{path}:{node.lineno}", "run has * parameters; name each input")
            return node
    raise KernelFileError(path, f"has no function 'run'; write the reference as {EXAMPLE}")


def _input_type(path: str, parameter: ast.arg) -> str:
    text = _text(parameter.annotation)
    if text is None:
        problem = f"parameter {parameter.arg!r} has no type; annotate it: {EXAMPLE}"
        raise KernelFileError(f"{path}:{parameter.lineno}", problem)
    return text


def _output_types(path: str, returns: ast.expr | None) -> Iterable[tuple[str, str]]:
    parts: list[ast.expr] = []
    if isinstance(returns, ast.Subscript):
        returns = returns.slice
    if returns is not None:
        parts = list(returns.elts) if isinstance(returns, ast.Tuple) else [returns]
    for part in parts:
        yield _named(f"{path}:{part.lineno}", _text(part) or "")
    if not parts:
        raise KernelFileError(path, f"run has no outputs; annotate what it returns: {EXAMPLE}")


def _named(place: str, text: str) -> tuple[str, str]:
    """The name and the type of ``y: float32[rows]``."""
    name, colon, kind = text.partition(":")
    if not colon:
        raise KernelFileError(place, f"{text!r}: inputs and outputs need names, as in 'x: float32[rows]'; or {EXAMPLE}")
    return name.strip(), kind.strip()


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
