"""Facts of single nodes of Python sources, which triage rules name. Nothing is imported or run."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum

import attrs

_LOOKUPS = frozenset({"get", "setdefault", "pop", "__getitem__", "__contains__", "add", "index", "append"})
_BUILTINS = frozenset(dir(builtins))
_OWN_CLASS = frozenset({"__class__", "__dict__"})
"""Attributes of ``self`` that texts of objects read."""
_MISSING_IMPORT = frozenset({"ImportError", "ModuleNotFoundError"})
_HUGE = 2**36
_MAX_PARTS = 40
"""Limit of the parts of a dotted name; a longer name would take time quadratic in its length."""
_HIDDEN = re.compile("[\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


class Kind(StrEnum):
    """The kinds of facts; a rule has a field of each kind, with patterns."""

    NAME = "names"
    """A dotted name, with aliases of imports resolved: ``torch.cuda.Event``."""
    ASSIGN = "assigns"
    """A dotted name of an imported module that is assigned to, also by ``setattr`` or at a key."""
    SWITCH = "switches"
    """A name as in `ASSIGN`, but not where False or the earlier value of the same name is assigned."""
    ATTRIBUTE = "attributes"
    """An attribute of anything."""
    STRING = "strings"
    BASE = "bases"
    """A base of a class."""
    DEFINE = "defines"
    """A function or method."""
    KEY = "keys"
    """A function or attribute in the key of a lookup."""
    RETURN = "returns"
    """A function whose result is returned directly, as the result of the entry function if that is known."""
    STATE = "states"
    """A property of the whole function, such as ``counter``."""


@attrs.frozen
class Fact:
    """One construct."""

    kind: Kind
    text: str
    line: int


def hidden_characters(text: str) -> Iterator[Fact]:
    """Invisible characters and overrides of direction, in any language."""
    for number, line in enumerate(text.splitlines(), 1):
        if _HIDDEN.search(line):
            yield Fact(Kind.STATE, "hidden-character", number)


def aliases_of(module: ast.Module) -> dict[str, str]:
    """Local names of modules and of what is imported from them, also by assignments of dotted names."""
    aliases: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                aliases[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    imported = {value.partition(".")[0] for value in aliases.values()}
    for node in ast.walk(module):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = _dotted(node.value, aliases)
            if name and name.partition(".")[0] in imported:
                aliases.setdefault(node.targets[0].id, name)
    return aliases


def _dotted(node: ast.AST, aliases: Mapping[str, str]) -> str:
    """The dotted name of an expression, or an empty text; ``getattr(x, "y")`` and ``__import__("x")`` count."""
    parts: list[str] = []
    while len(parts) < _MAX_PARTS:
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Name):
            return ".".join((aliases.get(node.id, node.id), *reversed(parts)))
        elif isinstance(node, ast.Call) and (found := _by_name(node, aliases)) is not None:
            base, name = found
            if base is None:
                return ".".join((name, *reversed(parts)))
            parts.append(name)
            node = base
        else:
            return ""
    return ""


def _by_name(node: ast.Call, aliases: Mapping[str, str]) -> tuple[ast.AST | None, str] | None:
    """The object (None for a module) and the constant name of a lookup by a call."""
    function = aliases.get(node.func.id, node.func.id) if isinstance(node.func, ast.Name) else ""
    if isinstance(node.func, ast.Attribute) and node.func.attr == "import_module":
        function = "__import__"
    if function in {"__import__", "importlib.import_module"} and node.args and (name := _text_of(node.args[0])):
        return None, name
    if function == "getattr" and len(node.args) >= 2 and (name := _text_of(node.args[1])):
        return node.args[0], name
    return None


def _text_of(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _variable_of_environment(key: ast.AST) -> str:
    """A variable of the environment as a dotted name, without the last part where it is known at run time only."""
    name = _text_of(key)
    return f"os.environ.{name}" if name else "os.environ"


def bound_names(module: ast.Module) -> frozenset[str]:
    """Names of variables, parameters, functions and classes anywhere in a module, without those of builtins."""
    names = {node.id for node in ast.walk(module) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.arg for node in ast.walk(module) if isinstance(node, ast.arg)}
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    names |= {node.name for node in ast.walk(module) if isinstance(node, definitions)}
    return frozenset(names - _BUILTINS)


@attrs.frozen
class Reader:
    """Facts of single nodes.

    Args:
        aliases: See `aliases_of`.
        bound: See `bound_names`. A variable `gc` that is not imported is not a module.
    """

    aliases: Mapping[str, str]
    bound: frozenset[str] = frozenset()
    imported: frozenset[str] = attrs.field(init=False)

    @imported.default
    def _values(self) -> frozenset[str]:
        return frozenset(self.aliases.values())

    def dotted(self, node: ast.AST) -> str:
        """The dotted name of an expression."""
        return _dotted(node, self.aliases)

    def read(self, node: ast.AST) -> Iterator[Fact]:
        """The facts of a node itself, not of those below it."""
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            yield from (Fact(Kind.NAME, alias.name, line) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (Fact(Kind.NAME, f"{node.module}.{alias.name}", line) for alias in node.names)
        elif isinstance(node, ast.Name | ast.Attribute):
            yield from self._reference(node, line)
        elif isinstance(node, ast.Constant):
            yield from self._constant(node, line)
        elif isinstance(node, ast.ClassDef):
            yield from (Fact(Kind.BASE, name, line) for base in node.bases if (name := self.dotted(base)))
            yield from self._assigned_methods(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Fact(Kind.DEFINE, node.name, line)
        elif isinstance(node, ast.Call):
            yield from self._call(node, line)
        elif isinstance(node, ast.Subscript):
            yield from self.read_key(node.slice, line)
            if isinstance(node.ctx, ast.Store | ast.Del) and self._is_imported(node.value):
                name = self.dotted(node.value)
                is_environment = name == "os.environ" and isinstance(node.ctx, ast.Store)
                yield Fact(Kind.ASSIGN, _variable_of_environment(node.slice) if is_environment else name, line)
        elif isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            yield from self.read_key(node.left, line)
        elif isinstance(node, ast.While) and _is_endless(node):
            yield Fact(Kind.STATE, "endless-loop", line)
        elif isinstance(node, ast.Assign):
            yield from self._assign(node, line)
        elif isinstance(node, ast.ExceptHandler) and _swallows(node):
            yield Fact(Kind.STATE, "swallowed-error", line)
        elif isinstance(node, ast.BinOp) and _is_huge(node):
            yield Fact(Kind.STATE, "huge-number", line)

    def _reference(self, node: ast.Name | ast.Attribute, line: int) -> Iterator[Fact]:
        name, root = self.dotted(node), root_of(node)
        if name and (root in self.aliases or root not in self.bound):
            yield Fact(Kind.NAME, name, line)
        if isinstance(node, ast.Attribute):
            if not (node.attr in _OWN_CLASS and root == "self" and isinstance(node.ctx, ast.Load)):
                yield Fact(Kind.ATTRIBUTE, node.attr, line)
            if isinstance(node.ctx, ast.Store | ast.Del) and self._is_imported(node.value):
                yield Fact(Kind.ASSIGN, name, line)

    def _is_imported(self, node: ast.AST) -> bool:
        parts = self.dotted(node).split(".")
        return any(".".join(parts[:count]) in self.imported for count in range(1, len(parts) + 1))

    def _assign(self, node: ast.Assign, line: int) -> Iterator[Fact]:
        if _assigns_method(node):
            yield Fact(Kind.STATE, "assigned-method", line)
        for part in (part for target in node.targets for part in ast.walk(target)):
            if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                name = self.dotted(part)
                if name and not _is_false(node.value) and self.dotted(node.value) != name:
                    yield Fact(Kind.SWITCH, name, line)

    def _constant(self, node: ast.Constant, line: int) -> Iterator[Fact]:
        if isinstance(node.value, str):
            yield Fact(Kind.STRING, node.value, line)
        elif isinstance(node.value, int) and abs(node.value) >= _HUGE and node.value & (node.value + 1):
            yield Fact(Kind.STATE, "huge-number", line)

    def _assigned_methods(self, node: ast.ClassDef) -> Iterator[Fact]:
        for statement in node.body:
            if isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Name) and target.id.startswith("__"):
                        yield Fact(Kind.DEFINE, target.id, statement.lineno)

    def _call(self, node: ast.Call, line: int) -> Iterator[Fact]:
        function = self.dotted(node.func)
        if name := self.dotted(node):
            yield Fact(Kind.NAME, name, line)
        if function == "os.environ.setdefault" and node.args:
            yield Fact(Kind.ASSIGN, _variable_of_environment(node.args[0]), line)
        if function == "torch.library.Library" and not (node.args and _text_of(node.args[0])):
            yield Fact(Kind.STATE, "dynamic-namespace", line)
        if function in {"getattr", "setattr", "delattr", "hasattr"} and len(node.args) >= 2:
            given = node.args[1]
            if not (isinstance(given, ast.Constant) and isinstance(given.value, str)):
                yield Fact(Kind.STATE, "dynamic-name", line)
            else:
                yield Fact(Kind.ATTRIBUTE, given.value, line)
                if function != "getattr" and function != "hasattr" and self._is_imported(node.args[0]):
                    name = f"{self.dotted(node.args[0])}.{given.value}"
                    yield Fact(Kind.ASSIGN, name, line)
                    if not _is_false(node.args[-1]):
                        yield Fact(Kind.SWITCH, name, line)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _LOOKUPS and node.args:
            yield from self.read_key(node.args[0], line)

    def read_key(self, key: ast.AST, line: int) -> Iterator[Fact]:
        """Functions and attributes in the key of a lookup."""
        for node in ast.walk(key):
            if isinstance(node, ast.Call):
                if isinstance(node.func, ast.Attribute):
                    yield Fact(Kind.KEY, node.func.attr, line)
                elif isinstance(node.func, ast.Name):
                    yield Fact(Kind.KEY, node.func.id, line)
            elif isinstance(node, ast.Attribute):
                yield Fact(Kind.KEY, node.attr, line)


def _is_endless(node: ast.While) -> bool:
    is_true = isinstance(node.test, ast.Constant) and bool(node.test.value)
    return is_true and not any(isinstance(child, ast.Break | ast.Return) for child in ast.walk(node))


def _assigns_method(node: ast.Assign) -> bool:
    """Whether a function is assigned to an attribute of an object, but not to one of the object of a class itself."""
    targets = [target for target in node.targets if isinstance(target, ast.Attribute) and root_of(target) != "self"]
    return bool(targets) and isinstance(node.value, ast.Lambda)


def _swallows(node: ast.ExceptHandler) -> bool:
    """Whether a handler does nothing. A library that is missing may be ignored."""
    is_optional = isinstance(node.type, ast.Name) and node.type.id in _MISSING_IMPORT
    return not is_optional and all(isinstance(one, ast.Pass | ast.Continue) for one in node.body)


def _is_false(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def _is_huge(node: ast.BinOp) -> bool:
    """Whether a shift or power of two constants is larger than any size of a kernel's tensor."""
    left, right = node.left, node.right
    if not (isinstance(left, ast.Constant) and isinstance(right, ast.Constant)):
        return False
    if not (isinstance(left.value, int) and isinstance(right.value, int) and 0 < right.value < 4096):
        return False
    bits = left.value.bit_length()
    if isinstance(node.op, ast.LShift):
        return _HUGE.bit_length() <= bits + right.value < 63
    return isinstance(node.op, ast.Pow) and _HUGE.bit_length() <= (bits - 1) * right.value < 63


def root_of(node: ast.AST) -> str:
    """The variable at the start of an expression such as ``kept["y"].z``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
