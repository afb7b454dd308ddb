"""Source files of a kernel, read from a file or a folder, and parsed."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs
from fib_schema import FibError, SourceFile
from fib_schema.files import explain_os_error, read_regular
from fib_schema.syntax import parse_source

PYTHON_SUFFIXES = frozenset({".py"})
CUDA_SUFFIXES = frozenset({".cu"})
CPP_SUFFIXES = frozenset({".cpp", ".cc", ".cxx"})
HEADER_SUFFIXES = frozenset({".h", ".hpp", ".hh", ".cuh", ".inl"})
DATA_SUFFIXES = frozenset({".json", ".toml", ".yaml", ".yml", ".csv"})
"""Text that a kernel in a folder may read, such as a table of tile sizes."""
SUFFIXES = PYTHON_SUFFIXES | CUDA_SUFFIXES | CPP_SUFFIXES | HEADER_SUFFIXES | DATA_SUFFIXES
_NO_KERNELS = HEADER_SUFFIXES | DATA_SUFFIXES

_MAX_FILE_BYTES = 4 * 2**20
_MAX_FILES = 200
_MAX_ENTRIES = 10_000
"""Entries of a folder that are looked at: the folder given by mistake may be a home folder."""


@attrs.frozen
class KernelFileError(FibError, ValueError):
    """A file or folder that no solution or definition can be made of."""

    path: str
    problem: str
    """The problem and its remedy."""

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


def read_sources(path: Path) -> tuple[SourceFile, ...]:
    """Read one file, or of a folder the files of `SUFFIXES` at any depth, but for hidden ones.

    `KernelFileError` if there is no source file, or too many, or one that is not text of at most 4 MiB.
    """
    if not path.is_dir():
        if path.suffix not in SUFFIXES - _NO_KERNELS and (path.exists() or not path.suffix):
            kinds = ".py, .cu or .cpp"
            problem = "is not a kernel file" if path.exists() else "does not exist"
            raise KernelFileError(str(path), f"{problem}; write a file that ends in {kinds}, or a folder")
        return (SourceFile(path.name, read_text(path)),)
    files = source_files(path)
    if all(file.suffix in _NO_KERNELS for file in files):
        raise KernelFileError(str(path), "the folder has no file that ends in .py, .cu or .cpp")
    if len(files) > _MAX_FILES:
        raise KernelFileError(str(path), f"the folder has {len(files)} source files, and at most {_MAX_FILES} are read")
    return tuple(SourceFile(file.relative_to(path).as_posix(), read_text(file)) for file in files)


def source_files(folder: Path) -> list[Path]:
    """The files of a folder at any depth that are read, in order."""
    return sorted(path for path in _files(folder) if path.suffix in SUFFIXES)


def files_left_out(path: Path) -> list[str]:
    """The files of a folder that `read_sources` does not read, relative to it."""
    return sorted(file.relative_to(path).as_posix() for file in _files(path) if file.suffix not in SUFFIXES)


def with_suffix(sources: Iterable[SourceFile], suffixes: frozenset[str]) -> list[SourceFile]:
    """The sources whose names end in one of the suffixes."""
    return [source for source in sources if Path(source.path).suffix in suffixes]


def _files(folder: Path) -> Iterator[Path]:
    count = 0
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        count += len(files) + len(folders)
        if count > _MAX_ENTRIES:
            raise KernelFileError(str(folder), f"the folder has more than {_MAX_ENTRIES} entries; name a smaller one")
        yield from (Path(root, name) for name in files if not name.startswith("."))


def read_text(path: Path) -> str:
    """The text of a file, with line feeds; a `KernelFileError` if it is none of at most 4 MiB."""
    try:
        data = read_regular(path, _MAX_FILE_BYTES)
    except FileNotFoundError:
        raise KernelFileError(str(path), "there is no such file") from None
    except OSError as error:
        problem = explain_os_error(error).removeprefix(f"{path}: ")
        raise KernelFileError(str(path), problem) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise KernelFileError(str(path), f"is not text: byte {error.start} is not UTF-8") from None
    if "\0" in text:
        raise KernelFileError(str(path), "is not text: it contains zero bytes")
    if not text.strip() and path.name != "__init__.py":
        raise KernelFileError(str(path), "is empty")
    return text.replace("\r\n", "\n")


def parse(source: SourceFile) -> ast.Module:
    """Parse a source file; a `KernelFileError` has the line and shows it."""
    try:
        return parse_source(source.content)
    except SyntaxError as error:
        place = f"{source.path}:{error.lineno}" if error.lineno else source.path
        lines = source.content.splitlines()
        shown = lines[error.lineno - 1] if error.lineno and error.lineno <= len(lines) else ""
        excerpt = f"\n  {error.lineno} | {shown[:200]}" if shown else ""
        raise KernelFileError(place, f"does not parse: {error.msg}{excerpt}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise KernelFileError(source.path, f"does not parse: {error}") from None
