"""How a native solution is compiled on this machine, and what identifies the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from fib_schema import CompileOptions, Definition, Solution
from fib_schema.framing import framed

from ._cuda import InvalidArch, architectures, find_library, gencode_flags
from ._dependencies import Dependency, MissingDependency, UnknownDependency, native_dependencies
from ._digest import digest, interface_digest
from ._options import InvalidOptions, compile_options
from ._toolchain import Compiler, NoCompiler, find_cxx, find_nvcc
from .builder import Limits
from .errors import BuildError

if TYPE_CHECKING:
    from ._compile import CompileJob
    from ._native import NativeBuilder

_CXX_SUFFIXES = (".c", ".cc", ".cpp", ".cxx")
_CUDA_SUFFIX = ".cu"
_CXX_FLAGS = ("-O2", "-fPIC")
_CUDA_FLAGS = ("-O2", "-Xcompiler=-fPIC")


@attrs.frozen
class Toolkit:
    """What a binding adds to the command lines."""

    include_paths: tuple[str, ...]
    flags: tuple[str, ...]
    """For the C++ compiler and for nvcc."""
    link_flags: tuple[str, ...]


@attrs.frozen
class Recipe:
    """Everything that decides what a library is."""

    key: str
    """What the result depends on wherever and for whatever device it is made: content, interface, ABI, flags."""
    sources: tuple[str, ...]
    architectures: tuple[str, ...]
    options: CompileOptions
    compilers: tuple[Compiler, ...] | NoCompiler
    """C++, then CUDA if it is needed; or what this machine lacks to compile it."""
    dependencies: tuple[Dependency, ...]
    abi: str
    headers: str
    solution: str

    @property
    def has_cuda(self) -> bool:
        """Whether there is device code."""
        return bool(self.architectures)

    @property
    def variant(self) -> str:
        """What it depends on besides: architectures; versions of compilers, headers and dependencies."""
        return digest((framed(self.architectures), *self.made_with), 16)

    @property
    def made_with(self) -> list[str]:
        """The versions of compilers, headers and dependencies here."""
        compilers = [] if isinstance(self.compilers, NoCompiler) else [one.version for one in self.compilers]
        return [*compilers, self.headers, *(f"{one.name} {one.version}" for one in self.dependencies)]

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the manifest tells about the library."""
        return {
            "solution": self.solution,
            "abi": self.abi,
            "architectures": list(self.architectures),
            "made_with": self.made_with,
            "libraries": [library.name for library in self._linked()],
        }

    @property
    def cuda_major(self) -> str:
        """The major version of CUDA that nvcc belongs to."""
        compilers = self._compilers()
        version = compilers[-1].version.partition("release ")[2]
        return version.partition(".")[0]

    def job(self, toolkit: Toolkit, folder: Path, limits: Limits) -> CompileJob:
        """The command lines."""
        from ._compile import CompileJob

        compilers = self._compilers()
        paths = (".", *toolkit.include_paths, *(path for one in self.dependencies for path in one.include_paths))
        shared = (*toolkit.flags, *(f"-I{path}" for path in paths))
        cxx = (*compilers[0].command, *_CXX_FLAGS, *shared, *self.options.cflags)
        gencode = gencode_flags(self.architectures)
        nvcc = (*compilers[-1].command, *_CUDA_FLAGS, *gencode, *shared, *self.options.cuda_cflags)
        link = (*toolkit.link_flags, *map(str, self._linked()), *self.options.ldflags)
        return CompileJob(self.sources, folder, compilers[0].command, cxx, nvcc, link, limits)

    def _compilers(self) -> tuple[Compiler, ...]:
        if isinstance(self.compilers, NoCompiler):
            raise TypeError("a recipe without compilers compiles nothing")
        return self.compilers

    def _linked(self) -> list[Path]:
        """The libraries that are linked by path."""
        libraries = [library for one in self.dependencies for library in one.libraries]
        return [self._cudart(), *libraries] if self.has_cuda else libraries

    def _cudart(self) -> Path:
        name = f"libcudart.so.{self.cuda_major}"
        if library := find_library(name):
            return library
        problem = f"no {name} to link with; install PyPI's 'nvidia-cuda-runtime' or set CUDA_HOME"
        raise BuildError(self.solution, None, problem)


def make_recipe(builder: NativeBuilder, definition: Definition, solution: Solution) -> Recipe:
    """Find out how to compile a solution here.

    Raises:
        BuildError: Its options are not allowed, a dependency is unknown, nothing says which
            architectures are wanted, or there is nothing to compile.
    """
    try:
        return _make_recipe(builder, definition, solution)
    except (InvalidArch, InvalidOptions, UnknownDependency) as error:
        raise BuildError(solution.name, builder.name, str(error)) from error


def _make_recipe(builder: NativeBuilder, definition: Definition, solution: Solution) -> Recipe:
    sources = _compiled(source.path for source in solution.sources)
    if not sources:
        have = ", ".join(source.path for source in solution.sources)
        raise BuildError(solution.name, builder.name, f"has nothing to compile among its sources ({have})")
    has_cuda = any(path.endswith(_CUDA_SUFFIX) for path in sources)
    compilers = _find_compilers(has_cuda)
    dependencies: tuple[Dependency, ...] = ()
    try:
        dependencies = native_dependencies(solution)
    except MissingDependency as error:
        compilers = NoCompiler(str(error))
    targets = architectures(solution.spec.target_hardware) if has_cuda else ()
    abi = builder.abi()
    parts: list[str | bytes] = [builder.name, str(builder.version), abi, solution.hash(), interface_digest(definition)]
    parts.append(framed((*_CXX_FLAGS, *_CUDA_FLAGS)))
    return Recipe(
        digest(parts),
        sources,
        targets,
        compile_options(solution.spec),
        compilers,
        dependencies,
        abi,
        builder.headers(),
        solution.name,
    )


def _find_compilers(has_cuda: bool) -> tuple[Compiler, ...] | NoCompiler:
    found = [find_cxx(), find_nvcc()] if has_cuda else [find_cxx()]
    missing = next((one for one in found if isinstance(one, NoCompiler)), None)
    return missing or tuple(one for one in found if isinstance(one, Compiler))


def _compiled(paths: Iterable[str]) -> tuple[str, ...]:
    """Those that are compiled; headers and whatever else is beside them is not."""
    return tuple(sorted(path for path in paths if path.endswith((*_CXX_SUFFIXES, _CUDA_SUFFIX))))
