"""Readable paths: the system's folders, the Python environment and the compilers that every worker needs."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

NOBODY = -1
"""A user that owns nothing."""
_SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/opt", "/nix/store", "/gnu/store",
    "/sys", "/run/nvidia-persistenced",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf",
    "/etc/hosts", "/etc/localtime", "/etc/os-release", "/etc/lsb-release", "/etc/debian_version",
    "/etc/alternatives", "/etc/nvidia", "/etc/OpenCL",
)  # fmt: skip
_FOLDERS = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUTLASS_PATH", "CUTLASS_HOME")
_CUSTOMIZATIONS = ("sitecustomize", "usercustomize")
"""Modules that Python imports when it starts; a distribution may link them to files below ``/etc``."""
_COMPILERS = ("c++", "g++", "gcc", "cc", "clang++", "clang", "nvcc")


@cache
def readable_paths() -> tuple[Path, ...]:
    """The paths that every worker reads, without those that lie below another one."""
    found = dict.fromkeys(map(Path, _SYSTEM))
    for path in dict.fromkeys(_of_python() + _of_environment() + _of_compilers()):
        if found.keys().isdisjoint((path, *path.parents)) and _exists(path) and not _is_home(path):
            found[path] = None
    return tuple(found)


@cache
def unreadable_path(uid: int) -> str:
    """The first readable path that a user cannot read; empty if it can read all of them."""
    return next((str(path) for path in readable_paths() if _exists(path) and not is_open_to(uid, path)), "")


def is_open_to(uid: int, path: Path) -> bool:
    """Whether a user without groups and capabilities can read a file or folder, by the permission bits."""
    if not all(_has_bits(uid, folder, stat.S_IXOTH) for folder in path.parents):
        return False
    return _has_bits(uid, path, stat.S_IROTH | stat.S_IXOTH if path.is_dir() else stat.S_IROTH)


def _has_bits(uid: int, path: Path, bits: int) -> bool:
    found = path.stat()
    return (found.st_mode >> 6 if found.st_uid == uid else found.st_mode) & bits == bits


def _exists(path: Path) -> bool:
    """Whether this process can reach a path; `Path.exists` would raise where a folder is closed."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def _is_home(path: Path) -> bool:
    """Whether a folder is or contains the user's home: a search path that names it does not open it to workers."""
    try:
        return Path.home().is_relative_to(path)
    except RuntimeError:
        return path == Path("/")  # the user has no home


def _of_python() -> list[Path]:
    paths = [getattr(module, "__path__", ()) for module in list(sys.modules.values())]
    packages = [entry for path in paths if isinstance(path, Iterable) for entry in path]
    customizations = [getattr(sys.modules.get(name), "__file__", None) for name in _CUSTOMIZATIONS]
    tops = [sys.prefix, sys.exec_prefix, sys.base_prefix, *sys.path]
    return [Path(path).resolve() for path in (*tops, *packages, *customizations) if isinstance(path, str) and path]


def _of_environment() -> list[Path]:
    values = [os.environ.get(name, "") for name in _FOLDERS]
    return [Path(part).resolve() for value in values for part in value.split(":") if part.startswith("/")]


def _of_compilers() -> list[Path]:
    names = (*_COMPILERS, *(os.environ.get(name, "").partition(" ")[0] for name in ("CC", "CXX")))
    folders = [Path(found).resolve().parent for name in names if name and (found := shutil.which(name))]
    return [folder.parent if folder.name == "bin" else folder for folder in folders]
