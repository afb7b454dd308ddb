"""Functions of the first release that write the sources of solutions."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from fib_schema import Solution, SourceFile
from fib_schema.files import write_output

__all__ = [
    "create_package_name",
    "create_pkg_name",
    "write_sources_to_dir",
    "write_sources_to_path",
    "write_sources_to_temp",
]


def write_sources_to_dir(dir: str, sources: Iterable[SourceFile]) -> None:
    """Write sources below a folder; `SourceFile` guarantees relative paths."""
    for source in sources:
        write_output(Path(dir, source.path), source.content.encode())


def write_sources_to_temp(base: str, sources: Iterable[SourceFile], pkg: str | None = None) -> str:
    """Write sources into a new folder below `base`, or into its subfolder `pkg`; return the new folder."""
    Path(base).mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(dir=base)
    write_sources_to_dir(folder if pkg is None else str(Path(folder, pkg)), sources)
    return folder


def create_pkg_name(sol: Solution, prefix: str = "") -> str:
    """A package name that identifies the content of the solution, like `Builder.package_name`."""
    return f"{prefix}{sol.hash()[:20]}"


def write_sources_to_path(path: str | os.PathLike[str], sources: Iterable[SourceFile]) -> list[Path]:
    """Write sources below a folder; returns their paths, in order.

    Raises:
        ValueError: A source's path leads out of the folder; nothing is written.
    """
    folder = Path(path)
    targets = [(folder / source.path, source) for source in sources]
    for target, source in targets:
        if not target.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"source {source.path!r} is not below {folder}")
    for target, source in targets:
        write_output(target, source.content.encode())
    return [target for target, _ in targets]


def create_package_name(solution: Solution, package_prefix: str = "") -> str:
    """An identifier for the content of a solution: the prefix, its name and 8 characters of its hash."""
    name = "".join(character if character.isalnum() and character.isascii() else "_" for character in solution.name)
    return f"{package_prefix}{'' if package_prefix or not name[:1].isdigit() else '_'}{name}_{solution.hash()[:8]}"
