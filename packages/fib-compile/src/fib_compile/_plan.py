"""Build plan. How a C++ or CUDA solution is compiled on this machine, and the cache key of the result.

The plan has the architectures (which ones to compile for, and which devices run what was compiled) and the options of a
solution. These are checked against an allow-list of flags: a compiler flag can load plugins, read any file and write
anywhere, and solutions are untrusted.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs
from fib_schema import BuildSpec, CompileOptions, Definition, Solution, SourceFile
from fib_schema.hardware import architectures_of
from fib_schema.solution import framed

from .builder import Limits
from .cache import digest, interface_digest, machine
from .errors import BuildProblem
from .toolchain import (
    Compiler,
    Dependency,
    MissingTool,
    find_cxx,
    find_library,
    find_nvcc,
    native_dependencies,
    requested,
    settings,
    split_command,
)

if TYPE_CHECKING:
    from ._compile import CompileJob

ARCH_VARIABLE = "FIB_CUDA_ARCH_LIST"
_ARCH = re.compile(r"([1-9][0-9]?)\.([0-9])([af]?)(\+PTX)?")
_ARCHITECTURE_SPECIFIC = frozenset({"9.0", "10.0", "10.3", "11.0", "12.0", "12.1"})
"""nvcc offers their architecture-specific instructions only under names that end in ``a``."""
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

    `builder_id` is the name, the version and the ABI of the builder, `headers` the version of the binding's headers.

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
    """The words of ``CXX`` from the first option on, also where its compiler is missing."""
    try:
        words = split_command(os.environ.get("CXX") or "c++")
    except MissingTool:
        return ()
    return tuple(itertools.dropwhile(lambda word: not word.startswith(("-", "@")), words))


def _compiled(paths: Iterable[str]) -> tuple[str, ...]:
    """The sources that are compiled, without headers and other files."""
    return tuple(sorted(path for path in paths if path.endswith((*_CXX_SUFFIXES, _CUDA_SUFFIX))))


# -- architectures -------------------------------------------------------------------------------


class InvalidArch(BuildProblem):
    """A malformed architecture list, or no known architecture."""


def architectures(target_hardware: Iterable[str]) -> tuple[str, ...]:
    """The architectures to compile for, such as ``("9.0a",)``.

    ``FIB_CUDA_ARCH_LIST`` has priority, then the devices of this machine, then a solution's target hardware.

    Raises:
        InvalidArch: The list is malformed, or none of the three names an architecture.
    """
    if wanted := os.environ.get(ARCH_VARIABLE):
        return parse_architectures(wanted)
    if found := _device_architectures():
        return found
    named = {arch for name in target_hardware for arch in architectures_of(name)}
    known = {_with_specific_instructions(arch) for arch in named if _ARCH.fullmatch(arch)}
    if known:
        return tuple(sorted(known))
    raise InvalidArch(
        f"no CUDA architecture is known: there is no device, and target_hardware names none; set {ARCH_VARIABLE}, "
        f"for example {ARCH_VARIABLE}=9.0a"
    )


def parse_architectures(text: str) -> tuple[str, ...]:
    """Parse a list such as ``8.0 9.0a 12.0+PTX``; spaces, commas and semicolons separate.

    Raises:
        InvalidArch: An entry is not an architecture.
    """
    entries = [entry for entry in re.split(r"[\s,;]+", text) if entry]
    for entry in entries:
        if not _ARCH.fullmatch(entry):
            raise InvalidArch(f"{ARCH_VARIABLE}: {entry!r} is not an architecture; write '9.0a', '8.0' or '8.0+PTX'")
    return tuple(sorted(set(entries)))


def runs_on(compiled: Iterable[str], wanted: Iterable[str]) -> bool:
    """Whether code that was compiled for some architectures runs on all wanted ones."""
    have = list(compiled)
    return all(any(_runs_on(one, other) for one in have) for other in wanted)


def gencode_flags(architectures: Iterable[str]) -> tuple[str, ...]:
    """The flags of nvcc for architectures."""
    flags = []
    for entry in architectures:
        number = entry.removesuffix("+PTX").replace(".", "")
        code = f"[sm_{number},compute_{number}]" if entry.endswith("+PTX") else f"sm_{number}"
        flags.append(f"-gencode=arch=compute_{number},code={code}")
    return tuple(flags)


def _runs_on(compiled: str, wanted: str) -> bool:
    have, want = _ARCH.fullmatch(compiled), _ARCH.fullmatch(wanted)
    if compiled == wanted or have is None or want is None:
        return compiled == wanted
    if have[3] == "a":  # runs on this architecture only
        return have.groups()[:3] == want.groups()[:3]
    older = (int(have[1]), int(have[2])) <= (int(want[1]), int(want[2]))
    return older and (have[1] == want[1] or have[4] is not None)


@cache
def _device_architectures() -> tuple[str, ...]:
    """Read from nvidia-smi, which initialises no CUDA in this process."""
    if not shutil.which("nvidia-smi"):
        return ()
    import subprocess

    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired as error:
        problem = f"nvidia-smi did not answer within 30 s; set {ARCH_VARIABLE}, for example {ARCH_VARIABLE}=9.0a"
        raise InvalidArch(problem) from error
    numbers = {line.strip() for line in done.stdout.splitlines() if done.returncode == 0}
    return tuple(sorted(_with_specific_instructions(number) for number in numbers if _ARCH.fullmatch(number)))


def _with_specific_instructions(number: str) -> str:
    return f"{number}a" if number in _ARCHITECTURE_SPECIFIC else number


# -- options -------------------------------------------------------------------------------------

_VALUE = r"[\w.,:+\-]*"
_FOLDER = r"(?!.*\.\.)[A-Za-z0-9_][\w./\-]*"
_MATH = r"fast-math|associative-math|finite-math-only|math-errno|signed-zeros|reciprocal-math|trapping-math"
_CODE = r"unroll-loops|tree-vectorize|strict-aliasing|inline-functions|exceptions|rtti|openmp|openmp-simd|permissive"
_COMMON = rf"-O[0-3s]|-Ofast|-std=(c|gnu)\+\+\d\d|-g\d?|-[DU][A-Za-z_]\w*(={_VALUE})?|-I{_FOLDER}"
_HOST = rf"{_COMMON}|-f(no-)?({_MATH}|{_CODE})|-ffp-contract=\w+|-fvisibility=\w+|-pthread|-W[a-z][a-z0-9=+\-]*|-w"
_MACHINE = r"-m(?!arch=native|tune=native|cpu=native)[a-z][\w.=+\-]*"
_NVCC_SWITCHES = (
    "use_fast_math|expt-relaxed-constexpr|expt-extended-lambda|extended-lambda|lineinfo|generate-line-info|restrict"
    "|extra-device-vectorization"
)
_NVCC_VALUES = r"(ftz|prec-div|prec-sqrt|fmad)=(true|false)|maxrregcount=\d+|diag-suppress=[\d,]+"
_PTXAS = r"(-Xptxas|--ptxas-options)=(-O[0-3]|-v|--verbose|-dlcm=c[ag]|--allow-expensive-optimizations=(true|false))"
_LIBRARY = r"-l[A-Za-z0-9_+\-]+|-pthread|-fopenmp|-static-lib(gcc|stdc\+\+)"
_LINKER = r"-Wl,(--as-needed|--no-as-needed|--gc-sections|-Bsymbolic|-O[0-3])"

_ALLOWED: Mapping[str, re.Pattern[str]] = MappingProxyType({
    "cflags": re.compile(f"{_HOST}|{_MACHINE}"),
    "cuda_cflags": re.compile(
        f"{_COMMON}|--?({_NVCC_SWITCHES}|{_NVCC_VALUES})|{_PTXAS}|(-Xcompiler|--compiler-options)=({_HOST}|{_MACHINE})"
    ),
    "ldflags": re.compile(f"{_LIBRARY}|{_LINKER}"),
})  # fmt: skip
_EXAMPLES: Mapping[str, str] = MappingProxyType({
    "cflags": "-O3, -ffast-math, -mavx2, -DNAME=1, -Isubfolder (not -march=native: name the architecture)",
    "cuda_cflags": "--use_fast_math, -maxrregcount=64, -DNAME=1, -Xptxas=-v, -Xcompiler=-O3",
    "ldflags": "-lm, -pthread, -Wl,--as-needed",
})  # fmt: skip


def compile_options(spec: BuildSpec) -> CompileOptions:
    """A solution's flags. They are placed behind the builder's own, so that they have priority.

    Raises:
        BuildProblem: A flag is not on the allow-list, or the kind of options is unknown.
    """
    options = spec.compile_options or CompileOptions()
    for name in options.unknown_fields:
        raise BuildProblem(f"spec.compile_options has no {name!r} (it has {', '.join(_ALLOWED)})")
    for name, allowed in _ALLOWED.items():
        for index, flag in enumerate(getattr(options, name)):
            if not allowed.fullmatch(flag):
                hint = f"examples of allowed flags: {_EXAMPLES[name]}"
                raise BuildProblem(f"spec.compile_options.{name}[{index}]: {flag!r} is not allowed; {hint}")
    return options
