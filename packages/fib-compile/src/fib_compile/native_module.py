"""Native modules of FIB's packages. Each is compiled once from sources that the package ships, into a private folder.

Files are named ``<name>-<key>.so``; the key covers sources, flags, machine and ABI, so a machine without a compiler can
use a module that is there. A failure whose cause is the sources is kept beside it for the compiler that reported it.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import attrs
from fib_schema import FibError
from fib_schema.files import atomic_write, staged
from fib_schema.framing import framed
from fib_schema.private_files import private_folder, read_private

from ._cache import ArtifactStore, digest
from ._compile import CommandKilled, check_space, error_lines, is_final_failure, run_logged
from ._compilers import MissingTool
from ._elf import machine
from ._interpreter_exit import watch_exit
from ._source_folders import temporary_folder
from ._toolchain import find_cxx
from .builder import Limits
from .builders.native import CACHE_ONLY_VARIABLE


class ModuleNotBuilt(FibError, RuntimeError):
    """A native module that could not be built; the message says why."""


@attrs.frozen(kw_only=True)
class NativeModule:
    """Sources of a native module, and how they are compiled."""

    name: str
    sources: Mapping[str, str]
    """Texts by file name; the first is compiled, the others are its headers."""
    flags: tuple[str, ...] = ()
    """Flags of the compiler, in the key."""
    paths: tuple[str, ...] = ()
    """Flags that state where headers and libraries are, not in the key; `abi` must tell their versions apart."""
    libraries: tuple[str, ...] = ()
    """Flags behind the sources, in the key."""
    abi: str = ""
    """Requirements of the module for the process that loads it."""

    @property
    def key(self) -> str:
        """A digest of everything but the compiler."""
        texts = framed(tuple(part for source in self.sources.items() for part in source))
        return digest((self.name, texts, framed((*self.flags, *self.libraries)), self.abi, machine()))

    def file_in(self, folder: Path) -> Path:
        """The file of the built module in a folder."""
        return folder / f"{self.name}-{self.key}.so"


def build_module(
    module: NativeModule,
    folder: Path,
    *,
    limits: Limits | None = None,
    find_problem: Callable[[Path], str | None] = lambda _: None,
) -> Path:
    """Compile a native module, unless the folder has it. Concurrent processes compile it once.

    Args:
        module: What to compile.
        folder: A private folder.
        limits: Limits of the compiler.
        find_problem: Tries the compiled file before it is published; returns why it cannot be used.

    Raises:
        ModuleNotBuilt: There is no compiler, it fails or takes too long, the file has a problem, or the folder
            cannot be written.
    """
    limits = limits or Limits()
    target = module.file_in(folder)
    if target.exists():
        return target
    if os.environ.get(CACHE_ONLY_VARIABLE) == "1":
        raise ModuleNotBuilt(f"{module.name}: {CACHE_ONLY_VARIABLE} forbids compiling")
    try:
        compiler = find_cxx()
        failure = folder / f"{module.name}-{module.key}-{compiler.identity}.failed"
        with ArtifactStore(private_folder(folder)).lock(
            module.key, wait_seconds=2 * limits.seconds, is_stopped=limits.is_stopped
        ):
            if not target.exists():
                _raise_known(failure)
                _compile(module, compiler.command, target, failure, limits, find_problem)
    except MissingTool as error:
        raise ModuleNotBuilt(f"{module.name}: a C++ compiler is needed: {error}") from error
    except (OSError, TimeoutError) as error:
        raise ModuleNotBuilt(f"{module.name}: {folder} cannot be used: {error}") from error
    return target


def _raise_known(failure: Path) -> None:
    if failure.exists():
        remedy = f"to try again, delete {failure}"
        raise ModuleNotBuilt(
            f"{read_private(failure).decode(errors='replace')} (known from an earlier build; {remedy})"
        )


def _compile(
    module: NativeModule,
    compiler: tuple[str, ...],
    target: Path,
    failure: Path,
    limits: Limits,
    find_problem: Callable[[Path], str | None],
) -> None:
    watch_exit()
    folder = temporary_folder(target.parent)
    log = folder / "log"
    try:
        for name, text in module.sources.items():
            (folder / name).write_text(text, "utf-8")
        with staged(target) as built:
            first = next(iter(module.sources))
            command = [*compiler, *module.flags, "-o", str(built), first, *module.paths, *module.libraries]
            code = run_logged(command, folder, log, limits)
            output = log.read_text("utf-8", "replace")
            if code != 0:
                check_space(output, folder)
                problem = f"{shlex.join(compiler)} failed:\n" + "\n".join(error_lines(output))
                _record_and_raise(f"{module.name}: {problem}", failure if is_final_failure(code, output) else None)
            if found := find_problem(built):
                _record_and_raise(f"{module.name}: {found}", failure)
            built.chmod(0o700)
    except CommandKilled as error:
        raise ModuleNotBuilt(f"{module.name}: {shlex.join(compiler)} was {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _record_and_raise(problem: str, record: Path | None) -> NoReturn:
    """Raise a problem, and record it unless it may not happen again."""
    if record is not None:
        atomic_write(record, problem.encode(), mode=0o600)
    raise ModuleNotBuilt(problem)
