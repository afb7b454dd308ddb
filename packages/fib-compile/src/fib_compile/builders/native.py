"""NativeBuilder and its subclasses. C++ and CUDA, compiled into libraries for TVM-FFI or torch.

A build makes a plan, looks the library up, takes a lock, looks again, compiles, publishes and loads.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import attrs
from fib_schema import Definition, Solution, SupportedBindings

from .._plan import BuildPlan, Toolkit, make_plan, runs_on
from ..builder import Builder, Limits
from ..cache import FAILURES, ArtifactStore, Failure, InputFile, Library, temporary_folder, unwritable, write_sources
from ..errors import BuildError, BuildProblem
from ..runnable import Runnable, RunnableMetadata
from ..toolchain import CACHE_ONLY_VARIABLE, cuda_folders, load_extension, preload

_EXPORT = re.compile(rb"\0__tvm_ffi_(?!_metadata_|_doc_)([A-Za-z0-9_]+)(?=\0)")


class NativeBuilder(Builder):
    """Base of the builders that compile C++ and CUDA into a library."""

    bindings: ClassVar[tuple[SupportedBindings | None, ...]]
    """The bindings that the builder compiles; None stands for a solution without one."""

    def __init__(self) -> None:
        super().__init__(f"fib_{self.name}_", self.name)

    @abstractmethod
    def abi(self) -> str:
        """Requirements of a library of this builder for the process that loads it."""

    def headers(self) -> str:
        """The version of the binding's headers; a machine that compiles uses only libraries made with the same."""
        return self.abi()

    @abstractmethod
    def toolkit(self, plan: BuildPlan) -> Toolkit:
        """The binding's part of the command lines; called only when something is compiled."""

    @abstractmethod
    def load(self, library: Path, plan: BuildPlan, solution: Solution) -> Any:
        """Load a verified library and return the entry function.

        Raises:
            BuildProblem: The dynamic loader refuses it, it has no such function, or its initialisers fail.
        """

    def can_build(self, solution: Solution) -> bool:
        """Whether the solution is compiled from C++ or CUDA, with a binding of this builder."""
        return solution.spec.language.is_compiled and solution.spec.binding in self.bindings

    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Compile a solution, or take its library from the cache.

        Concurrent processes compile it once. A damaged library is compiled again. An error in the sources is not
        repeated with the same compiler.

        Raises:
            BuildError: It does not compile or load, or the cache cannot be written.
        """
        try:
            plan = self._plan(definition, solution)
            libraries, _ = self._libraries(plan, solution, Limits())
            library, function = self._load_first(libraries, plan, solution)
        except BuildProblem as problem:
            raise problem.of(solution, self.name) from problem
        misc = {"library": str(library.path), "entry_point": solution.spec.entry_point, "key": plan.key}
        is_dps = solution.spec.destination_passing_style
        return Runnable(function, RunnableMetadata(self.name, definition.name, solution.name, is_dps, definition, misc))

    def compile_ahead(self, definition: Definition, solution: Solution, limits: Limits) -> bool:
        """Compile a solution into the cache without loading it; False if it is there.

        Raises:
            BuildError: It does not compile, or the cache cannot be written.
        """
        try:
            return self._libraries(self._plan(definition, solution), solution, limits)[1]
        except BuildProblem as problem:
            raise problem.of(solution, self.name) from problem

    def _plan(self, definition: Definition, solution: Solution) -> BuildPlan:
        builder_id = (self.name, str(self.version), self.abi())
        return make_plan(definition, solution, builder_id=builder_id, headers=self.headers())

    def _load_first(self, libraries: list[Library], plan: BuildPlan, solution: Solution) -> tuple[Library, Any]:
        """The first library that loads, and its entry function."""
        for library in libraries[:-1]:
            with suppress(BuildProblem):  # compiled on another machine for other processors
                return library, self._load(library, plan, solution)
        return libraries[-1], self._load(libraries[-1], plan, solution)

    def _load(self, library: Library, plan: BuildPlan, solution: Solution) -> Any:
        if plan.has_cuda or solution.spec.dependencies:
            preload(library.facts["libraries"])
        return self.load(library.path, plan, solution)

    def _libraries(self, plan: BuildPlan, solution: Solution, limits: Limits) -> tuple[list[Library], bool]:
        """Verified libraries, one of which should load, and whether it was compiled just now."""
        problem = self._why_no_compiler(plan)
        with self._cache_errors():
            store = ArtifactStore(self.build_folder)
            if not problem:
                library, is_new = self._find_or_compile(store, plan, solution, limits)
                return [library], is_new
            if published := _fitting(store, plan):
                return published, False
        raise BuildProblem(f"{problem}; and the cache holds no library that fits")

    def _why_no_compiler(self, plan: BuildPlan) -> str:
        if os.environ.get(CACHE_ONLY_VARIABLE) == "1":
            return f"{CACHE_ONLY_VARIABLE} forbids compiling"
        return str(plan.missing) if plan.missing else ""

    @contextmanager
    def _cache_errors(self) -> Iterator[None]:
        """Raise errors of the cache as build problems."""
        try:
            yield
        except TimeoutError as error:
            raise BuildProblem(
                f"another build of the same solution has not ended: {error}; stop that process"
            ) from error
        except OSError as error:
            raise unwritable(self.build_folder, error) from error

    def _find_or_compile(
        self, store: ArtifactStore, plan: BuildPlan, solution: Solution, limits: Limits
    ) -> tuple[Library, bool]:
        if found := self._known(store, plan, solution):
            return found, False
        self.make_build_folder()
        with store.lock(plan.key, wait_seconds=2 * limits.seconds, is_stopped=limits.is_stopped):
            if found := self._known(store, plan, solution):
                return found, False
            return self._compile(store, plan, solution, limits), True

    def _known(self, store: ArtifactStore, plan: BuildPlan, solution: Solution) -> Library | None:
        for found in _fitting(store, plan):
            is_same = found.facts["made_with"] == plan.made_with
            if is_same and set(plan.architectures) <= set(found.facts["architectures"]) and found.is_current():
                return found
        if failure := store.find_failure(plan.key, plan.variant):
            remark = f" (known from an earlier build; to try again, delete {store.root / FAILURES})"
            raise self._error(solution, failure, remark)
        return None

    def _compile(self, store: ArtifactStore, plan: BuildPlan, solution: Solution, limits: Limits) -> Library:
        from .._compile import CompileError, compile_library

        log = store.new_log(plan.key, plan.variant)
        folder = temporary_folder(store.root)
        toolkit = self.toolkit(plan)
        try:
            write_sources(folder, solution.sources)
            library = folder / ".library.so"
            read = compile_library(plan.job(toolkit, folder, limits), library, log)
            inputs = [InputFile.of(path) for path in sorted(read) if not path.startswith(toolkit.include_paths)]
            return store.add(plan.key, plan.variant, library, plan.facts, inputs)
        except CompileError as error:
            if error.is_final:
                store.add_failure(plan.key, plan.variant, error.failure)
            raise self._error(solution, error.failure) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _error(self, solution: Solution, failure: Failure, remark: str = "") -> BuildError:
        problem = "takes too long to compile" if failure.exit_code is None else "does not compile"
        if failure.is_cancelled:
            problem = "is not compiled, because the build was cancelled"
        return BuildError(
            solution.name,
            self.name,
            problem + remark,
            language=solution.spec.language,
            **attrs.asdict(failure, recurse=False),
        )


def _fitting(store: ArtifactStore, plan: BuildPlan) -> list[Library]:
    """Verified libraries that this machine can run, whoever compiled them; the best match first."""
    fitting = [one for one in store.find_all(plan.key) if runs_on(one.facts["architectures"], plan.architectures)]
    return sorted(fitting, key=lambda one: not set(plan.architectures) <= set(one.facts["architectures"]))


class TVMFFIBuilder(NativeBuilder):
    """Compiles sources with ``TVM_FFI_DLL_EXPORT_TYPED_FUNC`` into a library and loads it.

    The library needs neither Python nor torch: it depends on TVM-FFI's ABI, on the compilers and on their flags.
    Loading it runs its static initialisers and no other code of the solution.
    """

    name = "tvm_ffi"
    bindings = (None, SupportedBindings.TVM_FFI)

    @staticmethod
    def unavailable_reason() -> str | None:
        """Only TVM-FFI is needed: without a compiler, libraries in the cache can still be used."""
        return None if find_spec("tvm_ffi") else "tvm_ffi is not installed; install 'apache-tvm-ffi'"

    def abi(self) -> str:
        """The minor version: TVM-FFI keeps its ABI within it."""
        major, minor, *_ = _tvm_ffi_version().split(".")
        return f"tvm-ffi-{major}.{minor}"

    def headers(self) -> str:
        """The whole version: a library may use functions that an older one does not have."""
        return f"tvm-ffi {_tvm_ffi_version()}"

    def toolkit(self, plan: BuildPlan) -> Toolkit:  # noqa: ARG002
        """Headers and library of the installed TVM-FFI."""
        spec = find_spec("tvm_ffi")
        assert spec is not None
        assert spec.origin is not None
        root = Path(spec.origin).parent  # importing tvm_ffi would import torch
        link_flags = ("-Wl,--no-undefined", f"-L{root / 'lib'}", "-ltvm_ffi")
        return Toolkit((str(root / "include"),), ("-std=c++17",), link_flags)

    def load(self, library: Path, plan: BuildPlan, solution: Solution) -> Any:  # noqa: ARG002
        """Load a library and return the entry function."""
        import tvm_ffi

        try:
            module = tvm_ffi.load_module(library)
        except (RuntimeError, OSError, ValueError) as error:
            raise BuildProblem(f"the compiled library does not load: {error}") from error
        symbol = solution.get_entry_symbol()
        try:
            return module.get_function(symbol)
        except AttributeError as error:
            exports = ", ".join(_exports(library)) or "nothing; use TVM_FFI_DLL_EXPORT_TYPED_FUNC"
            raise BuildProblem(f"the library has no function {symbol!r}; it exports {exports}") from error


@cache
def _tvm_ffi_version() -> str:
    from importlib.metadata import version  # 20 ms, which importing this module need not cost

    return version("apache-tvm-ffi")


def _exports(library: Path) -> list[str]:
    return sorted({name.decode() for name in _EXPORT.findall(library.read_bytes())})


class TorchBuilder(NativeBuilder):
    """Compiles sources with ``PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)`` and imports the module.

    It depends on the versions of torch and Python. Its initialisers run in the calling process.
    """

    name = "torch"
    bindings = (SupportedBindings.TORCH,)

    @staticmethod
    def unavailable_reason() -> str | None:
        """Only torch is needed: without a compiler, modules in the cache can still be used."""
        return None if find_spec("torch") else "torch is not installed; install 'torch'"

    def abi(self) -> str:
        """The versions of torch and Python: torch keeps no ABI between versions."""
        return _torch_abi()

    def toolkit(self, plan: BuildPlan) -> Toolkit:
        """Headers of torch and Python, libraries of torch."""
        import torch

        root = Path(torch.__file__).parent
        python = sysconfig.get_path("include")
        includes = [root / "include", root / "include" / "torch" / "csrc" / "api" / "include", python]
        flags = (
            "-std=c++20",
            "-DTORCH_API_INCLUDE_EXTENSION_H",
            f"-DTORCH_EXTENSION_NAME={_module_name(plan)}",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        )
        names = ["c10", "torch_cpu", "torch", "torch_python"]
        if plan.has_cuda:
            names += ["c10_cuda", "torch_cuda"]
            includes += [path for path in cuda_folders("include") if path.is_dir()]  # torch's headers want cuSPARSE's
        return Toolkit(tuple(map(str, includes)), flags, (f"-L{root / 'lib'}", *(f"-l{name}" for name in names)))

    def load(self, library: Path, plan: BuildPlan, solution: Solution) -> Any:
        """Import the module and return the entry function."""
        module = _import(_module_name(plan), library)
        symbol = solution.get_entry_symbol()
        function = getattr(module, symbol, None)
        if not callable(function):
            exports = ", ".join(name for name in dir(module) if not name.startswith("_")) or "nothing"
            raise BuildProblem(f"the module has no function {symbol!r}; it exports {exports}")
        return function


def _import(name: str, library: Path) -> ModuleType:
    import torch  # noqa: F401 - loads the libraries that the module is linked with

    try:
        return load_extension(name, library)
    except Exception as error:
        hint = "is PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) among the sources?"
        problem = f"importing the compiled module failed with {type(error).__name__}: {error}; {hint}"
        raise BuildProblem(problem) from error


@cache
def _torch_abi() -> str:
    from importlib.metadata import version

    return f"torch-{version('torch')}-{sys.implementation.cache_tag}"


def _module_name(plan: BuildPlan) -> str:
    return f"fib_torch_{plan.key}"
