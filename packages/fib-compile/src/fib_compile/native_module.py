"""Native modules of FIB's packages: built once from sources that a package ships, tried, verified and loaded.

A module is built under a lock into a private folder, as an entry of an `ArtifactStore`. A child process tries it before
it is published, because a bad one may crash. The key covers sources, flags, machine and ABI, so that a machine without
a compiler can use a module that is there. A failure whose cause is the sources is recorded for the compiler that
reported it. A file that was truncated or changed since is not loaded, but built again.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import attrs
from fib_schema import FibError
from fib_schema.files import private_folder
from fib_schema.solution import framed

from ._compile import CommandKilled, check_space, error_lines, is_final_failure, run_logged
from .builder import Limits, watch_exit
from .cache import ArtifactStore, Failure, digest, machine, temporary_folder
from .toolchain import CACHE_ONLY_VARIABLE, Compiler, MissingTool, find_cxx

_SELF_TEST_SECONDS = 120.0
_SHOWN = 1000


class ModuleNotBuilt(FibError, RuntimeError):
    """A native module that could not be built; the message says why."""


@attrs.frozen(kw_only=True)
class NativeModule:
    """Sources of a native module, and how they are compiled and tried."""

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
    self_test: str = ""
    """The Python module that tries the compiled file: ``python -m SELF_TEST FILE`` must end with code 0."""
    self_test_environment: Mapping[str, str] = attrs.field(factory=dict)
    """Variables of the self-test, besides those of this process. It sees no GPU."""

    @property
    def key(self) -> str:
        """A digest of everything but the compiler."""
        texts = framed(tuple(part for source in self.sources.items() for part in source))
        return digest((self.name, texts, framed((*self.flags, *self.libraries)), self.abi, machine()))


def build_module(module: NativeModule, folder: Path, limits: Limits | None = None) -> Path:
    """The compiled file of a native module, built unless the private folder has it. Concurrent processes build it once.

    Raises:
        ModuleNotBuilt: There is no compiler, it fails or takes too long, the self-test fails, or the folder cannot be
            used.
    """
    limits = limits or Limits()
    try:
        store = ArtifactStore(private_folder(folder))
        if found := _published(store, module):
            return found
        if os.environ.get(CACHE_ONLY_VARIABLE) == "1":
            raise ModuleNotBuilt(f"{module.name}: {CACHE_ONLY_VARIABLE} forbids compiling")
        compiler = find_cxx()
        with store.lock(module.key, wait_seconds=2 * limits.seconds, is_stopped=limits.is_stopped):
            return _published(store, module) or _build(store, module, compiler, limits)
    except MissingTool as error:
        raise ModuleNotBuilt(f"{module.name}: a C++ compiler is needed: {error}") from error
    except (OSError, TimeoutError) as error:
        raise ModuleNotBuilt(f"{module.name}: {folder} cannot be used: {error}") from error


def _published(store: ArtifactStore, module: NativeModule) -> Path | None:
    return next((library.path for library in store.find_all(module.key)), None)


def _build(store: ArtifactStore, module: NativeModule, compiler: Compiler, limits: Limits) -> Path:
    if known := store.find_failure(module.key, compiler.identity):
        remedy = f"known from an earlier build; to try again, delete {store.root}"
        raise ModuleNotBuilt(f"{module.name}: {_text(known)} ({remedy})")
    watch_exit()
    folder = temporary_folder(store.root)
    try:
        built = folder / f"{module.name}.so"
        failure = _compile(module, compiler, built, limits) or _try(module, built)
        if failure is None:
            return store.add(module.key, compiler.identity, built, {"module": module.name}).path
        if failure.exit_code is not None:
            store.add_failure(module.key, compiler.identity, failure)
        raise ModuleNotBuilt(f"{module.name}: {_text(failure)}")
    except CommandKilled as error:
        raise ModuleNotBuilt(f"{module.name}: {shlex.join(compiler.command)} was {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _compile(module: NativeModule, compiler: Compiler, built: Path, limits: Limits) -> Failure | None:
    """Compile a module; returns a failure, with an exit code if it would happen again."""
    folder = built.parent
    for name, text in module.sources.items():
        (folder / name).write_text(text, "utf-8")
    source = next(iter(module.sources))
    command = [*compiler.command, *module.flags, "-o", str(built), source, *module.paths, *module.libraries]
    code = run_logged(command, folder, folder / "log", limits)
    if code == 0:
        return None
    output = (folder / "log").read_text("utf-8", "replace")
    check_space(output, folder)
    shown = shlex.join(compiler.command)
    return Failure(error_lines(output), f"{shown} failed", code if is_final_failure(code, output) else None, "")


def _try(module: NativeModule, built: Path) -> Failure | None:
    """Try a module in a child process; returns its failure."""
    if not module.self_test:
        return None
    command = [sys.executable, "-m", module.self_test, str(built)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **module.self_test_environment}
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=environment,
            stdin=subprocess.DEVNULL, timeout=_SELF_TEST_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Failure((), f"the self-test took more than {_SELF_TEST_SECONDS:.0f} s", None, "")
    if run.returncode == 0:
        return None
    lines = run.stderr.strip()[-_SHOWN:].splitlines()
    return Failure(tuple(lines), f"the self-test ended with code {run.returncode}", run.returncode, "")


def _text(failure: Failure) -> str:
    return "\n".join((f"{failure.command}:" if failure.details else failure.command, *failure.details))
