"""Documented functions with a different form in the FIB packages, and the start by the environment."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fib_schema import Solution, SourceFile

logger = logging.getLogger("flashinfer_bench")


def get_fib_enable_apply() -> bool:
    """Whether ``FIB_ENABLE_APPLY`` enables routing; each call reads the environment."""
    return _is_enabled("FIB_ENABLE_APPLY")


def get_fib_enable_tracing() -> bool:
    """Whether ``FIB_ENABLE_TRACING`` enables tracing; each call reads the environment."""
    return _is_enabled("FIB_ENABLE_TRACING")


def _is_enabled(variable: str) -> bool:
    if os.environ.get(variable, "0") in ("", "0"):
        return False  # without the import
    from fib_apply.config import enabled_by_environment

    return bool(enabled_by_environment(variable))


def start_by_environment() -> None:
    """Enable what the environment asks for; an error is logged, and the program goes on without it."""
    if not (get_fib_enable_apply() or get_fib_enable_tracing()):
        return  # without the imports below
    from fib_schema import FibError

    from . import routing, tracing

    try:
        if get_fib_enable_apply():
            routing.enable_apply()
        if get_fib_enable_tracing():
            tracing.enable_tracing()
    except (FibError, OSError) as error:
        logger.error("the environment enables apply or tracing, which cannot start: %s", error)


def write_sources_to_path(path: str | os.PathLike[str], sources: Iterable[SourceFile]) -> list[Path]:
    """Write sources below a folder; returns their paths, in order.

    Raises:
        ValueError: A source's path leads out of the folder; nothing is written.
    """
    from fib_schema.files import write_output

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
