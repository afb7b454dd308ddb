"""Facts of whole Python modules and functions: state that outlives a call, writes into inputs, returned constants."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator

import attrs

from .facts import Fact, Kind, Reader, aliases_of, bound_names, root_of
from .key_facts import key_facts
from .normal_form import normal_form

_IN_PLACE = re.compile(r"(?!requires_grad_$)[a-z]\w*[a-z0-9]_")
"""Methods of tensors that write into the tensor."""
_ALLOCATION = re.compile(r"torch\.(empty|zeros|ones|full)\w*|\w+\.new_(empty|zeros|ones|full)\w*")
_ALLOCATED_LIKE = re.compile(r"(empty|zeros|ones|full|rand\w*)_like|new_\w+")
_COPIES = frozenset({"clone", "contiguous", "detach", "to", "view", "reshape"})
_METADATA = frozenset(
    {"shape", "device", "dtype", "stride", "size", "numel", "is_cuda", "ndim", "dim", "is_contiguous", "element_size"}
)
_ABOUT_OBJECTS = frozenset({"len", "type", "isinstance"})
_SETUP = "setup"
_CAST_METHODS = frozenset({"half", "bfloat16"})
_CASTS = frozenset({"to", "type", "cast"})
_FLOAT_BITS = ((re.compile("float8|float4"), 8), (re.compile("b?float16$|half$"), 16))
"""Beginnings of names of narrow floating types, of torch and Triton, with their bits."""


@attrs.frozen
class Signature:
    """The entry function of a solution, as far as it is known.

    Args:
        name: Its name.
        inputs: The number of leading parameters that are inputs.
        has_outputs: Whether outputs are parameters, too.
        least_bits: The bits of the narrowest floating type of an input or output; None without one.
        is_alone: Whether its source is the only one.
    """

    name: str
    inputs: int
    has_outputs: bool
    least_bits: int | None = None
    is_alone: bool = False


def facts_of(module: ast.Module, entry: Signature | None = None) -> list[Fact]:
    """The facts of a module.

    Args:
        module: The parsed source.
        entry: The entry function, for facts about its parameters.
    """
    module = normal_form(module, entry.name if entry is not None and entry.is_alone else None)
    reader = Reader(aliases_of(module), bound_names(module))
    facts = [fact for node in ast.walk(module) for fact in reader.read(node)]
    functions = list(_functions(module))
    inputs = {
        name for function in functions if entry and function.name == entry.name for name in _inputs(function, entry)
    }
    facts += key_facts(module, functions, reader, inputs)
    variables, deciding = _variables_of(module), _deciding_names(module)
    delivering = _delivering(functions, entry)
    for function in functions:
        facts += _counter_facts(function, variables, deciding)
        if function.name in delivering:
            facts += _result_facts(function, variables, reader)
        if entry is not None and function.name in {entry.name, _SETUP}:
            facts += _kept_values(function, _inputs(function, entry), variables)
        if entry is not None and function.name == entry.name:
            facts += _entry_facts(function, entry, reader)
    if entry is not None and entry.least_bits is not None:
        facts += _narrower_casts(module, entry.least_bits, reader)
    return facts


# -- state that outlives a call -------------------------------------------------------------------


def _counter_facts(function: ast.FunctionDef, variables: Collection[str], deciding: Collection[str]) -> Iterator[Fact]:
    """Counters of calls in variables of the module."""
    kept = _kept_names(function, variables)
    for node in ast.walk(function):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
            name = root_of(node.target)
            if name in kept and name in deciding:
                yield Fact(Kind.STATE, "counter", node.lineno)


def _result_facts(function: ast.FunctionDef, variables: Collection[str], reader: Reader) -> Iterator[Fact]:
    """Returned calls, and returned variables of the module."""
    kept, without_work = _kept_names(function, variables), set(_returns_of_no_elements(function))
    for node in ast.walk(function):
        if not isinstance(node, ast.Return) or node.value is None or node in without_work:
            continue
        if isinstance(node.value, ast.Call):
            yield Fact(Kind.RETURN, reader.dotted(node.value.func), node.lineno)
        if root_of(node.value) in kept:
            yield Fact(Kind.STATE, "kept-return", node.lineno)


def _returns_of_no_elements(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Results where a size is zero: ``if x.numel() == 0: return torch.empty_like(x)``."""
    for node in ast.walk(function):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.Eq):
            zero = node.test.comparators[0]
            if isinstance(zero, ast.Constant) and zero.value == 0 and _is_size(node.test.left):
                yield from (one for one in node.body if isinstance(one, ast.Return))


def _is_size(node: ast.AST) -> bool:
    """Whether an expression is a size of a tensor: ``x.shape[0]``, ``x.numel()``, ``len(x)``."""
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Call):
        node = node.func
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return name in {"shape", "numel", "size", "len"}


def _kept_names(function: ast.FunctionDef, variables: Collection[str]) -> set[str]:
    """Variables of the module that a function uses."""
    shared = _shared_names(function)
    return (set(variables) | shared) - (_assigned_names(function) - shared)


def _delivering(functions: Collection[ast.FunctionDef], entry: Signature | None) -> set[str]:
    """Names of functions whose results are results of the entry function; of all functions, if it is elsewhere."""
    called: dict[str, set[str]] = {}
    for function in functions:
        called.setdefault(function.name, set()).update(_delivered_calls(function))
    if entry is None or entry.name not in called:
        return set(called)
    found, left = {entry.name}, [entry.name]
    while left:
        new = [name for name in called[left.pop()] if name in called and name not in found]
        found.update(new)
        left += new
    return found


def _delivered_calls(function: ast.FunctionDef) -> Iterator[str]:
    """Functions whose results a function returns, also through a variable, or copies into an output."""
    returned = set(_returned_names(function))
    for node in ast.walk(function):
        if isinstance(node, ast.Return):
            yield from _called_name(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "copy_":
            yield from (name for argument in node.args for name in _called_name(argument))
    for name, assignment in _assignments(function):
        if name in returned:
            yield from _called_name(assignment.value)


def _called_name(node: ast.AST | None) -> Iterator[str]:
    if isinstance(node, ast.Call):
        yield node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _variables_of(module: ast.Module) -> set[str]:
    """The variables of the module."""
    found: set[str] = set()
    for node in module.body:
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def _deciding_names(module: ast.Module) -> set[str]:
    """Variables that a condition, a comparison, a remainder or the choice of an element depends on."""
    tests: list[ast.AST] = []
    for node in ast.walk(module):
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            tests.append(node.test)
        elif isinstance(node, ast.Subscript):
            tests.append(node.slice)
        elif isinstance(node, ast.Compare) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)):
            tests.append(node)
    return {node.id for test in tests for node in ast.walk(test) if isinstance(node, ast.Name)}


def _shared_names(function: ast.FunctionDef) -> set[str]:
    declared = (node for node in ast.walk(function) if isinstance(node, ast.Global | ast.Nonlocal))
    return {name for node in declared for name in node.names}


def _assigned_names(function: ast.FunctionDef) -> set[str]:
    """Parameters, and names that the function itself assigns."""
    names = (node for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    arguments = (node for node in ast.walk(function.args) if isinstance(node, ast.arg))
    return {node.id for node in names} | {argument.arg for argument in arguments}


def _assignments(function: ast.FunctionDef) -> Iterator[tuple[str, ast.Assign]]:
    """Assignments to one variable."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node


# -- the entry function ---------------------------------------------------------------------------


def _inputs(function: ast.FunctionDef, entry: Signature) -> list[str]:
    return [argument.arg for argument in function.args.args][: entry.inputs]


def _entry_facts(function: ast.FunctionDef, entry: Signature, reader: Reader) -> Iterator[Fact]:
    names = [argument.arg for argument in function.args.args]
    inputs, outputs = names[: entry.inputs], names[entry.inputs :]
    keywords = {argument.arg for argument in function.args.kwonlyargs}
    for node in ast.walk(function):
        if _writes_into(node, inputs):
            yield Fact(Kind.STATE, "mutated-input", node.lineno)  # type: ignore[attr-defined]
        elif isinstance(node, ast.Return) and node.value is not None:
            if (name := _copied(node.value)) in inputs:
                yield Fact(Kind.STATE, "returns-parameter", node.lineno)
            elif name in keywords:
                yield Fact(Kind.STATE, "returns-keyword", node.lineno)
    used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    if entry.has_outputs and outputs and not used & set(outputs):
        yield Fact(Kind.STATE, "writes-nothing", function.lineno)
    if inputs and not used & {*inputs, "locals"}:
        yield Fact(Kind.STATE, "reads-nothing", function.lineno)
    yield from _unwritten(function, reader)


def _kept_values(function: ast.FunctionDef, inputs: Collection[str], variables: Collection[str]) -> Iterator[Fact]:
    """Assignments of values of inputs to what outlives the call, unless it is called with the inputs again."""
    shared = _shared_names(function)
    called = _called_with(function, inputs)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            kept = {root_of(target) for target in node.targets if isinstance(target, ast.Subscript)} & set(variables)
            kept |= {target.id for target in node.targets if isinstance(target, ast.Name)} & shared
            if kept - called and _uses_values(node.value, inputs):
                yield Fact(Kind.STATE, "kept-values", node.lineno)


def _called_with(function: ast.FunctionDef, inputs: Collection[str]) -> set[str]:
    """Variables that are called with values of inputs, or elements of which are."""
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    return {root_of(call.func) for call in calls if any(_uses_values(value, inputs) for value in call.args)}


def _narrower_casts(module: ast.Module, bits: int, reader: Reader) -> Iterator[Fact]:
    """Casts to a floating type that is narrower than all of the definition, unless the rounding errors are used."""
    if any(_is_rounding_error(node) for node in ast.walk(module)):
        return
    for node in ast.walk(module):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        method, given = node.func.attr, [*node.args, *(keyword.value for keyword in node.keywords)]
        names = [method] if method in _CAST_METHODS else []
        if method in _CASTS:
            names = [reader.dotted(value).rpartition(".")[2] for value in given]
        if any(size < bits for name in names for pattern, size in _FLOAT_BITS if pattern.match(name)):
            yield Fact(Kind.STATE, "narrower-cast", node.lineno)


def _is_rounding_error(node: ast.AST) -> bool:
    """Whether a value that was cast back is subtracted, as where values are split into several narrow parts."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
        return False
    return any(name in {"float", "to"} for name in _called_name(node.right))


def _writes_into(node: ast.AST, names: Collection[str]) -> bool:
    """Whether a node is an in-place method of a variable, or assigns to its elements."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _IN_PLACE.fullmatch(node.func.attr) is not None and root_of(node.func.value) in names
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and root_of(node) in names


def _copied(node: ast.AST) -> str:
    """The variable that an expression is, or is a copy of."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _COPIES:
        node = node.func.value
    return node.id if isinstance(node, ast.Name) else ""


def _uses_values(node: ast.AST, names: Collection[str]) -> bool:
    """Whether an expression depends on values of variables, and not on their shape or device alone."""
    left = [node]
    while left:
        one = left.pop()
        if isinstance(one, ast.Name) and one.id in names:
            return True
        if not _is_about_shape(one):
            left += ast.iter_child_nodes(one)
    return False


def _is_about_shape(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in _METADATA
    if not isinstance(node, ast.Call):
        return False
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    return name in _ABOUT_OBJECTS or _ALLOCATED_LIKE.fullmatch(name) is not None


def _unwritten(function: ast.FunctionDef, reader: Reader) -> Iterator[Fact]:
    """Returned tensors that were allocated and are named nowhere else."""
    made = {
        name: node.lineno
        for name, node in _assignments(function)
        if isinstance(node.value, ast.Call) and _ALLOCATION.fullmatch(reader.dotted(node.value.func))
    }
    uses = [node.id for node in ast.walk(function) if isinstance(node, ast.Name) and node.id in made]
    for name in _returned_names(function):
        if name in made and uses.count(name) == 2:
            yield Fact(Kind.STATE, "unwritten-return", made[name])


def _returned_names(function: ast.FunctionDef) -> Iterable[str]:
    returns = (node for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None)
    return {root_of(node.value) for node in returns if node.value is not None}
