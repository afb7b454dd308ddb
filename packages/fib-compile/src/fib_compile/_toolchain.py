"""Toolchain. The compilers and CUDA libraries of this machine, with the versions that enter cache keys."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import attrs
from fib_schema import get_fib_cache_path
from fib_schema.files import atomic_write

from .builder import CACHE_FOLDER
from .errors import BuildProblem

COMPILERS = "compilers"
"""The folder below the cache that holds version texts of compilers."""
_CXX_NAMES = ("c++", "g++", "clang++")
_CXX_HINT = "install g++ (Debian: apt-get install g++) or set CXX"
_NVCC_HINT = "install the CUDA toolkit and set CUDA_HOME to it"


class MissingTool(BuildProblem):
    """A compiler or dependency that this machine lacks; the cache may still hold the library."""


@attrs.frozen
class Compiler:
    """A compiler that was found.

    Compilers with the same version text are taken as the same, wherever they are installed, so that what one machine
    built is found on another.
    """

    command: tuple[str, ...]
    version: str

    def __str__(self) -> str:
        return f"{shlex.join(self.command)}: {self.version}"


def find_cxx() -> Compiler:
    """The C++ compiler: ``CXX``, else the first of c++, g++ and clang++.

    Raises:
        MissingTool: There is none.
    """
    if wanted := os.environ.get("CXX"):
        command = shlex.split(wanted)
        if command and shutil.which(command[0]):
            return _identified(command)
        raise MissingTool(f"CXX: {wanted!r} cannot be run; set it to a C++ compiler, or unset it")
    for name in _CXX_NAMES:
        if shutil.which(name):
            return _identified([name])
    raise MissingTool(f"no C++ compiler; {_CXX_HINT}")


def find_nvcc() -> Compiler:
    """The CUDA compiler below `cuda_home`.

    Raises:
        MissingTool: There is none.
    """
    home = cuda_home()
    if home and (home / "bin" / "nvcc").is_file():
        return _identified([str(home / "bin" / "nvcc")])
    raise MissingTool(f"no nvcc below {home}; {_NVCC_HINT}" if home else f"no nvcc; {_NVCC_HINT}")


def cuda_home() -> Path | None:
    """``CUDA_HOME`` or ``CUDA_PATH``, else ``/usr/local/cuda`` if it has nvcc, else the toolkit of nvcc in ``PATH``."""
    if stated := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        return Path(stated)
    usual = Path("/usr/local/cuda")
    if (usual / "bin" / "nvcc").is_file():
        return usual
    nvcc = shutil.which("nvcc")
    return Path(nvcc).resolve().parent.parent if nvcc else None


def cuda_folders(name: str) -> Iterator[Path]:
    """Folders of that name (``include``, ``lib``) in the toolkit and in NVIDIA's packages from PyPI."""
    if home := cuda_home():
        yield from (home / name, home / f"{name}64", home / "targets" / "x86_64-linux" / name)
    spec = find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(Path(root).glob(f"*/{name}"))


def find_library(name: str) -> Path | None:
    """A CUDA library such as ``libcudart.so.13``: from the toolkit, else from PyPI's packages."""
    return next((folder / name for folder in cuda_folders("lib") if (folder / name).is_file()), None)


def preload(names: Iterable[str]) -> None:
    """Load CUDA libraries that the dynamic loader would not find; importing torch may have loaded them."""
    maps = Path("/proc/self/maps")
    loaded = maps.read_text() if maps.exists() else ""
    for name in names:
        if f"/{name}" not in loaded and (library := find_library(name)):
            import ctypes

            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def _identified(command: list[str]) -> Compiler:
    path = Path(shutil.which(command[0]) or command[0]).resolve()
    stat = path.stat()
    import subprocess

    try:
        version = _version(tuple(command), str(path), stat.st_size, stat.st_mtime_ns)
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingTool(f"{shlex.join(command)} --version fails: {error}; reinstall the compiler") from error
    return Compiler(tuple(command), version)


@cache
def _version(command: tuple[str, ...], path: str, size: int, mtime_ns: int) -> str:
    """The output of ``--version``, cached on disk, because running a compiler costs some milliseconds."""
    key = hashlib.sha256(repr((command, path, size, mtime_ns)).encode()).hexdigest()[:32]
    cached = get_fib_cache_path() / CACHE_FOLDER / COMPILERS / key
    is_binary = _is_binary(path)  # a script may start another compiler tomorrow
    if is_binary and cached.is_file() and (known := cached.read_text("utf-8")):
        return known
    import subprocess

    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        [*command, "--version"], capture_output=True, text=True, check=True, timeout=30, env=environment
    )
    version = " ".join(done.stdout.split()).partition(" ")[2]  # without the name that the compiler was called by
    if is_binary:
        with contextlib.suppress(OSError):  # the build itself reports that the cache cannot be written
            atomic_write(cached, version.encode())
    return version


def _is_binary(path: str) -> bool:
    with Path(path).open("rb") as file:
        return file.read(4) == b"\x7fELF"
