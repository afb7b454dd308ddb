"""Dependencies of a solution. Names resolved to include paths and libraries on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import attrs
from fib_schema import Solution, SupportedLanguages

from ._compilers import MissingTool
from ._toolchain import cuda_folders
from .errors import BuildProblem

_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


@attrs.frozen
class Dependency:
    """Additions of a dependency to the command lines of compilers."""

    name: str
    version: str
    """Part of the cache key of everything that is compiled against it."""
    include_paths: tuple[str, ...] = ()
    libraries: tuple[Path, ...] = ()
    """Linked by path, and loaded before the compiled library."""


def native_dependencies(solution: Solution) -> tuple[Dependency, ...]:
    """Resolve the dependencies of a compiled solution; the language ``cutlass`` implies that of this name.

    Raises:
        BuildProblem: A name is unknown.
        MissingTool: A dependency is not on this machine.
    """
    implied = {"cutlass"} if solution.spec.language is SupportedLanguages.CUTLASS else set()
    names = sorted(implied | {dependency_name(text) for text in solution.spec.dependencies})
    for name in names:
        if name not in _RESOLVERS:
            known = ", ".join(_RESOLVERS)
            raise BuildProblem(f"dependency {name!r} is unknown (known: {known})")
    return tuple(_RESOLVERS[name]() for name in names)


def check_python_dependencies(solution: Solution) -> None:
    """Check that the dependencies of a Python solution are installed; versions are not compared.

    Raises:
        MissingTool: One is not.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    for text in solution.spec.dependencies:
        name = dependency_name(text)
        if name in _RESOLVERS or (name.isidentifier() and find_spec(name)):
            continue
        try:
            distribution(name)
        except PackageNotFoundError:
            raise MissingTool(f"dependency {name!r} is not installed; install it: pip install {name}") from None


def dependency_name(text: str) -> str:
    """The name in a requirement such as ``triton>=3.2``, in lower case."""
    match = _NAME.match(text)
    if match is None:
        raise BuildProblem(f"dependency {text!r} has no name; write a requirement such as 'triton>=3.2'")
    return match[1].lower()


def _cuda_library(name: str, header: str, package: str) -> Callable[[], Dependency]:
    def resolve() -> Dependency:
        include = _header_folder(header)
        library = next((file for folder in cuda_folders("lib") for file in sorted(folder.glob(f"lib{name}.so*"))), None)
        if include is None or library is None:
            wanted = f"needs {header} and lib{name}.so, which are neither in CUDA_HOME nor in PyPI's packages"
            raise MissingTool(f"dependency {name!r} {wanted}; install {package!r}")
        runtime = _header_folder("cuda_runtime_api.h")  # which a package of its own may hold
        includes = [str(folder) for folder in dict.fromkeys((include, runtime)) if folder]
        return Dependency(name, _version_in(include / header) or library.name, tuple(includes), (library,))

    return resolve


def _header_folder(header: str) -> Path | None:
    return next((folder for folder in cuda_folders("include") if (folder / header).is_file()), None)


def _cutlass() -> Dependency:
    for folder in _cutlass_folders():
        version = folder / "cutlass" / "version.h"
        if version.is_file():
            tools = folder.parent / "tools" / "util" / "include"
            return Dependency("cutlass", _version_in(version) or "", (str(folder), str(tools)))
    raise MissingTool("CUTLASS's headers are missing; set CUTLASS_PATH to a checkout, or install 'nvidia-cutlass'")


def _cutlass_folders() -> Iterator[Path]:
    for variable in ("CUTLASS_PATH", "CUTLASS_HOME"):
        if value := os.environ.get(variable):
            yield Path(value) / "include"
    if spec := find_spec("cutlass_library"):
        for root in spec.submodule_search_locations or ():
            yield Path(root) / "source" / "include"


def _torch() -> Dependency:
    from importlib.metadata import version

    root = _torch_folder()
    includes = (str(root / "include"), str(root / "include" / "torch" / "csrc" / "api" / "include"))
    libraries = tuple(root / "lib" / f"lib{name}.so" for name in ("c10", "torch_cpu", "torch"))
    return Dependency("torch", version("torch"), includes, libraries)


def _torch_folder() -> Path:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise MissingTool("dependency 'torch' is not installed; install it: pip install torch")
    return Path(spec.origin).parent


def _triton() -> Dependency:
    if find_spec("triton") is None:
        raise MissingTool("dependency 'triton' is not installed; install 'fib-compile[triton]'")
    return Dependency("triton", "")


def _version_in(header: Path) -> str | None:
    """The numbers of a header's version macros."""
    text = header.read_text("utf-8", "replace")
    numbers = re.findall(r"#define\s+\w*(?:MAJOR|MINOR|PATCH|PATCHLEVEL)\w*\s+(\d+)", text)
    return ".".join(numbers) or None


_RESOLVERS: Mapping[str, Callable[[], Dependency]] = MappingProxyType({
    "cublas": _cuda_library("cublas", "cublas_v2.h", "nvidia-cublas"),
    "cudnn": _cuda_library("cudnn", "cudnn.h", "nvidia-cudnn-cu13"),
    "cutlass": _cutlass,
    "torch": _torch,
    "triton": _triton,
})  # fmt: skip
