"""Device names, environment snapshots, and dtypes of torch and Python.

Importing this does not import torch. Only `hardware_from_device` and `env_snapshot` of a CUDA device initialise CUDA
in the calling process.
"""

from __future__ import annotations

import functools
import importlib.util
import platform
import re
import runpy
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fib_schema import DType, Environment, TensorSpec
from fib_schema.definition import TORCH_DTYPE_NAMES
from fib_schema.settings import InvalidSetting

from ._plan import InvalidArch, architectures
from .errors import InvalidDevice
from .toolchain import MissingTool, find_cxx, find_nvcc

if TYPE_CHECKING:
    import torch

_CUDA_DEVICE = re.compile(r"cuda:(0|[1-9][0-9]*)")
_LIBRARIES: Mapping[str, str] = {
    "torch": "torch",
    "triton": "triton",
    "tilelang": "tilelang",
    "helion": "helion",
    "cutile": "cuda-tile",
    "cute_dsl": "nvidia-cutlass-dsl",
    "tvm_ffi": "apache-tvm-ffi",
}


def parse_device(name: str) -> int | None:
    """The index of a CUDA device, or None for ``cpu``.

    Raises:
        InvalidDevice: The name is neither ``cpu`` nor ``cuda:N``.
    """
    if name == "cpu":
        return None
    match = _CUDA_DEVICE.fullmatch(name)
    if match is None:
        raise InvalidDevice(name)
    return int(match[1])


def is_cuda_available() -> bool:
    """Whether there is a CUDA device, read from NVML so that this process can still fork afterwards."""
    import torch

    return torch.cuda.device_count() > 0  # counts through NVML; torch.cuda.is_available() would initialise CUDA


def list_cuda_devices() -> list[str]:
    """The CUDA devices that this process sees: ``cuda:0``, ``cuda:1``, and so on."""
    import torch

    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


def architectures_of_machine() -> tuple[str, ...]:
    """The architectures of ``FIB_CUDA_ARCH_LIST``, else of the devices, such as ``("9.0a",)``; empty without either.

    Those of devices are read by `nvidia-smi`, once in this process and those that it forks.
    """
    try:
        return architectures(())
    except InvalidArch:
        return ()


def identify_compilers(device: str) -> None:
    """Identify the compilers of a device's solutions, so that this process and its forks need not ask them again.

    Asking takes from 0.1 s (C++) to seconds (nvcc). A missing one is reported by the build that needs it.
    """
    for find in (find_cxx, find_nvcc) if parse_device(device) is not None else (find_cxx,):
        with suppress(MissingTool):
            find()


def hardware_from_device(device: str) -> str:
    """The name of a device's hardware: ``torch.cuda.get_device_name``, or ``cpu``.

    Raises:
        InvalidDevice: The name is neither ``cpu`` nor ``cuda:N``.
        RuntimeError: There is no such device.
    """
    index = parse_device(device)
    if index is None:
        return "cpu"
    import torch

    if index >= torch.cuda.device_count():
        have = ", ".join(["cpu", *list_cuda_devices()])
        raise RuntimeError(f"there is no device {device!r} on this machine (it has {have})")
    return torch.cuda.get_device_name(index)


def env_snapshot(device: str) -> Environment:
    """The environment of an evaluation; raises as `hardware_from_device`."""
    return Environment(hardware=hardware_from_device(device), libs=library_versions())


def library_versions() -> dict[str, str]:
    """Versions of Python, CUDA (torch's) and the installed libraries that run kernels."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name, distribution in _LIBRARIES.items():
        try:
            found[name] = version(distribution)
        except PackageNotFoundError:
            continue
    if cuda := torch_cuda_version():
        found["cuda"] = cuda
    return found


def torch_dtype(dtype: DType | str) -> torch.dtype:
    """The dtype of torch; ``float4_e2m1`` is ``torch.float4_e2m1fn_x2``, two to a byte.

    Raises:
        InvalidSetting: It is not a dtype of definitions (a ValueError).
    """
    return _torch_dtype(_known(dtype))


@functools.cache
def _torch_dtype(dtype: DType) -> torch.dtype:
    import torch

    found: torch.dtype = getattr(torch, TORCH_DTYPE_NAMES[dtype])
    return found


def is_dtype_integer(dtype: DType | str) -> bool:
    """Whether a dtype is an integer dtype; bool is not. Raises `InvalidSetting` as `torch_dtype`."""
    return TensorSpec((), _known(dtype)).is_integer


def dtype_str_to_torch_dtype(dtype: str) -> torch.dtype:
    """`torch_dtype` under its documented name."""
    return torch_dtype(dtype)


def dtype_str_to_python_dtype(dtype: str) -> type[int] | type[float] | type[bool]:
    """The Python type of a scalar of a dtype; raises `InvalidSetting` as `torch_dtype`."""
    if _known(dtype) is DType.BOOL:
        return bool
    return int if is_dtype_integer(dtype) else float


def _known(dtype: DType | str) -> DType:
    try:
        return DType(dtype)
    except ValueError as error:
        raise InvalidSetting("dtype", dtype, f"one of {', '.join(DType)}") from error


def torch_cuda_version() -> str | None:
    """The CUDA version that torch was built for, read from its version file: importing torch takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).with_name("version.py")
    cuda = runpy.run_path(str(file)).get("cuda")
    return cuda if isinstance(cuda, str) else None
