"""Definitions that FlashInfer's automatic trace dump has written, in the form that data sets have.

Source: the files that ``FLASHINFER_TRACE_DUMP=1`` of FlashInfer 0.7.2 writes, one for each function and set of
constant sizes. They lack a function ``run``: their reference bears a name of its own and may take parameters
of the library beside the definition's inputs. An optional input that the dumped call did not pass has no dtype; what a
wrapper's ``plan`` takes is among these, for what is dumped is ``run``. Nothing here runs code of a file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from typing import Any

import attrs
from fib_schema import ConstraintError, DType, FibError, constraint_names
from fib_schema.syntax import parse_source

Plain = dict[str, Any]

_DTYPES = frozenset(DType)
_PLANNED = ("indptr", "indices")
"""How the names end of what ``plan`` takes and a reference cannot do without; in FlashInfer's wrappers it is int32."""
_FIELDS = ("name", "axes", "inputs", "outputs")


@attrs.frozen
class NoDefinition(FibError, ValueError):
    """A dumped file that cannot be made a definition of."""

    problem: str

    def __str__(self) -> str:
        return self.problem


def looks_like_definition(plain: Any) -> bool:
    """Whether a JSON object is meant as a definition, good or bad."""
    return isinstance(plain, dict) and all(field in plain for field in _FIELDS)


def adapted(plain: Plain) -> tuple[Plain, list[str]]:
    """Turn the plain objects of a dumped file into those of a definition.

    Args:
        plain: What was decoded; it is not changed. What needs no change stays as it is.

    Returns:
        The plain objects, and what was changed, each in a few words.

    Raises:
        NoDefinition: It describes something that no definition can.
    """
    axes, inputs, outputs = (_objects(plain, field) for field in ("axes", "inputs", "outputs"))
    changes: list[str] = []
    _refuse_shared(inputs, outputs)
    kept = _described(inputs, changes)
    named = {axis for spec in (*kept.values(), *outputs.values()) for axis in spec.get("shape") or ()}
    new = {**plain, "inputs": kept, "axes": _completed(axes, kept, named, changes)}
    if isinstance(constraints := plain.get("constraints"), list):
        gone = (inputs.keys() | axes.keys()) - (kept.keys() | new["axes"].keys())
        new["constraints"] = list(_without(constraints, gone, changes))
    source = plain.get("reference")
    if not isinstance(source, str):
        raise NoDefinition("has no reference, for FlashInfer has none for this function; write one by hand")
    new["reference"] = _with_run(source, kept, inputs, changes)
    return new, changes


def _objects(plain: Plain, field: str) -> dict[str, Plain]:
    found = plain.get(field)
    if not isinstance(found, dict) or not all(isinstance(item, dict) for item in found.values()):
        raise NoDefinition(f"{field!r} is no mapping of objects")
    for name, spec in found.items():
        shape = spec.get("shape")
        if not (shape is None or (isinstance(shape, list) and all(isinstance(axis, str) for axis in shape))):
            raise NoDefinition(f"{field}[{name!r}].shape is no list of axes")
    return found


def _refuse_shared(inputs: Mapping[str, Plain], outputs: Mapping[str, Plain]) -> None:
    if shared := sorted(inputs.keys() & outputs.keys()):
        raise NoDefinition(
            f"{', '.join(shared)}: input and output at once, for the function writes to what it is given; "
            f"a definition computes outputs of inputs: write one by hand"
        )


def _described(inputs: Mapping[str, Plain], changes: list[str]) -> dict[str, Plain]:
    """The inputs without the optional ones whose dtype no definition can have; but with those that a plan sets."""
    kept: dict[str, Plain] = {}
    for name, spec in inputs.items():
        dtype = spec.get("dtype")
        if spec.get("optional") is not True or dtype in _DTYPES:
            kept[name] = spec
        elif dtype == "unknown" and name.endswith(_PLANNED):
            kept[name] = {key: value for key, value in spec.items() if key != "optional"} | {"dtype": "int32"}
            changes.append(
                f"input {name!r} is int32 and must be given: plan() sets it, and run() was dumped without it"
            )
        else:
            changes.append(f"optional input {name!r} is left out: its dtype is {dtype!r}")
    return kept


def _without(constraints: list[Any], gone: Set[str], changes: list[str]) -> Iterator[Any]:
    """The constraints that hold of what is there; one that cannot be read is for the definition to refuse."""
    for constraint in constraints:
        try:
            lost = constraint_names(constraint) & gone if isinstance(constraint, str) else frozenset()
        except ConstraintError:
            lost = frozenset()
        if lost:
            changes.append(f"constraint {constraint!r} is left out: it names {min(lost)!r}, which is left out")
        else:
            yield constraint


def _completed(axes: Mapping[str, Plain], inputs: Mapping[str, Plain], named: set[str], changes: list[str]) -> Plain:
    """The axes that shapes name: without constants that nothing needs, and with those that nobody has declared."""
    unknown = [axis for axis, spec in axes.items() if spec.get("type") == "const" and "value" not in spec]
    changes += [
        f"axis {axis!r} is left out: it has no size and no shape names it" for axis in unknown if axis not in named
    ]
    readable = {axis for spec in inputs.values() for axis in spec.get("shape") or ()}
    missing = sorted(named & readable - axes.keys())
    changes += [f"axis {axis!r} is variable: shapes name it and nothing declares it" for axis in missing]
    kept = {axis: spec for axis, spec in axes.items() if axis in named or axis not in unknown}
    return {**kept, **{axis: {"type": "var"} for axis in missing}}


# -- the reference -----------------------------------------------------------------------------------


def _with_run(source: str, kept: Mapping[str, Plain], inputs: Mapping[str, Plain], changes: list[str]) -> str:
    """The reference with a function ``run`` that takes the definition's inputs in their order."""
    try:
        nodes = parse_source(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NoDefinition(f"the reference does not parse: {error}") from error
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    if any(function.name == "run" for function in functions):
        return source
    if not functions:
        raise NoDefinition("the reference defines no function")
    function = functions[-1]  # what it needs comes before it
    arguments = ", ".join(_arguments(function, kept, inputs))
    changes.append(f"the reference's {function.name!r} is called by a function 'run' now")
    head = f"def run({', '.join(kept)}):"
    return f"{source.rstrip()}\n\n\n{head}\n    return {function.name}({arguments})\n"


def _arguments(function: ast.FunctionDef, kept: Mapping[str, Plain], inputs: Mapping[str, Plain]) -> Iterator[str]:
    """How the reference is called with the inputs: by name, or by place where it calls them otherwise."""
    parameters = _parameters(function)
    names = list(parameters)
    if _corresponds(names, list(inputs)):
        yield from (f"{there}={here if here in kept else None}" for there, here in zip(names, inputs, strict=True))
        return
    for name, is_required in parameters.items():
        if name in kept:
            yield f"{name}={name}"
        elif name in inputs or (is_required and not _uses(function, name)):
            yield f"{name}=None"
        elif is_required:
            raise NoDefinition(f"the reference needs {name!r}, which is no input; write one by hand")
    for name in (name for name in kept if name not in parameters):
        if function.args.kwarg is not None and function.args.kwarg.arg != "_unused":
            yield f"{name}={name}"
        elif not inputs[name].get("optional"):
            raise NoDefinition(f"the reference does not take the input {name!r}; write one by hand")


def _parameters(function: ast.FunctionDef) -> dict[str, bool]:
    """The names of a function's parameters, and whether each must be given."""
    args = function.args
    if args.posonlyargs:
        raise NoDefinition("the reference has parameters that go by place alone")
    count = len(args.args) - len(args.defaults)
    by_place = {arg.arg: place < count for place, arg in enumerate(args.args)}
    return by_place | {arg.arg: node is None for arg, node in zip(args.kwonlyargs, args.kw_defaults, strict=True)}


def _corresponds(parameters: list[str], inputs: list[str]) -> bool:
    """Whether parameters are the inputs in their order, some by other names."""
    if len(parameters) != len(inputs):
        return False
    pairs = zip(parameters, inputs, strict=True)
    return all(there == here or (there not in inputs and here not in parameters) for there, here in pairs)


def _uses(function: ast.FunctionDef, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(function))
