"""Command-line parser. Usage errors that all command lines of FIB share: one message, a suggestion, and where help is.

`CommandParser` takes the place of `argparse.ArgumentParser`; the parsers of sub-commands are of the same class.
"""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import NoReturn

from .command import FAILED

_LIKE = 0.6
"""The similarity of a suggestion, as `difflib` measures it."""
_INVALID_CHOICE = re.compile(r"argument (?P<name>.+?): invalid choice: '(?P<word>.*)' \(choose from .*\)", re.DOTALL)
_INVALID_NUMBER = re.compile(
    r"(?P<argument>argument .+?): invalid (?P<kind>int|float) value: (?P<word>'.*')", re.DOTALL
)
_ROW = re.compile(r"\S+(?: \S+)* {2,}(?=\S)")
"""The first cell of a table's row, and the space behind it."""
_MISSING = re.compile(r"the following arguments are required: (?P<names>.+)")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of descriptions, but wraps paragraphs that are wider than the terminal; never examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks = super()._fill_text(text, width, indent).split("\n\n")
        return "\n\n".join(_wrapped(block, width, indent) for block in blocks)


class CommandParser(argparse.ArgumentParser):
    """A parser whose usage errors name the problem and similar options or commands, without the whole usage."""

    def parse_known_args(  # type: ignore[override]  # the stubs declare overloads by the type of the namespace
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse arguments and reject unknown ones here, where the options of the sub-command are known."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(_unknown_arguments(unknown, self._option_strings()))
        return found, unknown

    def format_help(self) -> str:
        """The help text, with descriptions that fit the terminal."""
        if self.formatter_class is argparse.RawDescriptionHelpFormatter:
            self.formatter_class = HelpFormatter
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Print a message with its remedy on stderr and exit with `FAILED`."""
        if invalid := _INVALID_CHOICE.fullmatch(message):
            message = self._explain_choice(invalid["name"], invalid["word"])
        elif number := _INVALID_NUMBER.fullmatch(message):
            kind = "whole number" if number["kind"] == "int" else "number"
            message = f"{number['argument']}: {number['word']} is not a {kind}"
        elif missing := _MISSING.fullmatch(message):
            message += self._commands_named(missing["names"])
        self.exit(FAILED, f"{self.prog}: {message} (help: {self.prog} --help)\n")

    def _explain_choice(self, name: str, word: str) -> str:
        """The message about a word that is none of the choices of an argument."""
        for action in self._actions:
            if action.choices is not None and name in ("/".join(action.option_strings), action.metavar, action.dest):
                choices = [str(choice) for choice in action.choices]
                problem, longer = f"argument {name}: invalid choice {word!r}", []
                if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - it has no public name
                    problem, longer = f"unknown command {word!r}", _commands_with(word, action)
                if longer:
                    return f"{problem}; did you mean {' or '.join(longer)}?"
                return problem + (_suggestion(word, choices) or f"; choose from {', '.join(choices)}")
        return f"argument {name}: invalid choice {word!r}"

    def _commands_named(self, name: str) -> str:
        """The choices of a missing sub-command, if it is the only missing argument."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and action.metavar == name:  # noqa: SLF001 - as above
                return f"; choose from {', '.join(action.choices)}"
        return ""

    def _option_strings(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]


def _commands_with(word: str, commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> list[str]:
    """The commands that have a sub-command of a name, each with it."""
    found = []
    for name, parser in commands.choices.items():
        for action in parser._actions:  # noqa: SLF001 - argparse has no public access
            if isinstance(action, argparse._SubParsersAction) and word in action.choices:  # noqa: SLF001 - as above
                found.append(f"{name} {word}")
    return found


def _unknown_arguments(unknown: Sequence[str], options: Iterable[str]) -> str:
    """The message about arguments that a parser does not take."""
    known = list(options)
    flags = [word.partition("=")[0] for word in unknown if word.startswith("-")] or list(unknown)
    kind = "option" if flags[0].startswith("-") else "argument"
    shown = ", ".join(map(repr, flags))
    likely = "".join(dict.fromkeys(_suggestion(flag, known) for flag in flags if flag.startswith("--")))
    return f"unknown {kind}{'s' if len(flags) > 1 else ''} {shown}{likely}"


def _suggestion(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, 2, _LIKE)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _wrapped(block: str, width: int, indent: str) -> str:
    """A paragraph with lines of at most this width; a block with indented lines as it is; a table with its columns."""
    lines = [line.removeprefix(indent) for line in block.split("\n")]
    if max(map(len, lines)) + len(indent) <= width or any(line.startswith(" ") for line in lines):
        return block
    rows = [_ROW.match(line) for line in lines]
    if all(rows):
        return "\n".join(_filled(line, width, indent, row.end()) for line, row in zip(lines, rows, strict=True) if row)
    return _filled(" ".join(lines), width, indent)


def _filled(text: str, width: int, indent: str, column: int = 0) -> str:
    """Lines of at most this width; all but the first begin at a column."""
    return textwrap.fill(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent + " " * column,
        break_long_words=False,
        break_on_hyphens=False,
    )
