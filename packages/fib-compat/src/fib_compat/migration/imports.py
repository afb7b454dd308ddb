"""Import statements of `flashinfer_bench`, rewritten to those of the FIB packages."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
from libcst.helpers import get_full_name_for_node

from ..table import PACKAGE, Origin, names_of
from .uses import Finding, UseVisitor, is_flashinfer_bench, is_module, lookup


class ImportRewriter(cst.CSTTransformer):
    """Replaces import statements, and the attributes that a `UseVisitor` has found.

    Args:
        uses: The uses of the same program.
        is_package_init: Whether the program is an ``__init__.py``, whose star imports export names.
    """

    def __init__(self, uses: UseVisitor, *, is_package_init: bool) -> None:
        super().__init__()
        self._uses = uses
        self._is_package_init = is_package_init
        self._imported: set[tuple[object, str]] = set()
        """Scopes, each with a module that an emitted statement imports there."""
        self._top_level: tuple[cst.CSTNode, ...] = ()
        self.findings: list[Finding] = []

    def visit_Module(self, node: cst.Module) -> None:
        self._top_level = tuple(node.body)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        origin = self._uses.attributes.get(original_node)
        if origin is None:
            return updated_node
        return _dotted(f"{origin.module}.{origin.name}").with_changes(lpar=updated_node.lpar, rpar=updated_node.rpar)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        can_vanish = original_node in self._top_level and not any(line.comment for line in original_node.leading_lines)
        parts: list[cst.BaseSmallStatement] = []
        is_changed = False
        for original, updated in zip(original_node.body, updated_node.body, strict=True):
            new = self._rewritten(original, can_vanish=can_vanish)
            is_changed |= new is not None
            parts += [updated] if new is None else new
        if not is_changed:
            return updated_node
        lines = [cst.SimpleStatementLine([part.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)]) for part in parts]
        if lines:
            lines[0] = lines[0].with_changes(leading_lines=updated_node.leading_lines)
            lines[-1] = lines[-1].with_changes(trailing_whitespace=updated_node.trailing_whitespace)
        return cst.FlattenSentinel(lines)

    # -- one statement ------------------------------------------------------------------------------------

    def _rewritten(self, node: cst.BaseSmallStatement, *, can_vanish: bool) -> list[cst.BaseSmallStatement] | None:
        """The statements that replace an import of flashinfer_bench; None for all others, and where nothing changes."""
        if isinstance(node, cst.Import):
            return self._rewritten_import(node, can_vanish=can_vanish)
        if isinstance(node, cst.ImportFrom) and not node.relative and node.module is not None:
            module = get_full_name_for_node(node.module) or ""
            if is_flashinfer_bench(module):
                return self._rewritten_from(node, module)
        return None

    def _rewritten_import(self, node: cst.Import, *, can_vanish: bool) -> list[cst.BaseSmallStatement] | None:
        kept: list[cst.ImportAlias] = []
        made: list[cst.BaseSmallStatement] = []
        for alias in node.names:
            local = _local_name(alias) or PACKAGE
            if not is_flashinfer_bench(alias.evaluated_name):
                kept.append(alias)
                continue
            made += self._needed(node, local)
            if local in self._uses.kept or local not in self._uses.needed:
                kept.append(alias)
                self._find_unused(node, alias.evaluated_name, local)
        if len(kept) == len(node.names) and not made:
            return None
        if kept:
            return [*made, node.with_changes(names=_listed(kept))]
        if not made and not can_vanish:  # its modules are imported already, but a block must not become empty
            names = self._uses.needed[_local_name(node.names[0]) or PACKAGE]
            return [_import(name) for name in names]
        return made

    def _rewritten_from(self, node: cst.ImportFrom, module: str) -> list[cst.BaseSmallStatement] | None:
        if isinstance(node.names, cst.ImportStar):
            return self._rewritten_star(node, module)
        kept: list[cst.ImportAlias] = []
        moved: dict[str, list[cst.ImportAlias]] = {}
        made: list[cst.BaseSmallStatement] = []
        for alias in node.names:
            name, path = alias.evaluated_name, f"{module}.{alias.evaluated_name}"
            local = _local_name(alias) or name
            found = lookup(module, name)
            if isinstance(found, Origin):
                moved.setdefault(found.module, []).append(_renamed(alias, found.name))
                continue
            if found is None and is_module(path):
                made += self._needed(node, local)
                if local in self._uses.needed and local not in self._uses.kept:
                    continue
                self._find_unused(node, path, local)
            else:
                reason = found or "not a name of flashinfer-bench that fib-compat knows"
                self.findings.append(Finding(self._uses.lines[node], f"{path}: {reason}"))
            kept.append(alias)
        if not moved and not made:
            return None
        made += [_from(node, source, aliases) for source, aliases in moved.items()]
        return [*made, node.with_changes(names=_listed(kept, node))] if kept else made

    def _rewritten_star(self, node: cst.ImportFrom, module: str) -> list[cst.BaseSmallStatement] | None:
        if module != PACKAGE and not is_module(module) and lookup(*module.rsplit(".", 1)) is None:
            self.findings.append(Finding(self._uses.lines[node], f"{module}: no such module of flashinfer-bench"))
            return None
        known = names_of(module)
        moved: dict[str, list[cst.ImportAlias]] = {}
        for name in known:
            if not self._is_package_init and name not in self._uses.names:
                continue
            found = lookup(module, name)
            if isinstance(found, Origin):
                alias = cst.ImportAlias(cst.Name(name))
                moved.setdefault(found.module, []).append(_renamed(alias, found.name))
            elif name in self._uses.names:
                message = f"from {module} import *: {name} has no replacement: {found}"
                self.findings.append(Finding(self._uses.lines[node], message))
                return None
        if not moved:
            self.findings.append(Finding(self._uses.lines[node], f"from {module} import *: no name of it is used here"))
            return None
        return [cst.ImportFrom(_dotted(source), _listed(aliases)) for source, aliases in moved.items()]

    def _needed(self, node: cst.CSTNode, local: str) -> list[cst.BaseSmallStatement]:
        """Imports of the modules that the rewritten uses of a local name need, once in each scope."""
        scope = self._uses.scopes[node]
        new = [name for name in self._uses.needed.get(local, ()) if (scope, name) not in self._imported]
        self._imported.update((scope, name) for name in new)
        return [_import(name) for name in new]

    def _find_unused(self, node: cst.CSTNode, path: str, local: str) -> None:
        if local not in self._uses.kept and local not in self._uses.needed:
            message = f"{path} is imported but not used; importing it may enable routing and tracing"
            self.findings.append(Finding(self._uses.lines[node], message))


# -- syntax ---------------------------------------------------------------------------------------------


def _dotted(path: str) -> cst.Attribute | cst.Name:
    expression: cst.Attribute | cst.Name = cst.Name(path.partition(".")[0])
    for name in path.split(".")[1:]:
        expression = cst.Attribute(expression, cst.Name(name))
    return expression


def _local_name(alias: cst.ImportAlias) -> str | None:
    """The name after ``as``."""
    return alias.evaluated_alias


def _renamed(alias: cst.ImportAlias, name: str) -> cst.ImportAlias:
    """An alias that imports another name under the same local name."""
    old = alias.evaluated_name
    if name == old:
        return alias
    asname = alias.asname
    if asname is None and name != old:
        asname = cst.AsName(cst.Name(old))
    if asname is not None and get_full_name_for_node(asname.name) == name:
        asname = None
    return alias.with_changes(name=cst.Name(name), asname=asname)


def _import(module: str) -> cst.Import:
    return cst.Import([cst.ImportAlias(_dotted(module))])


def _from(node: cst.ImportFrom, module: str, aliases: Sequence[cst.ImportAlias]) -> cst.ImportFrom:
    """An import of names in the layout of another one."""
    return node.with_changes(module=_dotted(module), names=_listed(aliases, node))


def _listed(aliases: Sequence[cst.ImportAlias], node: cst.ImportFrom | None = None) -> list[cst.ImportAlias]:
    """A list of names whose last one ends as the last one of the statement did."""
    originals = node.names if node is not None and not isinstance(node.names, cst.ImportStar) else ()
    if not originals or node is None or node.lpar is None:
        return [*aliases[:-1], aliases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)]
    last = aliases[-1]
    if last.evaluated_name != originals[-1].evaluated_name and not _has_comment(last):
        last = last.with_changes(comma=originals[-1].comma)
    before = [a if isinstance(a.comma, cst.Comma) else a.with_changes(comma=_COMMA) for a in aliases[:-1]]
    return [*before, last]


_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def _has_comment(alias: cst.ImportAlias) -> bool:
    return isinstance(alias.comma, cst.Comma) and "#" in cst.Module([]).code_for_node(alias.comma)
