"""Rewriting of programs: imports and attributes of `flashinfer_bench` become those of the FIB packages.

`rewrite` changes only the syntax of names whose binding is an import of `flashinfer_bench`; strings and comments stay.
A name without a replacement stays too and becomes a `Finding`.
"""

from __future__ import annotations

import attrs
import libcst as cst
from libcst.metadata import MetadataWrapper

from .imports import ImportRewriter
from .uses import Finding, UseVisitor

__all__ = ["Finding", "Rewritten", "rewrite"]


@attrs.frozen
class Rewritten:
    """The result for one program."""

    source: bytes
    findings: tuple[Finding, ...]
    """Uses that could not be rewritten, in the order of lines."""


def rewrite(source: bytes, *, is_package_init: bool = False) -> Rewritten:
    """Rewrite a program; rewriting the result again changes nothing.

    Args:
        source: Python source in the encoding that it declares.
        is_package_init: Whether it is an ``__init__.py``, whose star imports export names that it does not use.

    Raises:
        libcst.ParserSyntaxError: It is not valid Python.
    """
    if b"flashinfer_bench" not in source:
        return Rewritten(source, ())
    wrapper = MetadataWrapper(cst.parse_module(source))
    uses = UseVisitor()
    wrapper.visit(uses)
    rewriter = ImportRewriter(uses, is_package_init=is_package_init)
    needed = {name.partition(".")[0] for names in uses.needed.values() for name in names}
    if taken := sorted(needed & uses.assigned):
        message = f"the program assigns {', '.join(taken)}, which the result would import"
        uses.refusals.append(Finding(1, message))
    if uses.refusals:
        return Rewritten(source, tuple(uses.refusals))
    module = wrapper.module.visit(rewriter)
    findings = sorted({*uses.findings, *rewriter.findings})
    return Rewritten(module.bytes, tuple(findings))
