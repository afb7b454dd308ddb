"""Solutions as folders of files and back, without loss: sources as they are, everything else in one JSON file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fib_bench.authoring.sources import read_sources
from fib_schema import BuildSpec, Solution, SourceFile, parse_json, to_plain
from fib_schema.files import atomic_write, read_regular

from .errors import InvalidArguments

RECORD = "fib-solution.json"
"""The file with the record, whose sources have a path and no content."""
_MAX_BYTES = 16 << 20
_READ_BY_PACK = {".py", ".cu", ".cuh", ".cpp", ".c", ".h", ".hpp", ".cc", ".cxx"}


def extract_solution_to_files(solution: Solution, base_path: str | os.PathLike[str]) -> str:
    """Write the sources of a solution and its record into a new folder.

    Args:
        solution: The solution.
        base_path: The folder in which one of the solution's name is made.

    Returns:
        The folder.

    Raises:
        FileExistsError: There is such a folder.
        InvalidArguments: A source has the name of the record's file.
    """
    folder = Path(base_path) / solution.name
    if any(source.path == RECORD for source in solution.sources):
        raise InvalidArguments(
            "extract", (f"{solution.name} has a source named {RECORD}, where the record is written",)
        )
    folder.mkdir(parents=True)
    for source in solution.sources:
        path = folder / source.path
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InvalidArguments("extract", (f"source {source.path!r} lies outside of the solution's folder",))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.content, "utf-8", newline="")
    plain = to_plain(solution)
    plain["sources"] = [{key: value for key, value in one.items() if key != "content"} for one in plain["sources"]]
    atomic_write(folder / RECORD, (json.dumps(plain, indent=2) + "\n").encode())
    return str(folder)


def pack_folder(path: str | os.PathLike[str]) -> Solution:
    """The solution of a folder that `extract_solution_to_files` has written; changed sources are read as they are.

    Raises:
        OSError: A file is missing or cannot be read.
        InvalidRecord: The record is not valid.
        InvalidArguments: It is not a JSON object with sources.
    """
    folder = Path(path)
    data = read_regular(folder / RECORD, _MAX_BYTES)
    try:
        plain: Any = json.loads(data)
        sources = [{**one, "content": _read(folder, one["path"])} for one in plain["sources"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArguments("pack", (f"{folder / RECORD} is not a record of a solution: {error!r}",)) from error
    return parse_json(json.dumps({**plain, "sources": sources}), Solution, source=str(folder / RECORD))


def pack_solution_from_files(
    path: str | os.PathLike[str], spec: BuildSpec, name: str, definition: str, author: str, description: str = ""
) -> Solution:
    """A solution from the source files below a folder.

    Args:
        path: The folder; files that end in .py .cu .cuh .cpp .c .h .hpp .cc .cxx are taken.
        spec: How it is built.
        name: Its name.
        definition: What it implements.
        author: Who wrote it.
        description: In words.

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
