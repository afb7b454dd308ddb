"""Compilers on this machine, and what identifies them in a cache key."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from functools import cache
from pathlib import Path

import attrs
from fib_schema import get_fib_cache_path
from fib_schema.files import atomic_write

from .builder import CACHE_FOLDER

_CXX_NAMES = ("c++", "g++", "clang++")
_CXX_HINT = "install g++ (Debian: apt-get install g++) or set CXX"
_NVCC_HINT = "install the CUDA toolkit and set CUDA_HOME to it"


@attrs.frozen
class Compiler:
    """A compiler that was found.

    Two with the same version text are taken to be the same, wherever they are installed, so that
    what one machine built is found on another.
    """

    command: tuple[str, ...]
    version: str

    def __str__(self) -> str:
        return f"{shlex.join(self.command)}: {self.version}"


@attrs.frozen
class NoCompiler:
    """A compiler that is missing, and what would help."""

    problem: str


def find_cxx() -> Compiler | NoCompiler:
    """The C++ compiler: ``CXX``, else the first of c++, g++ and clang++."""
    if wanted := os.environ.get("CXX"):
        command = shlex.split(wanted)
        if command and shutil.which(command[0]):
            return _identified(command)
        return NoCompiler(f"CXX is {wanted!r}, which cannot be run")
    for name in _CXX_NAMES:
        if shutil.which(name):
            return _identified([name])
    return NoCompiler(f"no C++ compiler; {_CXX_HINT}")


def find_nvcc() -> Compiler | NoCompiler:
    """The CUDA compiler below `cuda_home`."""
    home = cuda_home()
    if home and (home / "bin" / "nvcc").is_file():
        return _identified([str(home / "bin" / "nvcc")])
    return NoCompiler(f"no nvcc below {home}; {_NVCC_HINT}" if home else f"no nvcc; {_NVCC_HINT}")


def cuda_home() -> Path | None:
    """``CUDA_HOME`` or ``CUDA_PATH``, else the usual place if nvcc is there, else where nvcc on the path is."""
    if stated := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        return Path(stated)
    usual = Path("/usr/local/cuda")
    if (usual / "bin" / "nvcc").is_file():
        return usual
    nvcc = shutil.which("nvcc")
    return Path(nvcc).resolve().parent.parent if nvcc else None


def _identified(command: list[str]) -> Compiler | NoCompiler:
    path = Path(shutil.which(command[0]) or command[0]).resolve()
    stat = path.stat()
    import subprocess

    try:
        version = _version(tuple(command), str(path), stat.st_size, stat.st_mtime_ns)
    except (OSError, subprocess.SubprocessError) as error:
        return NoCompiler(f"{shlex.join(command)} --version fails: {error}")
    return Compiler(tuple(command), version)


@cache
def _version(command: tuple[str, ...], path: str, size: int, mtime_ns: int) -> str:
    """What the compiler says about itself, remembered on disk: asking costs some milliseconds."""
    key = hashlib.sha256(repr((command, path, size, mtime_ns)).encode()).hexdigest()[:32]
    note = get_fib_cache_path() / CACHE_FOLDER / "compilers" / key
    is_binary = _is_binary(path)  # a script may start another compiler tomorrow
    if is_binary and note.is_file() and (known := note.read_text("utf-8")):
        return known
    import subprocess

    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        [*command, "--version"], capture_output=True, text=True, check=True, timeout=30, env=environment
    )
    version = " ".join(done.stdout.split()).partition(" ")[2]  # without the name it was called by
    if is_binary:
        _remember(note, version)
    return version


def _is_binary(path: str) -> bool:
    with Path(path).open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _remember(note: Path, text: str) -> None:
    try:
        atomic_write(note, text.encode())
    except OSError:
        return  # the build itself will say that the cache cannot be written
