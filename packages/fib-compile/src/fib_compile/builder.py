"""Builder: turns the sources of a solution into a runnable."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import attrs
from fib_schema import Definition, Solution, get_fib_cache_path

from .errors import check_limit
from .runnable import Runnable

CACHE_FOLDER = "fib-compile-v1"
"""The folder below ``FIB_CACHE_PATH`` that holds all builds; a change of its layout changes its name."""


def _never() -> bool:
    return False


@attrs.frozen
class Limits:
    """What one command of a compiler may use.

    Raises:
        InvalidLimit: It may use nothing.
    """

    seconds: float = 600.0
    memory_bytes: int | None = None
    """Address space of each process; None is unlimited."""
    is_stopped: Callable[[], bool] = attrs.field(default=_never, eq=False, repr=False)
    """Asked again and again while a command runs; it is killed when nobody wants its result any more."""

    def __attrs_post_init__(self) -> None:
        check_limit("timeout", self.seconds)
        check_limit("memory", self.memory_bytes)

    def until(self, stopped: threading.Event) -> Limits:
        """The same limits, and an event that ends whatever runs."""
        return attrs.evolve(self, is_stopped=lambda: stopped.is_set() or self.is_stopped())


class Builder(ABC):
    """Base of all builders, ours and third parties'.

    A builder works below `build_folder` only, and what it publishes there outlives the process.
    It may be used from several threads at once.

    Args:
        package_prefix: Begins the name of every package that this builder makes; unique to it.
        build_dir_name: The builder's own folder below the cache; unique to it.
    """

    name: ClassVar[str]
    """What messages and ``RunnableMetadata.build_type`` call it."""
    version: ClassVar[int] = 1
    """Part of every cache key: raise it when the same sources give another artefact."""

    def __init__(self, package_prefix: str, build_dir_name: str) -> None:
        self.package_prefix = package_prefix
        self.build_dir_name = build_dir_name

    @staticmethod
    def unavailable_reason() -> str | None:
        """What is missing on this machine and how to get it, or None if nothing is."""
        return None

    @classmethod
    def is_available(cls) -> bool:
        """Whether the builder can be used on this machine."""
        return cls.unavailable_reason() is None

    @abstractmethod
    def can_build(self, solution: Solution) -> bool:
        """Whether the solution's language and binding are this builder's."""

    @abstractmethod
    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Build a solution, or load what an earlier build left in the cache.

        Raises:
            BuildError: It cannot be built.
        """

    def compile_ahead(self, definition: Definition, solution: Solution, limits: Limits) -> bool:
        """Do whatever a build can do before it is needed, without loading or running the solution.

        Args:
            definition: What it implements.
            solution: What to compile.
            limits: What each command may use, and whether anybody still waits for its result.

        Returns:
            Whether something was done; False where the cache holds it, or nothing can be done ahead.

        Raises:
            BuildError: It cannot be built.
        """
        del definition, solution, limits
        return False

    @property
    def build_folder(self) -> Path:
        """Where this builder works; ``FIB_CACHE_PATH`` is read at every use."""
        return get_fib_cache_path() / CACHE_FOLDER / self.build_dir_name

    def package_name(self, solution: Solution) -> str:
        """A name that is unique to the solution's content."""
        return f"{self.package_prefix}{solution.hash()[:20]}"
