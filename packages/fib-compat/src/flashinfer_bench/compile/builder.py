"""`Builder`, and the first release's functions that write sources."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from fib_compile import Builder, BuildError
from fib_schema import Solution, SourceFile
from fib_schema.files import write_output

from ..replaced import make_getattr

__all__ = ["BuildError", "Builder", "create_pkg_name", "write_sources_to_dir", "write_sources_to_temp"]


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


__getattr__ = make_getattr(__name__)
