"""Command lines. Streams, error messages, exit codes and usage errors that all commands of FIB share.

`run_command` runs the body of a command:

- What it prints to stdout and stderr passes through `escape_controls`. JSON is not changed by that, because it
  is written in ASCII.
- Errors become one message on stderr and an exit code. A message that stderr refuses is dropped.
- A `DataWarning` is not shown: the command prints the problems of its data set with `print_problems`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn, TextIO, cast

from .display import escape_controls
from .errors import DataSetNotFound, DataWarning, FibError, InvalidField, Problem, close_matches
from .files import explain_os_error, get_fib_dataset_path
from .problems import plain_problem, problem_lines

FAILED = 2
"""The exit code of a command that is wrong, or that cannot read or write a file."""
INTERRUPTED = 130
READER_ENDED = 141
"""The exit code when the reader of stdout has ended, as `head` does."""
_STDOUT = "the standard output"


def run_command(program: str, run: Callable[[], int], *, interrupted: str = "interrupted") -> int:
    """Run the body of a command and return its exit code.

    Messages begin with the name of the program; `interrupted` is that after an interrupt.

    Raises:
        SystemExit: `run` raised it, as `argparse` does for ``--help`` and for wrong arguments.
    """
    with _guarded_streams(), warnings.catch_warnings(action="ignore", category=DataWarning):
        try:
            try:
                return run()
            finally:
                sys.stdout.flush()  # an error at exit could not be reported any more
        except OSError as error:
            if error.filename == _STDOUT:
                _discard_stdout()
                if isinstance(error, BrokenPipeError):
                    return READER_ENDED
            _say(program, explain_os_error(error))
        except FibError as error:
            _say(program, str(error))
        except KeyboardInterrupt:
            _say(program, interrupted)
            return INTERRUPTED
        return FAILED


def print_problems(problems: Iterable[Problem]) -> None:
    """Print the problems of a data set on stderr, errors first; those of one kind in one file are one line."""
    for line in problem_lines(problems):
        print(line, file=sys.stderr)


def plain_problems(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    """The problems of a data set for the JSON output of a command, each once; the same that `print_problems` prints."""
    return [plain_problem(problem) for problem in dict.fromkeys(problems)]


def unescaped(stream: TextIO) -> TextIO:
    """The stream below the escaping of `run_command`, for code that writes control sequences of its own."""
    return cast(TextIO, getattr(stream, "unescaped", stream))


def _say(program: str, message: str) -> None:
    print(f"{program}: {message}", file=sys.stderr)


@contextlib.contextmanager
def _guarded_streams() -> Iterator[None]:
    before = sys.stdout, sys.stderr
    sys.stdout = cast(TextIO, _Stream(sys.stdout, is_required=True))
    sys.stderr = cast(TextIO, _Stream(sys.stderr, is_required=False))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _discard_stdout() -> None:
    """Redirect the real stdout to the null device: what it still buffers would fail once more at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), unescaped(sys.stdout).fileno())


class _Stream:
    """A text stream that escapes what is written, and names itself in errors, or ignores them if it is not required."""

    def __init__(self, below: TextIO, *, is_required: bool, escapes: bool = True) -> None:
        self._below = below
        self._is_required = is_required
        self._escapes = escapes
        self._failure: OSError | None = None
        self.unescaped = _Stream(below, is_required=is_required, escapes=False) if escapes else self

    def write(self, text: str) -> int:
        """Write text; returns its length."""
        with self._errors():
            self._below.write(self._encodable(escape_controls(text) if self._escapes else text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the stream below; an earlier error is raised again, because `argparse` ignores it."""
        with self._errors():
            self._below.flush()
        if self._failure is not None:
            raise self._failure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)

    def _encodable(self, text: str) -> str:
        encoding = getattr(self._below, "encoding", None) or "utf-8"
        return text if text.isascii() else text.encode(encoding, "backslashreplace").decode(encoding)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._is_required:
                self._failure = OSError(error.errno, error.strerror, _STDOUT)
                raise self._failure from error


# -- parser ------------------------------------------------------------------------------------------

_INVALID_CHOICE = re.compile(
    r"argument (?P<name>.+?): invalid choice: '(?P<word>.*)' \(choose from (?P<known>.*)\)", re.S
)


class CommandParser(argparse.ArgumentParser):
    """A parser whose usage errors name the problem and similar options or commands, without the whole usage."""

    declaration = ""
    """The function that declares the arguments when they are parsed, as ``module:name``: only then is it imported."""

    def parse_known_args(  # type: ignore[override]  # the stubs declare overloads by the type of the namespace
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse arguments and reject unknown ones here, where the options of the sub-command are known."""
        declaration, self.declaration = self.declaration, ""
        if declaration:
            resolve_name(declaration)(self)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(
                _unknown_arguments(unknown, [name for action in self._actions for name in action.option_strings])
            )
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print a message with its remedy on stderr and exit with `FAILED`."""
        if invalid := _INVALID_CHOICE.fullmatch(message):
            known = [word.strip("' ") for word in invalid["known"].split(",")]
            is_command = invalid["name"].isupper()  # the metavar of sub-commands
            problem = f"unknown command {invalid['word']!r}" if is_command else message.partition(" (")[0]
            message = problem + (_suggestion(invalid["word"], known) or f"; choose from {', '.join(known)}")
        self.exit(FAILED, f"{self.prog}: {message} (help: {self.prog} --help)\n")


def _unknown_arguments(unknown: Sequence[str], options: Sequence[str]) -> str:
    """The message about arguments that a parser does not take."""
    flags = [word.partition("=")[0] for word in unknown if word.startswith("-")] or list(unknown)
    kind = "option" if flags[0].startswith("-") else "argument"
    likely = "".join(dict.fromkeys(_suggestion(flag, options) for flag in flags if flag.startswith("--")))
    return f"unknown {kind}{'s' if len(flags) > 1 else ''} {', '.join(map(repr, flags))}{likely}"


def _suggestion(word: str, known: Sequence[str]) -> str:
    near = close_matches(word, known, cutoff=0.6)[:2]
    return f"; did you mean {' or '.join(near)}?" if near else ""


# -- the data set -------------------------------------------------------------------------------------


def add_data_set(parser: argparse.ArgumentParser, *, is_first: bool = False) -> None:
    """Declare ``--dataset``, and `is_first` a data set without an option before it; `data_set_of` reads both."""
    text = "the data set (default: this folder if it is one, else FIB_DATASET_PATH)"
    if is_first:
        parser.add_argument("dir", metavar="DIR", nargs="?", type=Path, help=text)
        text = "the same"
    parser.add_argument("--dataset", metavar="DIR", type=Path, help=text)


def data_set_of(arguments: argparse.Namespace) -> Path:
    """The data set that a command is about.

    Raises:
        DataSetNotFound: There is none at the path that was passed, or at the default.
        InvalidField: Two paths were passed.
    """
    first: Path | None = getattr(arguments, "dir", None)
    if first is not None and arguments.dataset is not None:
        raise InvalidField("--dataset", f"the data set is named twice, {first} and {arguments.dataset}; name it once")
    default = Path() if Path("definitions").is_dir() else get_fib_dataset_path()
    root: Path = first or arguments.dataset or default
    if not root.is_dir():
        raise DataSetNotFound(str(root))
    return root
