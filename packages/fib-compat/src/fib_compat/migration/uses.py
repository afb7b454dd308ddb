"""Uses of `flashinfer_bench` in a program: where its names occur outside import statements."""

from __future__ import annotations

import attrs
import libcst as cst
from libcst.metadata import PositionProvider, QualifiedNameProvider, QualifiedNameSource, ScopeProvider
from libcst.metadata.scope_provider import Scope

from ..replaced import REPLACED
from ..table import PACKAGE, Origin, has_module, names_of
from .replacements import MEMBERS, replacement


@attrs.frozen(order=True)
class Finding:
    """Something that was not rewritten."""

    line: int
    message: str


def is_flashinfer_bench(path: str) -> bool:
    """Whether a dotted path is flashinfer_bench or below it."""
    return path == PACKAGE or path.startswith(f"{PACKAGE}.")


def is_module(path: str) -> bool:
    """Whether a dotted path means a module; `flashinfer_bench.apply` is the function, as it is at run time."""
    parent, _, name = path.rpartition(".")
    return has_module(path) and not (has_module(parent) and name in names_of(parent))


def lookup(module: str, name: str) -> Origin | str | None:
    """The replacement of a name, the reason why there is none, or None if flashinfer-bench has no such name."""
    try:
        return replacement(module, name)
    except KeyError:
        return None


class UseVisitor(cst.CSTVisitor):
    """Collects the attributes to replace, the modules that they need, and what cannot be rewritten."""

    METADATA_DEPENDENCIES = (PositionProvider, QualifiedNameProvider, ScopeProvider)

    def __init__(self) -> None:
        super().__init__()
        self.attributes: dict[cst.CSTNode, Origin] = {}
        self.needed: dict[str, list[str]] = {}
        """Modules that rewritten uses need, by local name of the imported module."""
        self.kept: set[str] = set()
        """Local names of modules with a use that cannot be rewritten."""
        self.names: set[str] = set()
        """All names that the program reads, for star imports."""
        self.assigned: set[str] = set()
        self.lines: dict[cst.CSTNode, int] = {}
        """The line of each import statement."""
        self.scopes: dict[cst.CSTNode, Scope | None] = {}
        """The scope of each import statement."""
        self.findings: list[Finding] = []
        self.refusals: list[Finding] = []
        """Statements because of which the program cannot be rewritten at all."""

    def visit_SimpleStatementSuite(self, node: cst.SimpleStatementSuite) -> None:
        code = cst.Module([]).code_for_node(node)
        if any(isinstance(part, (cst.Import, cst.ImportFrom)) for part in node.body) and PACKAGE in code:
            message = "an import of flashinfer_bench behind a colon on the same line; put it on a line of its own"
            self.refusals.append(Finding(self._line(node), message))

    def visit_Import(self, node: cst.Import) -> bool:
        self._note_statement(node)
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        self._note_statement(node)
        return False

    def _note_statement(self, node: cst.CSTNode) -> None:
        self.lines[node] = self._line(node)
        self.scopes[node] = self.get_metadata(ScopeProvider, node, None)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        path = self._imported(node)
        if node.attr.value in MEMBERS:
            message = f".{node.attr.value} of an object of flashinfer-bench: {MEMBERS[node.attr.value]}"
            self.findings.append(Finding(self._line(node), message))
        if path is None:
            return True
        module, _, name = path.rpartition(".")
        found = lookup(module, name) if has_module(module) else None
        local = _first_name(node)
        if isinstance(found, Origin):
            self.attributes[node] = found
            needed = self.needed.setdefault(local, [])
            if found.module not in needed:
                needed.append(found.module)
            return False
        if isinstance(found, str):
            self._keep(node, local, f"{path}: {found}")
            return False
        if is_module(path):
            self._keep(node, local, f"{path} is used as a module object")
            return False
        if is_module(module):
            self._keep(node, local, f"{path} is not a name of flashinfer-bench that fib-compat knows")
            return False
        return True

    def visit_Name(self, node: cst.Name) -> None:
        self.names.add(node.value)
        path = self._imported(node)
        if path is not None and is_module(path):
            self._keep(node, node.value, f"{path} is used as a module object")
        elif path is None and (paths := self._paths(node)):
            self._keep(node, node.value, f"{node.value} may be {min(paths)} or another object here")

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        if isinstance(node.target, cst.Name):
            self.assigned.add(node.target.value)

    def visit_Param(self, node: cst.Param) -> None:
        self.assigned.add(node.name.value)

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        value = node.evaluated_value
        if isinstance(value, str) and (value == PACKAGE or _is_documented(value)):
            self.findings.append(Finding(self._line(node), f"the string {value!r} may name a module or an object"))
        elif isinstance(value, str) and value.isidentifier():
            self.names.add(value)  # in `__all__`, or the annotation of a class that is imported by a star

    def _keep(self, node: cst.CSTNode, local: str, message: str) -> None:
        self.kept.add(local)
        self.findings.append(Finding(self._line(node), message))

    def _imported(self, node: cst.CSTNode) -> str | None:
        """The dotted path of a name that an import of flashinfer_bench binds; None for all others."""
        ours = self._paths(node)
        return min(ours) if ours and len(ours) == len(self.get_metadata(QualifiedNameProvider, node, set())) else None

    def _paths(self, node: cst.CSTNode) -> set[str]:
        """The paths in flashinfer_bench that a name may have."""
        found = self.get_metadata(QualifiedNameProvider, node, set()) or set()
        paths = {q.name for q in found if q.source is QualifiedNameSource.IMPORT}
        return {path for path in paths if is_flashinfer_bench(path)}

    def _line(self, node: cst.CSTNode) -> int:
        return self.get_metadata(PositionProvider, node).start.line


def _first_name(node: cst.BaseExpression) -> str:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""


def _is_documented(path: str) -> bool:
    parent, _, name = path.rpartition(".")
    if has_module(path):
        return path.startswith(f"{PACKAGE}.")
    known = {*names_of(parent), *REPLACED.get(parent, {})} if has_module(parent) else set()
    return name in known
