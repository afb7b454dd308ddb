"""Facts about C++ and CUDA sources, found by patterns in the text without comments: no compiler runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

import attrs
from fib_schema import SourceFile, SupportedBindings

_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)|(\"(?:\\.|[^\"\\\n])*\"?)", re.S)
"""A missing end does not justify another try from the next letter: that takes the square of the length."""
_EXPORT = re.compile(r"^[ \t]*TVM_FFI_DLL_EXPORT_TYPED_FUNC\(\s*(\w+)\s*,\s*([\w:]+)?", re.M)
_PYBIND = re.compile(r"\bPYBIND11_MODULE\s*\(")
_PYBIND_FUNCTION = re.compile(r"\.def\(\s*\"(\w+)\"\s*,\s*&?\s*([\w:]+)?")
_CUTLASS = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:cutlass|cute)/", re.M)
_RETURN_TYPE = re.compile(r"\w[\w:]{0,200}[ \t\n>&*]{1,40}\Z")
_MAX_TYPE = 400
_MAX_SIGNATURE = 4000
_MAX_MATCHES = 1000
_MAX_EXPORTS = 32
"""Limit of each file; 32 candidates are ambiguous anyway, unless one is named `run`."""


@attrs.frozen
class Export:
    """A function that a native source exports."""

    name: str
    """Its name for callers."""
    path: str
    line: int
    binding: SupportedBindings | None
    """None is TVM-FFI, the default."""
    parameters: int | None
    """The number of parameters; None where the function is not found in the sources."""
    returns_value: bool | None


def exports_of(sources: Iterable[SourceFile]) -> list[Export]:
    """The functions that sources export through TVM-FFI or as an extension of PyTorch."""
    texts = {source.path: without_comments(source.content) for source in sources}
    found = []
    for path, text in texts.items():
        patterns: list[tuple[re.Pattern[str], SupportedBindings | None]] = [(_EXPORT, None)]
        if _PYBIND.search(text):
            patterns.append((_PYBIND_FUNCTION, SupportedBindings.TORCH))
        for pattern, binding in patterns:
            matches = list(islice(pattern.finditer(text), _MAX_MATCHES))
            for match in [m for m in matches if m[1] == "run"][:1] + matches[:_MAX_EXPORTS]:
                line = text.count("\n", 0, match.start()) + 1
                signature = _signature(match[2], [text[: match.start()], *texts.values()])
                found.append(Export(match[1], path, line, binding, *signature))
    return list(dict.fromkeys(found))


def uses_cutlass(sources: Iterable[SourceFile]) -> bool:
    """Whether a source includes headers of CUTLASS."""
    return any(_CUTLASS.search(without_comments(source.content)) for source in sources)


def without_comments(text: str) -> str:
    """The text with comments as blanks; the lines stay where they are."""
    return _COMMENT.sub(lambda match: match[1] or re.sub(r"[^\n]", " ", match[0]), text)


def _signature(name: str | None, texts: Iterable[str]) -> tuple[int | None, bool | None]:
    """The number of parameters of a function and whether it returns a value; None and None if it is not found.

    Of several functions of the name the last one counts, so that a method of a class above is not taken for it.
    """
    if name is None:
        return None, None
    head = re.compile(rf"\b{re.escape(name.rpartition('::')[2])}[ \t\n]{{0,40}}\(")
    for text in texts:
        for match in reversed(list(islice(head.finditer(text), _MAX_MATCHES))):
            before = _RETURN_TYPE.search(text[max(match.start() - _MAX_TYPE, 0) : match.start()])
            inside = _inside_brackets(text[match.end() : match.end() + _MAX_SIGNATURE])
            if before is not None and inside is not None:
                return len(list(_arguments(inside))), before[0].strip() != "void"
    return None, None


def _inside_brackets(text: str) -> str | None:
    """The parameters up to the bracket that closes them, if a function body follows."""
    depth = 1
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[:index] if re.match(r"[\s\w]*\{", text[index + 1 :]) else None
    return None


def _arguments(text: str) -> Iterator[str]:
    """The parameters between commas that stand in no further brackets."""
    depth, begin = 0, 0
    for index, letter in enumerate(f"{text},"):
        depth += (letter in "<([{") - (letter in ">)]}")
        if letter == "," and depth == 0:
            if part := text[begin:index].strip().removeprefix("void"):
                yield part
            begin = index + 1
