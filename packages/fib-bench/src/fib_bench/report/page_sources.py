"""Source code for the report page, split into tokens for highlighting.

The page inserts tokens as text; nothing here is markup. The size of all sources is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fib_schema import FibError, Solution, TraceSet

_MAX_CHARACTERS = 2_000_000
_MOST_OF_FILE = 60_000
_CLASSES = {"Keyword": "k", "Literal.String": "s", "Comment": "c", "Literal.Number": "n", "Name.Function": "f"}
"""CSS classes by the beginning of a token type of Pygments; other tokens are plain."""
_LEFT_OUT = "[left out: this page holds no more source code]"

Tokens = list[str]
"""A class and a text, in turns."""


class SourcePages:
    """Splits sources of a data set into tokens, up to a total size.

    Args:
        trace_set: The data set; files that are missing or invalid are left out.
        characters: How many characters of source to keep.
    """

    def __init__(self, trace_set: TraceSet, characters: int = _MAX_CHARACTERS) -> None:
        self._trace_set = trace_set
        self._left = characters

    def of(self, definition: str, solutions: Iterable[str]) -> list[dict[str, Any]]:
        """The reference of a definition and the files of its solutions: a name, the language, paths with tokens."""
        found = list(self._reference(definition))
        for name in solutions:
            if (solution := self._solution(name)) is not None:
                files = [[file.path, self._tokens(file.path, file.content)] for file in solution.sources]
                found.append({"name": name, "language": str(solution.spec.language), "files": files})
        return found

    def _reference(self, name: str) -> Iterator[dict[str, Any]]:
        try:
            definition = self._trace_set.get_definition(name)
        except (KeyError, FibError):
            return
        if definition is not None:
            path = "reference.py"
            files = [[path, self._tokens(path, definition.reference)]]
            yield {"name": "reference", "language": "python", "files": files}

    def _solution(self, name: str) -> Solution | None:
        try:
            return self._trace_set.get_solution(name)
        except FibError:
            return None

    def _tokens(self, path: str, text: str) -> Tokens:
        kept = text[:_MOST_OF_FILE]
        if self._left < len(kept):
            return ["c", _LEFT_OUT]
        self._left -= len(kept)
        tokens = _split(path, kept)
        return tokens if kept == text else [*tokens, "c", f"\n[... {len(text) - len(kept)} characters are left out]"]


def _split(path: str, text: str) -> Tokens:
    from pygments.lexers import get_lexer_for_filename  # 30 ms
    from pygments.lexers.special import TextLexer
    from pygments.util import ClassNotFound

    try:
        lexer = get_lexer_for_filename(path, stripnl=False, ensurenl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False, ensurenl=False)
    tokens: Tokens = []
    for kind, word in lexer.get_tokens(text):
        name = str(kind).removeprefix("Token.")
        shown = next((css for begin, css in _CLASSES.items() if name.startswith(begin)), "")
        if tokens and tokens[-2] == shown:
            tokens[-1] += word
        else:
            tokens += [shown, word]
    return tokens
