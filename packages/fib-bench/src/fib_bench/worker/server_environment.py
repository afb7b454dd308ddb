"""Environment variables of the fork server, which its workers inherit."""

from __future__ import annotations

import os

from fib_compile.toolchain import VARIABLES_VARIABLE, compiler_environment
from fib_schema import get_fib_cache_path

from ..sandbox.model import LIMIT_VARIABLE

_INHERITED = frozenset({
    "PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CC", "CXX",
    "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CUTLASS_PATH", "CUTLASS_HOME", "TRITON_INTERPRET",
    "GOMP_SPINCOUNT", "OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND",
    LIMIT_VARIABLE, VARIABLES_VARIABLE,
})  # fmt: skip
_OWN_OF_WORKERS = ("HOME", "TMPDIR", "LC_ALL")


def server_environment(device: str) -> dict[str, str]:
    """The variables for a device: some of the judge's, and fixed ones.

    Args:
        device: ``cpu`` or ``cuda:N``.
    """
    # Workers find the libraries that were compiled ahead only if they would pass compilers the same variables.
    own = {name: value for name, value in compiler_environment().items() if name not in _OWN_OF_WORKERS}
    inherited = own | {name: value for name, value in os.environ.items() if name in _INHERITED}
    fixed = {
        "OPENBLAS_NUM_THREADS": "1",  # a thread started by an import would not survive a fork
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",
        "FIB_CACHE_PATH": str(get_fib_cache_path().absolute()),  # workers have other homes and folders
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # more start a pool of processes, seconds after the call that compiles
    }
    return _with_cpu_settings(inherited) | fixed if device == "cpu" else inherited | fixed | _CUDA_SETTINGS


_CUDA_SETTINGS = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}  # the server must not initialise CUDA: it forks


def _with_cpu_settings(inherited: dict[str, str]) -> dict[str, str]:
    """Triton's interpreter, steady OpenMP threads and steady memory."""
    # about half a millisecond, which spans the time between two parallel regions: waking a thread up takes
    # longer than many a kernel; by default it spins for much longer, on a core that another may need
    threads = str(max(len(os.sched_getaffinity(0)) - 1, 1))  # the judge's clock needs a core
    settings = {"GOMP_SPINCOUNT": "50000", "OMP_NUM_THREADS": threads} | inherited
    if not {"OMP_PROC_BIND", "OMP_PLACES"} & set(inherited):
        settings |= {"OMP_PROC_BIND": "close", "OMP_PLACES": _places()}
    # without thresholds, earlier frees decide whether memory comes from the heap or from the system
    memory = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
    return settings | memory | {"TRITON_INTERPRET": "1"}


def _places() -> str:
    """A core for each thread of a team but the first, which others inherit from: else two can share one for long."""
    cores = sorted(os.sched_getaffinity(0))
    return ",".join("{" + ",".join(map(str, place)) + "}" for place in (cores, *([core] for core in cores[1:])))
