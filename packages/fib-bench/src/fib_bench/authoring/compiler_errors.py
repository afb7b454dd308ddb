"""The first compiler error of a build log, with its source line."""

from __future__ import annotations

import re

import attrs
from fib_schema import Evaluation, EvaluationStatus, Solution

_ERROR = re.compile(
    r"^\s*(?P<path>[^\s:()]+)(?::(?P<line>\d+)(?::(?P<column>\d+))?:|\((?P<nvcc>\d+)\):)"
    r"\s*(?:fatal )?error\s*:?\s*(?P<message>.+)"
)
_PYTHON = re.compile(r"(?P<message>\b\w*Error: .*?) ?\((?P<path>[^\s()]+), line (?P<line>\d+)\)")
_FRAME = re.compile(r"^\s*File \"(?P<path>[^\"]+)\", line (?P<line>\d+)")
_EXCEPTION = re.compile(r"^\s*(?P<message>(?:\w+\.)*\w*(?:Error|Exception)\b.*)")
_WITH_PLACE = frozenset({EvaluationStatus.COMPILE_ERROR, EvaluationStatus.RUNTIME_ERROR})
_UNTRUSTED = {"untrusted": True}
"""Metadata of fields that hold text of strangers, as `fib_agents` marks them."""
_MAX_LINES = 2000
_MAX_WIDTH = 1000
"""Characters of a line that are searched; patterns may take the square of them."""


@attrs.frozen
class CompilerError:
    """One error and where it is."""

    path: str
    line: int
    column: int | None
    message: str = attrs.field(metadata=_UNTRUSTED)
    text: str = attrs.field(metadata=_UNTRUSTED)
    """The line of the source."""

    def __str__(self) -> str:
        column = "" if self.column is None else f":{self.column}"
        number = f"{self.line:5d} | "
        lines = [f"{self.path}:{self.line}{column}: {self.message}", f"{number}{self.text}"]
        if self.column is not None and 0 < self.column <= len(self.text) + 1:
            blank = re.sub(r"[^\t]", " ", self.text[: self.column - 1])
            lines.append(f"{' ' * 5} | {blank}^")
        return "\n".join(lines)


def compiler_error_of(evaluation: Evaluation | None, solution: Solution | None) -> CompilerError | None:
    """The first error of the log of an evaluation that lies in a source of the solution; None if there is none.

    Compilers of C++ and CUDA and errors of Python are understood. Only the text of the log is read.
    """
    if solution is None or evaluation is None or evaluation.status not in _WITH_PLACE:
        return None
    texts = {source.path: source.content.splitlines() for source in solution.sources}
    frame: CompilerError | None = None
    for line in evaluation.log.splitlines()[:_MAX_LINES]:
        line = line[:_MAX_WIDTH]
        for pattern in (_ERROR, _PYTHON, _FRAME):
            if match := pattern.search(line):
                found = match.groupdict()
                number = int((found.get("line") or found.get("nvcc") or "0")[:9])
                error = _located(texts, found["path"], number, found.get("column"), found.get("message") or "")
                if error is not None and error.message:
                    return error
                frame = error or frame
        if frame is not None and (match := _EXCEPTION.match(line)):
            return attrs.evolve(frame, message=match["message"])
    return None


def _located(
    texts: dict[str, list[str]], path: str, line: int, column: str | None, message: str
) -> CompilerError | None:
    for name, lines in texts.items():
        if (path == name or path.endswith(f"/{name}")) and 0 < line <= len(lines):
            at = int(column[:6]) if column else None
            return CompilerError(name, line, at, message.strip()[:500], lines[line - 1][:500])
    return None
