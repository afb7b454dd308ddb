"""Solutions as folders of files and back."""

from __future__ import annotations

import os
from pathlib import Path

from fib_bench.authoring.sources import read_sources
from fib_schema import BuildSpec, Solution, SourceFile
from fib_schema.files import read_regular

from .errors import InvalidArguments

_MAX_BYTES = 16 << 20
_READ_BY_PACK = {".py", ".cu", ".cuh", ".cpp", ".c", ".h", ".hpp", ".cc", ".cxx"}


def extract_solution_to_files(solution: Solution, base_path: str | os.PathLike[str]) -> str:
    """Write the sources of a solution into a new folder of its name; returns the folder.

    Raises:
        FileExistsError: There is such a folder.
    """
    folder = Path(base_path) / solution.name
    folder.mkdir(parents=True)
    for source in solution.sources:
        path = folder / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.content, "utf-8", newline="")
    return str(folder)


def pack_solution_from_files(
    path: str | os.PathLike[str], spec: BuildSpec, name: str, definition: str, author: str, description: str = ""
) -> Solution:
    """A solution from the files below a folder that end in .py .cu .cuh .cpp .c .h .hpp .cc .cxx.

    Raises:
        KernelFileError: There is no such file, or one that is no text.
    """
    folder = Path(path)
    sources = [source for source in read_sources(folder) if Path(source.path).suffix in _READ_BY_PACK]
    for file in sorted(folder.rglob("*.c")):
        sources.append(SourceFile(file.relative_to(folder).as_posix(), _read(folder, str(file.relative_to(folder)))))
    return Solution(name, definition, author, spec, tuple(sources), description=description)


def _read(folder: Path, name: str) -> str:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InvalidArguments("pack", (f"source {name!r} lies outside of {folder}",))
    return read_regular(path, _MAX_BYTES).decode("utf-8")
