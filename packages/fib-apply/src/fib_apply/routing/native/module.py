"""Native module of guards: how it is built, tried and loaded.

A background thread takes the module from the cache or compiles it; `fib-apply warm` does so ahead of time. A child
process tries a compiled module before it is published. Routes use it once it is loaded (`loaded_guards`); until then,
and where it cannot be built, they use compiled Python guards.

It is neither built nor loaded in free-threaded Python, where the GIL does not protect its tables, and in
subinterpreters.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
from fib_schema import FibError, get_fib_cache_path
from fib_schema.files import private_folder

from ...build_service.executor import BackgroundExecutor
from ...events import logger

if TYPE_CHECKING:  # most processes find nothing to build, and building imports much
    from fib_compile import Limits
    from fib_compile.native_module import NativeModule

NATIVE_VARIABLE = "FIB_APPLY_NATIVE"
_NAME = "fib_apply_native"
_SOURCES = ("guards.cpp", "table.h", "guard.h", "conditions.h")
_FLAGS = (
    "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror",
    "-Wno-missing-field-initializers", "-Wl,-z,relro,-z,now",
)  # fmt: skip
_LIBRARIES = ("-lc10", "-ltorch_cpu", "-ltorch_python")
_COMPILE_SECONDS = 300.0


NativeGuards: TypeAlias = Any
"""The native module: ``Table``, ``MISS`` (returned by a table that has no entry for a call) and ``make_guard``, which
returns None for a call that it cannot describe; see `guards.make_native_guard` for its arguments."""


@attrs.define(eq=False)
class _State:
    """The module of this process."""

    guards: NativeGuards | None = None
    problem: str | None = None
    is_requested: bool = False
    on_ready: list[Callable[[], None]] = attrs.field(factory=list)
    lock: threading.RLock = attrs.field(factory=threading.RLock)
    executor: BackgroundExecutor = attrs.field(factory=BackgroundExecutor)


_state = _State()


def forget_request() -> None:
    """Forget a request in a forked child, which has no thread that serves it."""
    global _state  # noqa: PLW0603 one state per process
    _state = _State(_state.guards, _state.problem)


def loaded_guards() -> NativeGuards | None:
    """The native module, if it is loaded; never waits."""
    return _state.guards


def guards_in_use() -> str:
    """The guards that routes use now, and why they are not native ones."""
    if _state.guards is not None:
        return "native guards"
    if (reason := _unsupported_reason() or _state.problem) is not None:
        return f"Python guards, because native ones are not used: {reason}"
    return f"Python guards, because native ones {'are being built' if _state.is_requested else 'are not loaded yet'}"


def request_native(on_ready: Callable[[], None]) -> None:
    """Load or build the native module in the background, once per process."""
    if _state.guards is not None or (_state.is_requested and on_ready in _state.on_ready) or _unsupported_reason():
        return
    with _state.lock:
        if on_ready not in _state.on_ready:
            _state.on_ready.append(on_ready)
        is_first, _state.is_requested = not _state.is_requested, True
    if is_first:
        _state.executor.submit(_prepare_in_background, "building native guards")


def wait_for_native(timeout_seconds: float) -> bool:
    """Wait for a requested module; returns whether nothing is pending."""
    return _state.executor.wait(timeout_seconds)


def prepare_native(limits: Limits | None = None) -> str | None:
    """Load the native module in this thread, and build it if need be.

    Returns:
        Why it cannot be used; None if it is loaded.
    """
    from fib_compile import Limits

    state = _state
    if (reason := _unsupported_reason()) is None and state.guards is not None:
        return None
    limits = limits or Limits(_COMPILE_SECONDS, is_stopped=lambda: state.executor.is_closed)
    state.problem = reason or _load(state, limits)
    return state.problem


def _prepare_in_background() -> None:
    state, problem = _state, prepare_native()
    if problem is not None:
        logger.info("native guards are not used: %s", problem)
        return
    with state.lock:
        callbacks, state.on_ready = state.on_ready, []
    for callback in callbacks:
        callback()


def _unsupported_reason() -> str | None:
    if os.environ.get(NATIVE_VARIABLE) == "0":
        return f"{NATIVE_VARIABLE} is 0"
    if sys.implementation.name != "cpython":
        return f"{sys.implementation.name} is not CPython"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "Python is free-threaded; the tables of native guards need the GIL"
    return None


def _load(state: _State, limits: Limits) -> str | None:
    """Build and load the module, which a child process has tried; returns the problem."""
    try:
        state.guards = import_guards(build_guards(module_folder(), limits))
    except (FibError, OSError, ImportError) as error:
        return str(error)
    return None


def module_folder() -> Path:
    """The folder of built modules; no other user can change it.

    Raises:
        UnsafePath: Another user could replace a module.
        OSError: It cannot be made.
    """
    return private_folder(get_fib_cache_path() / "fib-apply-native-v1")


def native_module() -> NativeModule:
    """The module to compile. torch keeps no ABI between versions, so its exact build is part of the key."""
    import torch
    from fib_compile.native_module import NativeModule

    root = Path(torch.__file__).parent
    includes = (root / "include", root / "include/torch/csrc/api/include", Path(sysconfig.get_path("include")))
    abi = (
        torch.__version__, str(torch.version.git_version), str(torch.version.debug),
        sys.version, str(sysconfig.get_config_var("SOABI")),
    )  # fmt: skip
    return NativeModule(
        name=_NAME,
        sources={name: resources.files(__package__).joinpath(name).read_text("utf-8") for name in _SOURCES},
        flags=(*_FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"),
        paths=(*(word for path in includes for word in ("-isystem", str(path))), f"-L{root / 'lib'}"),
        libraries=_LIBRARIES,
        abi="\0".join(abi),
        self_test=__name__,
        self_test_environment={"FIB_ENABLE_APPLY": "0", NATIVE_VARIABLE: "0"},
    )


def build_guards(folder: Path, limits: Limits) -> Path:
    """Compile the module, unless the folder has it; a child process tries it before it is published.

    Raises:
        ModuleNotBuilt: It cannot be built, or does not work.
    """
    from fib_compile.native_module import build_module

    return build_module(native_module(), folder, limits)


def import_guards(path: Path) -> Any:
    """Import the module from a file.

    Raises:
        ImportError: It does not fit torch or Python, or this is a subinterpreter.
    """
    import torch
    from fib_compile.toolchain import load_extension
    from torch.utils._device import DeviceContext

    module: Any = load_extension(_NAME, path)
    module.configure(DeviceContext, torch.cuda.is_current_stream_capturing)
    return module


def _main() -> None:
    from .self_test import find_problem

    sys.exit(find_problem(import_guards(Path(sys.argv[1]))))


if __name__ == "__main__":
    _main()
