"""Devices and dtypes: functions of `fib_compile.device`."""

from __future__ import annotations

from fib_compile.device import (
    dtype_str_to_python_dtype,
    dtype_str_to_torch_dtype,
    env_snapshot,
    hardware_from_device,
    is_cuda_available,
    is_dtype_integer,
    list_cuda_devices,
)
from fib_compile.device import torch_dtype as torch_dtype_from_def

from .replaced import make_getattr

__all__ = [
    "dtype_str_to_python_dtype",
    "dtype_str_to_torch_dtype",
    "env_snapshot",
    "hardware_from_device",
    "is_cuda_available",
    "is_dtype_integer",
    "list_cuda_devices",
    "torch_dtype_from_def",
]

__getattr__ = make_getattr(__name__)
