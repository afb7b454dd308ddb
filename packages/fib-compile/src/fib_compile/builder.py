"""Builder. Base class of everything that turns the sources of a solution into a runnable."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import attrs
from fib_schema import Definition, Solution, SupportedLanguages, get_fib_cache_path
from fib_schema.files import private_folder
from fib_schema.settings import InvalidSetting

from .cache import CACHE_FOLDER, JIT_FOLDER

if TYPE_CHECKING:
    from .runnable import Runnable

_JIT_VARIABLES = {
    "TRITON_CACHE_DIR": "triton",
    "TILELANG_CACHE_DIR": "tilelang",
    "CUDA_TILE_CACHE_DIR": "cutile",
    "CUTE_DSL_CACHE_DIR": "cute_dsl",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",  # Helion's cache is below it
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}
_INTERPRETERS = {SupportedLanguages.TRITON: "TRITON_INTERPRET", SupportedLanguages.HELION: "HELION_INTERPRET"}
INTERPRETED_LANGUAGES = frozenset(_INTERPRETERS)
"""Languages with an interpreter, which runs kernels on the CPU."""
_is_exiting = threading.Event()


def is_exiting() -> bool:
    """Whether the interpreter exits; only known after `watch_exit`."""
    return _is_exiting.is_set()


@cache
def watch_exit() -> None:
    """Have `is_exiting` know of an exit from its beginning on.

    The interpreter joins the threads of executors before it runs `atexit` handlers; only the private hook that they
    use themselves runs earlier. Hooks run in reverse order, so that this one has to be registered after theirs.
    """
    with contextlib.suppress(RuntimeError):  # the exit has begun
        import concurrent.futures.thread  # 10 ms, which a cache hit need not pay

        assert concurrent.futures.thread
        threading._register_atexit(_is_exiting.set)  # type: ignore[attr-defined] # noqa: SLF001


def check_limit(field: str, value: float | None) -> None:
    """Check a limit; None is unlimited.

    Raises:
        InvalidSetting: It is not greater than 0.
    """
    if value is not None and not value > 0:
        raise InvalidSetting(field, value, "a number greater than 0")


@attrs.frozen
class Limits:
    """The time that one compiler command may use, and what cancels it.

    Raises:
        InvalidSetting: It is not greater than 0.
    """

    seconds: float = 600.0
    is_stopped: Callable[[], bool] = attrs.field(default=is_exiting, eq=False, repr=False)
    """Polled while a command runs or waits for another build; it is killed or stops when it returns true."""

    def __attrs_post_init__(self) -> None:
        check_limit("timeout", self.seconds)

    def until(self, stopped: threading.Event) -> Limits:
        """These limits; an event, and the exit of the interpreter, cancel running commands too."""
        return attrs.evolve(self, is_stopped=lambda: stopped.is_set() or is_exiting() or self.is_stopped())


class Builder(ABC):
    """Base of all builders, of this package and of third parties.

    A builder writes below `build_folder` only. It may be used from several threads at once.

    Args:
        package_prefix: The prefix of the names of packages that this builder makes; unique to it.
        build_dir_name: The builder's own folder below the cache; unique to it.
    """

    name: ClassVar[str]
    """The name in messages and in ``RunnableMetadata.build_type``."""
    version: ClassVar[int] = 1
    """Part of every cache key: increment it when the same sources give another artifact."""

    def __init__(self, package_prefix: str, build_dir_name: str) -> None:
        self.package_prefix = package_prefix
        self.build_dir_name = build_dir_name

    @staticmethod
    def unavailable_reason() -> str | None:
        """Requirement that this machine lacks, with the remedy; None if the builder can be used."""
        return None

    @classmethod
    def is_available(cls) -> bool:
        """Whether the builder can be used on this machine."""
        return cls.unavailable_reason() is None

    @abstractmethod
    def can_build(self, solution: Solution) -> bool:
        """Whether this builder builds the solution's language and binding."""

    @abstractmethod
    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Build a solution, or load what an earlier build left in the cache.

        Raises:
            BuildError: It cannot be built.
        """

    def compile_ahead(self, definition: Definition, solution: Solution, limits: Limits) -> bool:
        """Do what a build can do ahead of time, without loading or running the solution.

        Returns:
            Whether something was built; False if the cache holds it, or nothing can be built ahead.

        Raises:
            BuildError: It cannot be built.
        """
        del definition, solution, limits
        return False

    @property
    def build_folder(self) -> Path:
        """The builder's own folder; ``FIB_CACHE_PATH`` is read at every use. `make_build_folder` makes it."""
        return get_fib_cache_path() / CACHE_FOLDER / self.build_dir_name

    def make_build_folder(self) -> Path:
        """Make the builder's own folder, which no other user can read or change.

        Returns:
            `build_folder` without links above it.

        Raises:
            UnsafePath: Another user can change it.
            OSError: It cannot be made.
        """
        return private_folder(private_folder(get_fib_cache_path() / CACHE_FOLDER) / self.build_dir_name)

    def package_name(self, solution: Solution) -> str:
        """A package name that is unique to the content of the solution."""
        return f"{self.package_prefix}{solution.hash()[:20]}"


def jit_environment(solution: Solution) -> dict[str, str]:
    """Environment variables that give a solution a JIT cache of its own.

    Use them for a process that runs this solution alone, and set them before it imports torch or triton. Then no
    solution finds the kernels of another, and the folder can be measured and deleted by itself. No other user can read
    or change it. The choices of Triton's autotuner are kept there as well.

    Raises:
        UnsafePath: Another user can change the folder.
        OSError: It cannot be made.
    """
    folder = private_folder(private_folder(get_fib_cache_path() / CACHE_FOLDER) / JIT_FOLDER)
    root = private_folder(folder / solution.hash()[:20])
    folders = {variable: str(root / folder) for variable, folder in _JIT_VARIABLES.items()}
    return {**folders, "TRITON_CACHE_AUTOTUNING": "1"}  # later processes take the configuration that was chosen


def interpreter_environment(solution: Solution) -> dict[str, str]:
    """Environment variables that make the interpreter of a solution's language run its kernels on the CPU.

    Use them for a process that runs this solution alone, and set them before it imports the solution; Triton reads its
    variable when it is imported. Other interpreters are switched off, because Helion refuses to run beside Triton's.
    """
    own = _INTERPRETERS.get(solution.spec.language)
    return {name: "1" if name == own else "0" for name in _INTERPRETERS.values()} if own else {}
