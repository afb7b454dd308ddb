"""Static triage: constructs of known exploits in sources, found by rules. Nothing is imported or run.

A rule of `triage_rules.toml` has an `id`, `why` in words, a `level`, and any of these lists:

- the kinds of `Kind` for Python: patterns of names with ``*`` (`fnmatch`), regular expressions for `strings`;
  a pattern of a name stands for everything below it, too: ``socket`` for ``socket.socket``;
- `native`: regular expressions for C++ and CUDA without comments, also for such code in strings of Python;
- `except`: names, also with ``*``, that do not count;
- `unless`: words that make a source harmless for this rule wherever they stand in it, such as ``join`` for a thread.
"""

from __future__ import annotations

import ast
import builtins
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from itertools import islice
from typing import Any

import attrs
from fib_bench.authoring.inference import without_comments
from fib_bench.authoring.sources import KernelFileError, parse
from fib_schema import Definition, InvalidField, Solution, SourceFile
from fib_schema.display import escape_line

from .results import untrusted

FORBIDDEN, SUSPICIOUS, NOTE = "forbidden", "suspicious", "note"
_MAX_FINDINGS = 200
"""Limit of each rule in one file."""
_MAX_CHARS = 300_000
"""Limit of one file; patterns take more than linear time on sources that are made for it."""
_MAX_SHOWN = 160
_LOOKS_NATIVE = re.compile(r"#\s*include|__global__|extern\s+\"C\"|TVM_FFI|PYBIND11|\basm\b")
_LOOKUPS = frozenset({"get", "setdefault", "pop", "__getitem__", "__contains__", "index"})
_BUILTINS = frozenset(dir(builtins))
_OWN_CLASS = frozenset({"__class__", "__dict__"})
"""Attributes of ``self`` that texts of objects read."""
_MISSING_IMPORT = frozenset({"ImportError", "ModuleNotFoundError"})
_MAX_PARTS = 40
"""Limit of the parts of a dotted name; a longer name would take time quadratic in its length."""
_HIDDEN = re.compile("[\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


# -- rules -----------------------------------------------------------------------------------------


@attrs.frozen
class Rule:
    """One rule."""

    id: str
    why: str
    level: str = SUSPICIOUS
    patterns: dict[Kind, tuple[str, ...]] = attrs.Factory(dict)
    native: tuple[re.Pattern[str], ...] = ()
    strings: tuple[re.Pattern[str], ...] = ()
    excepted: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()

    def matches(self, fact: Fact) -> bool:
        """Whether a fact is one that the rule names."""
        if fact.kind is Kind.STRING:
            return any(pattern.search(fact.text) for pattern in self.strings)
        patterns = self.patterns.get(fact.kind, ())
        below = fact.kind is Kind.NAME
        if not any(fnmatchcase(fact.text, one) or (below and fnmatchcase(fact.text, f"{one}.*")) for one in patterns):
            return False
        return not any(fnmatchcase(fact.text, pattern) for pattern in self.excepted)

    def is_harmless_in(self, code: str) -> bool:
        """Whether the code of a source, without comments, has a word of `unless`."""
        return any(re.search(rf"\b{re.escape(word)}\b", code) for word in self.unless)


@attrs.frozen
class Finding:
    """A construct in a source that a rule names."""

    rule: str
    level: str
    """``forbidden``, ``suspicious`` or ``note``."""
    path: str
    line: int
    why: str
    text: str = untrusted()
    """The line of the source, shortened."""

    def describe(self) -> str:
        """The finding in one line; the source is left out."""
        return escape_line(f"{self.level}: {self.path}:{self.line}: {self.why} ({self.rule})")


@cache
def load_rules() -> tuple[Rule, ...]:
    """The rules of this version."""
    text = resources.files(__package__).joinpath("triage_rules.toml").read_text("utf-8")
    return tuple(map(_rule, tomllib.loads(text)["rule"]))


def triage(solution: Solution, definition: Definition | None = None) -> list[Finding]:
    """The findings in all sources of a solution, by file and line; nothing of it runs.

    What a definition forbids has the form of a rule, in ``extra["forbids"]``: the ``names`` of libraries, for example.
    """
    rules = load_rules()
    if definition is not None and (stated := forbidden_by(definition)):
        rules += (_rule({**stated, "id": "forbids", "why": "the definition forbids it", "level": FORBIDDEN}),)
    found = [finding for source in solution.sources for finding in _findings(source, rules)]
    return sorted(dict.fromkeys(found), key=lambda finding: (finding.path, finding.line, finding.rule))


def forbidden_by(definition: Definition) -> Mapping[str, Sequence[str]]:
    """The constructs that a definition forbids, as lists of a rule; `InvalidField` if it does not have this form."""
    from jsonschema import Draft202012Validator, FormatChecker

    stated: Any = (definition.extra or dict[str, Any]()).get("forbids") or {}
    texts, lists = {"type": "array", "items": {"type": "string"}}, (*Kind, "except", "unless")
    patterns = {"type": "array", "items": {"type": "string", "format": "regex"}}
    known = dict.fromkeys(lists, texts) | dict.fromkeys(("native", "strings"), patterns)
    schema = {"type": "object", "properties": known, "additionalProperties": False}
    for error in Draft202012Validator(schema, format_checker=FormatChecker(["regex"])).iter_errors(stated):
        where = f"definition {definition.name!r}: extra.forbids{error.json_path[1:]}"
        raise InvalidField(where, f"{error.message}; its owner has to mend it")
    return dict(stated)


def _rule(data: Mapping[str, object]) -> Rule:
    lists = {name: tuple(map(str, value)) for name, value in data.items() if isinstance(value, list)}
    return Rule(
        id=str(data["id"]),
        why=str(data["why"]),
        level=str(data.get("level", SUSPICIOUS)),
        patterns={kind: lists[kind] for kind in Kind if kind in lists and kind is not Kind.STRING},
        native=tuple(map(re.compile, lists.get("native", ()))),
        strings=tuple(map(re.compile, lists.get("strings", ()))),
        excepted=lists.get("except", ()),
        unless=lists.get("unless", ()),
    )


def _findings(source: SourceFile, rules: Iterable[Rule]) -> Iterator[Finding]:
    if len(source.content) > _MAX_CHARS:
        why = f"is not read: it has {len(source.content)} characters, and at most {_MAX_CHARS} are read"
        level = FORBIDDEN if any(rule.level == FORBIDDEN for rule in rules) else NOTE
        yield Finding("not-read", level, source.path, 1, why, "")
        return
    lines = source.content.splitlines()
    facts = list(hidden_characters(source.content))
    native: list[tuple[int, str]] = []
    if source.path.endswith(".py"):
        try:
            facts += facts_of(parse(source))
        except KernelFileError:
            return  # `check_source` reports it, and it cannot run
        native = [(one.line, one.text) for one in facts if one.kind is Kind.STRING and _LOOKS_NATIVE.search(one.text)]
    else:
        native = [(1, source.content)]
    code = _code_of(source, facts)
    for rule in rules:
        if rule.is_harmless_in(code):
            continue
        matched = [fact.line for fact in facts if rule.matches(fact)]
        matched += [line for first, text in native for line in _native_lines(rule, first, text)]
        for line in islice(dict.fromkeys(matched), _MAX_FINDINGS):
            text = lines[line - 1].strip()[:_MAX_SHOWN] if 0 < line <= len(lines) else ""
            yield Finding(rule.id, rule.level, source.path, line, rule.why, text)


def _code_of(source: SourceFile, facts: Iterable[Fact]) -> str:
    """The names and attributes of Python, or the text of C++ and CUDA without comments."""
    if not source.path.endswith(".py"):
        return without_comments(source.content)
    words = {Kind.NAME, Kind.ATTRIBUTE, Kind.STRING}
    return "\n".join(fact.text for fact in facts if fact.kind in words)


def _native_lines(rule: Rule, first: int, text: str) -> Iterable[int]:
    code = without_comments(text)
    matches = [match for pattern in rule.native for match in islice(pattern.finditer(code), _MAX_FINDINGS)]
    return [first + code.count("\n", 0, match.start()) for match in matches]


def first_findings(solution: Solution, definition: Definition) -> tuple[Finding, ...]:
    """The findings, one for each rule and file, at its first line."""
    first: dict[tuple[str, str], Finding] = {}
    for one in triage(solution, definition):
        first.setdefault((one.rule, one.path), one)
    return tuple(first.values())


def is_suspicious(findings: Sequence[Finding]) -> bool:
    """Whether any finding is more than a note."""
    return any(finding.level != NOTE for finding in findings)


# -- facts of single nodes -------------------------------------------------------------------------


class Kind(StrEnum):
    """The kinds of facts; a rule has a field of each kind, with patterns."""

    NAME = "names"
    """A dotted name, with aliases of imports resolved: ``torch.cuda.Event``."""
    ASSIGN = "assigns"
    """A dotted name of an imported module that is assigned to, also by ``setattr`` or at a key."""
    ATTRIBUTE = "attributes"
    """An attribute of anything."""
    STRING = "strings"
    BASE = "bases"
    """A base of a class."""
    DEFINE = "defines"
    """A function or method."""
    KEY = "keys"
    """A function or attribute in the key of a lookup."""
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
                root = alias.name.partition(".")[0]
                aliases[alias.asname or root] = alias.name if alias.asname else root
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
    """Facts of single nodes."""

    aliases: Mapping[str, str]
    bound: frozenset[str] = frozenset()
    imported: frozenset[str] = attrs.Factory(lambda self: frozenset(self.aliases.values()), takes_self=True)

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
        elif text := _text_of(node):
            yield Fact(Kind.STRING, text, line)
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
        elif isinstance(node, ast.Assign) and _assigns_method(node):
            yield Fact(Kind.STATE, "assigned-method", line)
        elif isinstance(node, ast.ExceptHandler) and _swallows(node):
            yield Fact(Kind.STATE, "swallowed-error", line)

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
        if function == "__import__" and not (node.args and _text_of(node.args[0])):
            yield Fact(Kind.STATE, "dynamic-name", line)
        if function == "torch.library.Library" and not (node.args and _text_of(node.args[0])):
            yield Fact(Kind.STATE, "dynamic-namespace", line)
        if function in {"getattr", "setattr", "delattr", "hasattr"} and len(node.args) >= 2:
            given = node.args[1]
            if not (isinstance(given, ast.Constant) and isinstance(given.value, str)):
                yield Fact(Kind.STATE, "dynamic-name", line)
            else:
                yield Fact(Kind.ATTRIBUTE, given.value, line)
                if function != "getattr" and function != "hasattr" and self._is_imported(node.args[0]):
                    yield Fact(Kind.ASSIGN, f"{self.dotted(node.args[0])}.{given.value}", line)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _LOOKUPS and node.args:
            yield from self.read_key(node.args[0], line)

    def read_key(self, key: ast.AST, line: int) -> Iterator[Fact]:
        """Functions and attributes in the key of a lookup."""
        for node in ast.walk(key):
            if isinstance(node, ast.Attribute):
                yield Fact(Kind.KEY, node.attr, line)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield Fact(Kind.KEY, node.func.id, line)


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


def root_of(node: ast.AST) -> str:
    """The variable at the start of an expression such as ``kept["y"].z``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


# -- facts of modules ------------------------------------------------------------------------------


def facts_of(module: ast.Module) -> list[Fact]:
    """The facts of a module."""
    module = _without_program(module)
    reader = Reader(aliases_of(module), bound_names(module))
    looked_up = dict(_looked_up_names(module))
    facts = [Fact(Kind.NAME, key.value, key.lineno) for key in looked_up.values()]
    return facts + [fact for node in ast.walk(module) if node not in looked_up for fact in reader.read(node)]


def _without_program(module: ast.Module) -> ast.Module:
    """The module without ``if __name__ == "__main__"``, which does not run here, and functions that only it names."""
    if any(isinstance(n, ast.Name) and n.id == "__name__" and isinstance(n.ctx, ast.Store) for n in ast.walk(module)):
        return module
    programs = [node for node in module.body if isinstance(node, ast.If) and _is_program(node.test)]
    others = [node for node in module.body if node not in programs]
    named = set(_named(programs)) - set(_named(others))
    kept = [node for node in others if not (isinstance(node, ast.FunctionDef) and node.name in named)]
    return ast.Module([*kept, *(one for node in programs for one in node.orelse)], module.type_ignores)


def _is_program(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and ast.unparse(test) in ("__name__ == '__main__'", "'__main__' == __name__")


def _looked_up_names(module: ast.Module) -> Iterator[tuple[ast.AST, Any]]:
    """The names in ``globals()["name"]``, which count as the name itself, with their constants."""
    for node in ast.walk(module):
        call = node.value if isinstance(node, ast.Subscript) and _text_of(node.slice) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "globals":
            yield call.func, node.slice  # type: ignore[attr-defined]


def _named(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """Names of variables and attributes, and texts, which may name something too."""
    for node in (node for statement in statements for node in ast.walk(statement)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif text := _text_of(node):
            yield text
