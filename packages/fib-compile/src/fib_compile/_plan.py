"""Build plan. How a C++ or CUDA solution is compiled on this machine, and the cache key of the result."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from fib_schema import CompileOptions, Definition, Solution, SourceFile
from fib_schema.framing import framed

from ._architectures import architectures, gencode_flags
from ._cache import digest, interface_digest
from ._compilers import Compiler, MissingTool, custom_folders, custom_library_folders, flags_of
from ._dependencies import Dependency, native_dependencies
from ._elf import machine
from ._inputs import Inputs, SearchPaths
from ._options import compile_options
from ._toolchain import find_cxx, find_library, find_nvcc, split_command
from .builder import Limits
from .compiler_environment import requested, settings
from .errors import BuildProblem

if TYPE_CHECKING:
    from ._compile import CompileJob

_CXX_SUFFIXES = (".c", ".cc", ".cpp", ".cxx")
_CUDA_SUFFIX = ".cu"
_CXX_FLAGS = ("-O2", "-fPIC")
_CUDA_FLAGS = ("-O2", "-Xcompiler=-fPIC")


@attrs.frozen
class Toolkit:
    """Additions of a binding to the command lines of compilers."""

    include_paths: tuple[str, ...]
    flags: tuple[str, ...]
    """For the C++ compiler and for nvcc."""
    link_flags: tuple[str, ...]


@attrs.frozen
class BuildPlan:
    """Everything that decides what a compiled library is."""

    key: str
    """A digest of sources, interface, ABI, machine and flags: the same whatever compiler there is, for each device."""
    sources: tuple[SourceFile, ...]
    """Compiled sources and headers."""
    architectures: tuple[str, ...]
    """Empty without CUDA sources."""
    options: CompileOptions
    compilers: tuple[Compiler, ...]
    """C++, then nvcc and its host compiler if there are CUDA sources; empty if `missing` is set."""
    dependencies: tuple[Dependency, ...]
    missing: MissingTool | None
    """Requirement for compiling the solution that this machine lacks."""
    abi: str
    headers: str
    solution: str

    @property
    def has_cuda(self) -> bool:
        """Whether there are CUDA sources."""
        return bool(self.architectures)

    @property
    def variant(self) -> str:
        """A digest of architectures, compilers, and the versions of headers and dependencies."""
        return digest((framed(self.architectures), *self.made_with), 16)

    @property
    def made_with(self) -> list[str]:
        """Compilers with their identities and settings, and the versions of headers and dependencies."""
        compilers = [f"{compiler.version} [{compiler.identity}]" for compiler in self.compilers]
        dependencies = [f"{one.name} {one.version}" for one in self.dependencies]
        return [*compilers, self.headers, *dependencies, *settings()]

    @property
    def facts(self) -> Mapping[str, Any]:
        """Facts about the library for its manifest."""
        return {
            "solution": self.solution,
            "abi": self.abi,
            "architectures": list(self.architectures),
            "made_with": self.made_with,
            "libraries": [library.name for library in self._linked()],
        }

    def job(self, toolkit: Toolkit, folder: Path, limits: Limits) -> CompileJob:
        """The command lines.

        Raises:
            BuildProblem: The CUDA runtime library is missing.
        """
        from ._compile import CompileJob

        cxx, nvcc = self.compilers[0].command, self.compilers[1 if self.has_cuda else 0].command
        paths = (".", *toolkit.include_paths, *(path for one in self.dependencies for path in one.include_paths))
        shared = (*toolkit.flags, *(f"-I{path}" for path in paths))
        return CompileJob(
            _compiled(source.path for source in self.sources),
            folder,
            linker=cxx,
            cxx=(*cxx, *_CXX_FLAGS, *shared, *self.options.cflags),
            nvcc=(*nvcc, *_CUDA_FLAGS, *gencode_flags(self.architectures), *shared, *self.options.cuda_cflags),
            link=(*toolkit.link_flags, *map(str, self._linked()), *self.options.ldflags),
            limits=limits,
        )

    def inputs(self, toolkit: Toolkit, read: Iterable[str]) -> Inputs:
        """The inputs of a compilation that the cache key does not cover.

        Args:
            toolkit: Of the binding.
            read: The absolute paths of files that compilers and linker read.

        Raises:
            OSError: One of them cannot be read.
        """
        flags = [flag for compiler in self.compilers for flag in compiler.flags]
        custom = custom_folders(flags)
        versioned = [folder for compiler in self.compilers for folder in compiler.own_headers]
        if self.has_cuda:
            versioned += [folder for folder in self.compilers[1].headers if folder not in custom]
        searched = [*toolkit.include_paths, *(path for one in self.dependencies for path in one.include_paths)]
        searched += [folder for compiler in self.compilers for folder in compiler.headers]
        paths = SearchPaths(
            known=(*versioned, *toolkit.include_paths),
            headers=tuple(dict.fromkeys((*custom, *searched))),
            custom=custom,
            libraries=custom_library_folders(flags),
        )
        return paths.inputs(read, self.sources, (flag[2:] for flag in self.options.ldflags if flag.startswith("-l")))

    def _linked(self) -> list[Path]:
        """The libraries that are linked by path."""
        libraries = [library for one in self.dependencies for library in one.libraries]
        return [self._cudart(), *libraries] if self.has_cuda else libraries

    def _cudart(self) -> Path:
        major = self.compilers[1].version.partition("release ")[2].partition(".")[0]
        name = f"libcudart.so.{major}"
        if library := find_library(name):
            return library
        raise BuildProblem(f"no {name} to link with; install PyPI's 'nvidia-cuda-runtime' or set CUDA_HOME")


def make_plan(
    definition: Definition, solution: Solution, *, builder_id: tuple[str, str, str], headers: str
) -> BuildPlan:
    """Find out how a solution is compiled on this machine.

    Args:
        definition: Its interface is part of the cache key.
        solution: In C++ or CUDA.
        builder_id: Name, version and ABI of the builder.
        headers: The version of the binding's headers.

    Raises:
        BuildProblem: There is nothing to compile, an option is not allowed, a dependency is unknown, or no
            architecture is known.
    """
    sources = _compiled(source.path for source in solution.sources)
    if not sources:
        have = ", ".join(source.path for source in solution.sources)
        raise BuildProblem(f"has nothing to compile among its sources ({have})")
    has_cuda = any(path.endswith(_CUDA_SUFFIX) for path in sources)
    compilers: tuple[Compiler, ...] = ()
    dependencies: tuple[Dependency, ...] = ()
    missing = None
    try:
        dependencies = native_dependencies(solution)
        compilers = (find_cxx(), *find_nvcc()) if has_cuda else (find_cxx(),)
    except MissingTool as error:
        missing = error
    flags = framed((*_CXX_FLAGS, *_CUDA_FLAGS))
    wanted = framed((*_stated_flags(), *requested()))
    return BuildPlan(
        key=digest((*builder_id, solution.hash(), interface_digest(definition), flags, machine(), wanted)),
        sources=solution.sources,
        architectures=architectures(solution.spec.target_hardware) if has_cuda else (),
        options=compile_options(solution.spec),
        compilers=compilers,
        dependencies=dependencies,
        missing=missing,
        abi=builder_id[-1],
        headers=headers,
        solution=solution.name,
    )


def _stated_flags() -> tuple[str, ...]:
    """The flags inside ``CXX``, also where its compiler is missing."""
    try:
        return flags_of(split_command(os.environ.get("CXX") or "c++"))
    except MissingTool:
        return ()


def _compiled(paths: Iterable[str]) -> tuple[str, ...]:
    """The sources that are compiled, without headers and other files."""
    return tuple(sorted(path for path in paths if path.endswith((*_CXX_SUFFIXES, _CUDA_SUFFIX))))
