"""The command ``fib-compat migrate-imports``: rewriting of files and folders."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fib_schema.display import counted
from fib_schema.files import write_output

from ..errors import MissingExtra

_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})


def migrate(paths: Sequence[str], *, is_check: bool, shows_diff: bool) -> int:
    """Rewrite programs, or only report what would change.

    Args:
        paths: Files, and folders whose files ``*.py`` are meant; hidden folders are left out.
        is_check: Whether to write nothing and return 1 if a file would change.
        shows_diff: Whether to write nothing and print the changes.

    Returns:
        The exit code: 1 if a file is not valid Python, or if `is_check` finds a change.

    Raises:
        MissingExtra: libcst is not installed.
        OSError: A path cannot be read or written.
    """
    try:
        from libcst import ParserSyntaxError

        from .rewriting import rewrite
    except ImportError as error:
        raise MissingExtra("migrate-imports needs libcst: pip install 'fib-compat[migrate]'") from error
    changed = found = invalid = 0
    for path in _programs(paths):
        source = path.read_bytes()
        try:
            result = rewrite(source, is_package_init=path.name == "__init__.py")
        except (ParserSyntaxError, UnicodeDecodeError) as error:
            print(f"{path}: is not valid Python: {str(error).splitlines()[0]}", file=sys.stderr)
            invalid += 1
            continue
        for finding in result.findings:
            print(f"{path}:{finding.line}: {finding.message}", file=sys.stderr)
        found += len(result.findings)
        if result.source == source:
            continue
        changed += 1
        if shows_diff:
            _print_diff(path, source, result.source)
        elif not is_check:
            write_output(path, result.source)
        if is_check or not shows_diff:
            print(f"{'would rewrite' if is_check else 'rewrote'} {path}")
    verb = "would change" if is_check or shows_diff else "changed"
    broken = counted(invalid, "file")
    text = f"{verb} {counted(changed, 'file')}; to look at: {counted(found, 'place')}; not valid Python: {broken}"
    print(text, file=sys.stderr)
    return 1 if invalid or (is_check and changed) else 0


def _programs(paths: Sequence[str]) -> Iterator[Path]:
    for path in paths:
        if not Path(path).is_dir():
            yield Path(path)
            continue
        for folder, folders, files in os.walk(path):
            folders[:] = sorted(name for name in folders if name not in _SKIPPED and not name.startswith("."))
            yield from (Path(folder, name) for name in sorted(files) if name.endswith(".py"))


def _print_diff(path: Path, old: bytes, new: bytes) -> None:
    before, after = (source.decode("utf-8", "backslashreplace").splitlines(keepends=True) for source in (old, new))
    for line in difflib.unified_diff(before, after, f"a/{path}", f"b/{path}"):
        print(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n", end="")
