"""Toolchain. Which compilers and CUDA libraries of this machine are used."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from ._compilers import Compiler, MissingTool, identify

_CXX_NAMES = ("c++", "g++", "clang++")
_CXX_HINT = "install g++ (Debian: apt-get install g++) or set CXX"
_NVCC_HINT = "install the CUDA toolkit and set CUDA_HOME to it"


def find_cxx() -> Compiler:
    """The C++ compiler: ``CXX``, else the first of c++, g++ and clang++.

    Raises:
        MissingTool: There is none.
    """
    if wanted := os.environ.get("CXX"):
        command = split_command(wanted)
        if driver := shutil.which(command[0]):
            return identify(command, driver)
        raise MissingTool(f"CXX: {wanted!r} cannot be run; set it to a C++ compiler, or unset it")
    for name in _CXX_NAMES:
        if driver := shutil.which(name):
            return identify([name], driver)
    raise MissingTool(f"no C++ compiler; {_CXX_HINT}")


def split_command(text: str) -> list[str]:
    """The words of a command line in an environment variable.

    Raises:
        MissingTool: It has none, or a quote is not closed.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise MissingTool(f"CXX: {text!r} is not a command line: {error}") from error
    if not words:
        raise MissingTool(f"CXX: {text!r} has no words; set it to a C++ compiler, or unset it")
    return words


def find_nvcc() -> tuple[Compiler, Compiler]:
    """The CUDA compiler below `cuda_home`, and the host compiler that it starts: ``NVCC_CCBIN``, else gcc.

    Raises:
        MissingTool: There is none.
    """
    home = cuda_home()
    if home is None or not (home / "bin" / "nvcc").is_file():
        raise MissingTool(f"no nvcc below {home}; {_NVCC_HINT}" if home else f"no nvcc; {_NVCC_HINT}")
    stated = os.environ.get("NVCC_CCBIN") or "gcc"
    host = str(Path(stated) / "gcc") if Path(stated).is_dir() else stated
    driver = shutil.which(host)
    if driver is None:
        raise MissingTool(f"nvcc needs {host!r}, which cannot be run; install it or set NVCC_CCBIN")
    nvcc = str(home / "bin" / "nvcc")
    return identify([nvcc], nvcc, is_nvcc=True), identify([host], driver)


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
