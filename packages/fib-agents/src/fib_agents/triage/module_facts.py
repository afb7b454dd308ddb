"""Facts of whole Python modules and functions: state that outlives a call, writes into inputs, returned constants."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator

import attrs

from .facts import Fact, Kind, Reader, aliases_of, root_of

_IN_PLACE = re.compile(r"(?!requires_grad_$)[a-z]\w*[a-z0-9]_")
"""Methods of tensors that write into the tensor."""
_ALLOCATION = re.compile(r"torch\.(empty|zeros|ones|full)\w*|\w+\.new_(empty|zeros|ones|full)\w*")
_ALLOCATED_LIKE = re.compile(r"(empty|zeros|ones|full|rand\w*)_like|new_\w+")
_COPIES = frozenset({"clone", "contiguous", "detach", "to", "view", "reshape"})
_METADATA = frozenset(
    {"shape", "device", "dtype", "stride", "size", "numel", "is_cuda", "ndim", "dim", "is_contiguous", "element_size"}
)
_ABOUT_OBJECTS = frozenset({"len", "type", "isinstance"})


@attrs.frozen
class Signature:
    """The entry function of a solution, as far as it is known.

    Args:
        name: Its name.
        inputs: The number of leading parameters that are inputs.
        has_outputs: Whether outputs are parameters, too.
    """

    name: str
    inputs: int
    has_outputs: bool


def facts_of(module: ast.Module, entry: Signature | None = None) -> list[Fact]:
    """The facts of a module.

    Args:
        module: The parsed source.
        entry: The entry function, for facts about its parameters.
    """
    reader = Reader(aliases_of(module))
    facts = [fact for node in ast.walk(module) for fact in reader.read(node)]
    variables, deciding = _variables_of(module), _deciding_names(module)
    for function in _functions(module):
        facts += _state_facts(function, variables, deciding, reader)
        if entry is not None and function.name == entry.name:
            facts += _entry_facts(function, entry, variables, reader)
    return facts


# -- state that outlives a call -------------------------------------------------------------------


def _state_facts(
    function: ast.FunctionDef, variables: Collection[str], deciding: Collection[str], reader: Reader
) -> Iterator[Fact]:
    """Counters of calls, keys that got a name before the lookup, and results that are kept in the module."""
    shared = _shared_names(function)
    kept = (set(variables) | shared) - (_assigned_names(function) - shared)
    keys = _named_keys(function, reader)
    for node in ast.walk(function):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
            name = root_of(node.target)
            if name in kept and name in deciding:
                yield Fact(Kind.STATE, "counter", node.lineno)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name):
            yield from (Fact(Kind.KEY, key, node.lineno) for key in keys.get(node.slice.id, ()))
        elif isinstance(node, ast.Return) and node.value is not None and root_of(node.value) in kept:
            yield Fact(Kind.STATE, "kept-return", node.lineno)


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


def _named_keys(function: ast.FunctionDef, reader: Reader) -> dict[str, list[str]]:
    """By local variable: functions and attributes in the expression that it was assigned."""
    found: dict[str, list[str]] = {}
    for name, node in _assignments(function):
        found.setdefault(name, []).extend(fact.text for fact in reader.read_key(node.value, node.lineno))
    return found


# -- the entry function ---------------------------------------------------------------------------


def _entry_facts(
    function: ast.FunctionDef, entry: Signature, variables: Collection[str], reader: Reader
) -> Iterator[Fact]:
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
        elif isinstance(node, ast.Assign) and _keeps(node, variables) and _uses_values(node.value, inputs):
            yield Fact(Kind.STATE, "kept-values", node.lineno)
    used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    if entry.has_outputs and outputs and not used & set(outputs):
        yield Fact(Kind.STATE, "writes-nothing", function.lineno)
    yield from _unwritten(function, reader)


def _writes_into(node: ast.AST, names: Collection[str]) -> bool:
    """Whether a node is an in-place method of a variable, or assigns to its elements."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _IN_PLACE.fullmatch(node.func.attr) is not None and root_of(node.func.value) in names
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and root_of(node) in names


def _keeps(node: ast.Assign, variables: Collection[str]) -> bool:
    """Whether an element of a variable of the module is assigned."""
    return any(isinstance(target, ast.Subscript) and root_of(target) in variables for target in node.targets)


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
