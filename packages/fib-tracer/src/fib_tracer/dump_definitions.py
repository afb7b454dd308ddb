"""Definitions that FlashInfer's automatic trace dump writes, converted and added to a data set.

Source: the files that ``FLASHINFER_TRACE_DUMP=1`` of FlashInfer 0.7.2 writes, one for each function and set of constant
sizes. Their reference is not called ``run`` and may take parameters of the library beside the definition's inputs. An
optional input that the dumped call did not pass has no dtype; the arguments of a wrapper's ``plan`` are among these,
because ``run`` is dumped. A function ``init`` makes inputs of sizes. Nothing here runs code of a file.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs
from fib_schema import ConstraintError, Definition, DType, FibError, InvalidRecord, TraceSet, constraint_names, to_plain
from fib_schema.codec import decode, structure
from fib_schema.files import explain_os_error, read_regular
from fib_schema.syntax import parse_source

Plain = dict[str, Any]
State: TypeAlias = Literal["added", "equal", "differs", "refused"]

_MAX_FILE_BYTES = 64 << 20
_DTYPES = frozenset(DType)
_KNOWN_MODULES = sys.stdlib_module_names | {"torch"}
"""Modules that a function ``init`` may import; it runs where FlashInfer need not be."""
_PLAN_SUFFIXES = ("indptr", "indices")
"""Suffixes of arguments of ``plan`` that a reference needs; in FlashInfer's wrappers they are int32."""
_DRAWN = frozenset({"float32", "float16", "bfloat16"})
"""Types of inputs that a benchmark can draw by itself, if all are of these."""
_GENERATE = """

def _generate_inputs(arguments, device):
    given = {{"device": str(device), "seed": arguments["seed"]}}
    given |= {{name: arguments[name] for name in {sizes!r}}}
    names = {{}}
    exec({source!r}, names)
    made = names[{function!r}](**{{name: given[name] for name in {parameters!r}}})
    return {{name: made[key] for name, key in {keys!r}.items()}}
"""
_FIELDS = ("name", "axes", "inputs", "outputs")


@attrs.frozen
class UnsupportedDefinition(FibError, ValueError):
    """A dumped file that cannot be converted to a definition."""

    problem: str

    def __str__(self) -> str:
        return self.problem


@attrs.frozen
class DefinitionImport:
    """The result of importing a definition's file."""

    name: str
    source: str
    state: State
    """``equal``: the set has it already; ``differs``: the set has another one of that name, which is kept."""
    changes: tuple[str, ...] = ()
    """Changes that the conversion made."""
    problem: str | None = None

    @property
    def is_refused(self) -> bool:
        """Whether the data set lacks the definition of the file: it was refused, or differs from one of that name."""
        return self.state in ("differs", "refused")


def import_definition(trace_set: TraceSet, file: Path) -> DefinitionImport | None:
    """Add the definition of a file to a data set, unless it has one of that name; None if the file has none."""
    source = os.fspath(file)
    try:
        plain = decode(read_regular(file, _MAX_FILE_BYTES), "Definition", source=source)
    except (InvalidRecord, OSError) as error:
        return DefinitionImport(file.stem, source, "refused", (), _reason(error))
    if not (isinstance(plain, dict) and all(field in plain for field in _FIELDS)):
        return None
    name = str(plain["name"])
    changes: tuple[str, ...] = ()
    try:
        new, converted = convert(plain)
        changes = tuple(converted)
        definition = structure(new, Definition, source=source)
        if definition.name in trace_set.definition_names():
            return _compared(trace_set.definitions[definition.name], definition, source, changes)
        trace_set.add_definitions([definition])
    except (FibError, OSError, ValueError, RecursionError) as error:
        return DefinitionImport(name, source, "refused", changes, _reason(error))
    return DefinitionImport(definition.name, source, "added", changes)


def _compared(old: Definition, new: Definition, source: str, changes: tuple[str, ...]) -> DefinitionImport:
    before, after = to_plain(old), to_plain(new)
    different = [field for field in {**before, **after} if before.get(field) != after.get(field)]
    if not different:
        return DefinitionImport(new.name, source, "equal", changes)
    problem = f"the data set has another definition of that name, which is kept; different: {', '.join(different)}"
    return DefinitionImport(new.name, source, "differs", changes, problem)


def _reason(error: Exception) -> str:
    """The error without the file's name, which is shown beside it."""
    if isinstance(error, InvalidRecord):
        return "; ".join(f"{p.message}" if p.path == "$" else f"{p.path}: {p.message}" for p in error.problems)
    return explain_os_error(error) if isinstance(error, OSError) else str(error)


# -- conversion --------------------------------------------------------------------------------------


def convert(plain: Plain) -> tuple[Plain, list[str]]:
    """The plain objects of a definition from those of a dumped file, and a description of each change.

    Raises:
        UnsupportedDefinition: No definition can describe it.
    """
    axes, inputs, outputs = (_objects(plain, field) for field in ("axes", "inputs", "outputs"))
    if shared := sorted(inputs.keys() & outputs.keys()):
        raise UnsupportedDefinition(
            f"{', '.join(shared)}: input and output at once, because the function writes to its argument; "
            f"a definition has separate outputs: write one by hand"
        )
    source, changes = plain.get("reference"), list[str]()
    if not isinstance(source, str):
        raise UnsupportedDefinition(
            "has no reference, because FlashInfer has none for this function; write one by hand"
        )
    kept = _usable_inputs(inputs, changes)
    new = {**plain, "inputs": kept, "axes": _usable_axes(axes, kept, outputs, changes)}
    removed = (inputs.keys() | axes.keys()) - (kept.keys() | new["axes"].keys())
    if isinstance(constraints := plain.get("constraints"), list):
        lost = [constraint for constraint in constraints if _names_of(constraint) & removed]
        new["constraints"] = [constraint for constraint in constraints if constraint not in lost]
        changes += [f"constraint {constraint!r} is removed: it names what is removed" for constraint in lost]
    sizes = {
        axis: spec["value"] for axis, spec in new["axes"].items() if spec.get("type") == "const" and "value" in spec
    }
    new["reference"] = _with_run(source, kept, inputs, sizes, changes)
    tensors = [name for name, spec in kept.items() if spec.get("shape") is not None]
    if isinstance(init := plain.get("init"), str) and any(kept[name].get("dtype") not in _DRAWN for name in tensors):
        generate = _generator(init, tensors, new["axes"])
        new["reference"] += generate
        made = tensors if generate else []
        changes.append(f"FlashInfer's init makes {', '.join(made) or 'no inputs: it needs or returns others'}")
        if made:
            new["extra"] = {"input_generator": {"function": "_generate_inputs", "inputs": made}}
    return new, changes


def _objects(plain: Plain, field: str) -> dict[str, Plain]:
    found = plain.get(field)
    if not isinstance(found, dict) or not all(isinstance(item, dict) for item in found.values()):
        raise UnsupportedDefinition(f"{field!r} is not a mapping of objects")
    for name, spec in found.items():
        shape = spec.get("shape")
        if not (shape is None or (isinstance(shape, list) and all(isinstance(axis, str) for axis in shape))):
            raise UnsupportedDefinition(f"{field}[{name!r}].shape is not a list of axes")
    return found


def _usable_inputs(inputs: Mapping[str, Plain], changes: list[str]) -> dict[str, Plain]:
    """The inputs with a known dtype, and those that ``plan`` sets."""
    kept: dict[str, Plain] = {}
    for name, spec in inputs.items():
        dtype = spec.get("dtype")
        if spec.get("optional") is not True or dtype in _DTYPES:
            kept[name] = spec
        elif dtype == "unknown" and name.endswith(_PLAN_SUFFIXES):
            kept[name] = {key: value for key, value in spec.items() if key != "optional"} | {"dtype": "int32"}
            changes.append(f"input {name!r} is int32 and required: plan() sets it, and run() was dumped without it")
        else:
            changes.append(f"optional input {name!r} is removed: its dtype is {dtype!r}")
    return kept


def _usable_axes(
    axes: Mapping[str, Plain], inputs: Mapping[str, Plain], outputs: Mapping[str, Plain], changes: list[str]
) -> Plain:
    """The axes without constants that have no size and no use, and with those that are used and not declared."""
    readable = {axis for spec in inputs.values() for axis in spec.get("shape") or ()}
    named = readable | {axis for spec in outputs.values() for axis in spec.get("shape") or ()}
    unused = {a for a, spec in axes.items() if spec.get("type") == "const" and "value" not in spec and a not in named}
    missing = sorted(readable - axes.keys())
    changes += [f"axis {axis!r} is removed: it has no size, and no shape names it" for axis in sorted(unused)]
    changes += [f"axis {axis!r} is variable: shapes name it, and it is not declared" for axis in missing]
    return {a: spec for a, spec in axes.items() if a not in unused} | {axis: {"type": "var"} for axis in missing}


def _names_of(constraint: Any) -> frozenset[str]:
    """The names in a constraint; none in one that does not parse, which the validation reports."""
    try:
        return frozenset(constraint_names(constraint)) if isinstance(constraint, str) else frozenset()
    except ConstraintError:
        return frozenset()


def _generator(init: str, tensors: Sequence[str], axes: Plain) -> str:
    """Source of a function that calls ``init`` for all inputs; empty if it needs more than sizes, or lacks an input."""
    module = ast.Module(_nodes(init), [])
    function = _functions(module.body)[-1]
    parameters = _parameters(function)
    known = [name for name in parameters if name in axes or name in ("device", "seed")]
    results = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    keys = [key for result in results if isinstance(result, ast.Dict) for key in result.keys]
    made = {str(key.value).casefold(): key.value for key in keys if isinstance(key, ast.Constant)}
    missing = {name for name, is_required in parameters.items() if is_required}.difference(known)
    lacking = [name for name in tensors if name.casefold() not in made]
    if missing or lacking or any(_imports_others(node) for node in ast.walk(module)):
        return ""
    sizes = [name for name in known if name in axes]
    given = {name: made[name.casefold()] for name in tensors}
    return _GENERATE.format(sizes=sizes, source=init, function=function.name, parameters=known, keys=given)


def _imports_others(node: ast.AST) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return any(name.partition(".")[0] not in _KNOWN_MODULES for name in names)


# -- the reference -----------------------------------------------------------------------------------


def _with_run(
    source: str, kept: Mapping[str, Plain], inputs: Mapping[str, Plain], sizes: Plain, changes: list[str]
) -> str:
    """The reference with a function ``run`` that takes the definition's inputs in their order."""
    functions = _functions(_nodes(source))
    if any(function.name == "run" for function in functions):
        return source
    function = functions[-1]  # helper functions come before it
    arguments = ", ".join(_arguments(function, kept, inputs, sizes))
    changes.append(f"a new function 'run' calls the reference's {function.name!r}")
    head = f"def run({', '.join(kept)}):"
    return f"{source.rstrip()}\n\n\n{head}\n    return {function.name}({arguments})\n"


def _nodes(source: str) -> list[ast.stmt]:
    try:
        return parse_source(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnsupportedDefinition(f"the reference or init does not parse: {error}") from error


def _functions(nodes: list[ast.stmt]) -> list[ast.FunctionDef]:
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    if not functions:
        raise UnsupportedDefinition("the reference or init defines no function")
    return functions


def _arguments(
    function: ast.FunctionDef, kept: Mapping[str, Plain], inputs: Mapping[str, Plain], sizes: Plain
) -> Iterator[str]:
    """The arguments of the call of the reference: by name, or by position if it has other names for inputs."""
    parameters = _parameters(function)
    if _are_same_in_order(list(parameters), list(inputs)):
        yield from (f"{p}={name if name in kept else None}" for p, name in zip(parameters, inputs, strict=True))
        return
    used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    for name, is_required in parameters.items():
        if name in kept:
            yield f"{name}={name}"
        elif name in inputs or (is_required and name not in used):
            yield f"{name}=None"
        elif is_required and name in sizes:
            yield f"{name}={sizes[name]!r}"
        elif is_required:
            raise UnsupportedDefinition(f"the reference needs {name!r}, which is not an input; write one by hand")
    for name in (name for name in kept if name not in parameters):
        if function.args.kwarg is not None and function.args.kwarg.arg != "_unused":
            yield f"{name}={name}"
        elif not inputs[name].get("optional"):
            raise UnsupportedDefinition(f"the reference does not take the input {name!r}; write one by hand")


def _parameters(function: ast.FunctionDef) -> dict[str, bool]:
    """The names of a function's parameters, and whether each is required."""
    args = function.args
    if args.posonlyargs:
        raise UnsupportedDefinition("the reference has positional-only parameters")
    count = len(args.args) - len(args.defaults)
    positional = {arg.arg: position < count for position, arg in enumerate(args.args)}
    return positional | {arg.arg: node is None for arg, node in zip(args.kwonlyargs, args.kw_defaults, strict=True)}


def _are_same_in_order(parameters: list[str], inputs: list[str]) -> bool:
    """Whether parameters are the inputs in their order, some by other names."""
    pairs = list(zip(parameters, inputs, strict=False))
    are_same = all(p == name or (p not in inputs and name not in parameters) for p, name in pairs)
    return are_same and len(parameters) == len(inputs)
