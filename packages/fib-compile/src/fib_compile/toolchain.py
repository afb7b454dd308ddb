"""Toolchain. The compilers, libraries and headers of this machine, their identities, and the variables they get.

A compiler gets the variables that are listed here and no others, so that no other one can matter. The values that
state what to compile (`REQUESTED`, and those that ``FIB_COMPILER_VARIABLES`` names) are part of a library's key, those
that state where tools are of its variant. The identity of a compiler is a digest of its program, its options and the
version that it reports.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from types import MappingProxyType, ModuleType

import attrs
from fib_schema import Solution, SupportedLanguages

from .cache import digest
from .errors import BuildProblem

CACHE_ONLY_VARIABLE = "FIB_CACHE_ONLY"
"""``1`` forbids compiling: only libraries of the cache are used."""
VARIABLES_VARIABLE = "FIB_COMPILER_VARIABLES"
REQUESTED = (
    "CCC_OVERRIDE_OPTIONS", "CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "LD_RUN_PATH", "LIBRARY_PATH",
    "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "SOURCE_DATE_EPOCH",
)  # fmt: skip
"""Variables that state what to compile."""
_SETTINGS = ("COMPILER_PATH", "GCC_EXEC_PREFIX", "LD_LIBRARY_PATH", "NVCC_CCBIN")
_SETTINGS_OF_TOOLS = ("CCACHE_", "SCCACHE_", "DISTCC_", "ICECC_", "NIX_", "ONEAPI_")
"""Prefixes of variables that wrappers of compilers read."""
_PLACES = ("HOME", "PATH", "TMPDIR")
_CXX_NAMES = ("c++", "g++", "clang++")
_CXX_HINT = "install g++ (Debian: apt-get install g++) or set CXX"
_NVCC_HINT = "install the CUDA toolkit and set CUDA_HOME to it"
_IDENTIFY_SECONDS = 60
_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


class MissingTool(BuildProblem):
    """A compiler or dependency that this machine lacks; the cache may still hold the library."""


# -- variables -----------------------------------------------------------------------------------


def compiler_environment() -> dict[str, str]:
    """The variables that a compiler gets."""
    set_names = set(os.environ)
    names = {*_PLACES, *_SETTINGS, *_requesting()} & set_names
    names |= {name for name in set_names if name.startswith(_SETTINGS_OF_TOOLS)}
    environment = {name: os.environ[name] for name in sorted(names)}
    return environment | {"LC_ALL": "C"}  # English messages, in which errors are recognised


def requested() -> list[str]:
    """The values of variables that state what to compile."""
    return [f"{name}={os.environ[name]}" for name in _requesting() if os.environ.get(name)]


def _requesting() -> list[str]:
    own = os.environ.get(VARIABLES_VARIABLE, "").replace(",", " ").split()
    return sorted({*REQUESTED, *own} - {*_PLACES, *_SETTINGS})


def settings() -> list[str]:
    """The values of the other variables that a compiler may read."""
    known = {*_PLACES, *_requesting(), "LC_ALL"}
    return [f"{name}={value}" for name, value in sorted(compiler_environment().items()) if name not in known]


# -- compilers -----------------------------------------------------------------------------------


@attrs.frozen
class Compiler:
    """A compiler that was found."""

    command: tuple[str, ...]
    version: str
    identity: str
    """A digest: two compilers with the same one make the same library."""


def identify(command: Sequence[str], driver: str) -> Compiler:
    """Identify a compiler, once while its program, at the path `driver`, is unchanged.

    Raises:
        MissingTool: It cannot be run.
    """
    try:
        state = Path(driver).stat()
        return _identify(
            tuple(command), os.path.realpath(driver), (state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        )
    except (OSError, subprocess.SubprocessError) as error:
        shown = getattr(error, "stderr", None) or error
        raise MissingTool(f"{shlex.join(command)} cannot be run: {str(shown).strip()[-300:]}; reinstall it") from error


@cache
def _identify(command: tuple[str, ...], driver: str, state: tuple[int, int, int]) -> Compiler:
    del state
    run = subprocess.run(
        [*command, "--version"], capture_output=True, text=True, errors="replace", check=True,
        timeout=_IDENTIFY_SECONDS, env=compiler_environment(), stdin=subprocess.DEVNULL, cwd="/",
    )  # fmt: skip
    version = " ".join(run.stdout.split()).partition(" ")[2]  # without the program's name
    program = hashlib.sha256(Path(driver).read_bytes()).hexdigest()
    return Compiler(command, version, digest((*command[1:], program, version)))


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
    return identify([nvcc], nvcc), identify([host], driver)


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


def load_extension(name: str, file: Path) -> ModuleType:
    """Import an extension module from a file; its name need not be that of the file.

    Raises:
        ImportError: It does not fit this process.
    """
    spec = spec_from_loader(name, ExtensionFileLoader(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- dependencies of solutions -------------------------------------------------------------------


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
        if name not in DEPENDENCIES:
            known = ", ".join(DEPENDENCIES)
            raise BuildProblem(f"dependency {name!r} is unknown (known: {known})")
    return tuple(DEPENDENCIES[name]() for name in names)


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


DEPENDENCIES: Mapping[str, Callable[[], Dependency]] = MappingProxyType({
    "cublas": _cuda_library("cublas", "cublas_v2.h", "nvidia-cublas"),
    "cudnn": _cuda_library("cudnn", "cudnn.h", "nvidia-cudnn-cu13"),
    "cutlass": _cutlass,
    "torch": _torch,
    "triton": _triton,
})  # fmt: skip
"""The finder of each dependency, by its name."""
