"""Fused comparison. Kernels that compare an output in one launch, and the fallback to torch's own code.

The kernels are compiled once for a device model and a version of torch, into a private folder of this user, which
sandboxed solutions cannot write, like that of the timing module. A separate process first compares them with torch on
the device, and publishes them if they agree: a kernel that fails there ends no judge (`kernel_cache`). Each judge
checks each dtype once more before its first use. After any failure `fused` returns None, and `fallback_reason` states
why.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import attrs
import torch
from fib_schema import FibError
from fib_schema.files import atomic_write
from fib_schema.framing import framed

from ..device_code import compile_device_code
from ..sandbox.syscalls import PR_SET_PDEATHSIG, prctl
from .elements import is_on_cpu
from .fused_kernels import KINDS, THREADS, Job, Kernels, source
from .fused_self_test import check_kernels
from .kernel_cache import BUILD_SECONDS, built, cache_folder, failure_of, is_decided

T = TypeVar("T")
_NAMES = ("fib_compare", "fib_probe", "fib_extent")


class NotFused(FibError):
    """The driver refuses the kernels."""


def fused(like: torch.Tensor, use: Callable[[Kernels], T]) -> T | None:
    """Use the kernels; None where torch's own code has to be used.

    Args:
        like: The expected output: its device, dtype and size decide whether the kernels take it.
        use: Called with the kernels.
    """
    if is_on_cpu(like) or like.dtype not in KINDS or not like.numel():
        return None
    if like.device not in _opened:
        _opened[like.device] = _Opened(like.device)
    return _opened[like.device].attempt(like.dtype, use)


def fallback_reason() -> str:
    """The reason for which this process uses torch's own code on a CUDA device; empty if it does not."""
    return "; ".join(opened.problem for opened in _opened.values() if opened.problem)


@attrs.define(eq=False)
class _Opened:
    """The kernels of one device, in this process."""

    device: torch.device
    problem: str = ""
    _kernels: Kernels | None = None
    _checked: set[torch.dtype] = attrs.field(factory=set)

    def attempt(self, dtype: torch.dtype, use: Callable[[Kernels], T]) -> T | None:
        """Use the kernels for a dtype, unless they failed before."""
        if self.problem:
            return None
        try:
            if dtype not in self._checked:
                self._check(dtype)
            assert self._kernels is not None
            return use(self._kernels)
        except torch.OutOfMemoryError:
            raise  # torch's own code takes more
        except Exception as error:  # noqa: BLE001 whatever it is, torch's own code needs none of this
            self.problem = f"{type(error).__name__}: {error}"
            return None

    def _check(self, dtype: torch.dtype) -> None:
        if self._kernels is None:
            self._kernels = kernels_on(self.device, built(image_path(self.device), str(self.device)))
        check_kernels(self._kernels, dtype, self.device, is_brief=True)
        self._checked.add(dtype)


_opened: dict[torch.device, _Opened] = {}


class DriverModule:
    """The kernels, loaded into the current context.

    Args:
        image: The compiled kernels.

    Raises:
        NotFused: The driver refuses them.
        OSError: There is no driver.
    """

    def __init__(self, image: bytes) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._driver.cuLaunchKernel.argtypes = (
            ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
        )  # fmt: skip
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), image)
        self._functions = {name: ctypes.c_void_p() for name in _NAMES}
        for name, function in self._functions.items():
            self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())

    def launch(self, name: str, blocks: int, job: Job, stream: int) -> None:
        """Launch a kernel; does not wait for it.

        Raises:
            NotFused: The driver refuses it.
        """
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(job))
        function = self._functions[name]
        self._call("cuLaunchKernel", function, blocks, 1, 1, THREADS, 1, 1, 0, stream, arguments, None)

    def _call(self, name: str, *arguments: object) -> None:
        if (status := getattr(self._driver, name)(*arguments)) != 0:
            raise NotFused(f"{name} failed with error {status} of the CUDA driver")


def kernels_on(device: torch.device, image: bytes) -> Kernels:
    """The kernels, loaded for a device.

    Args:
        device: A CUDA device.
        image: The compiled kernels.

    Raises:
        NotFused: The driver refuses them.
        OSError: There is no driver.
    """
    with torch.cuda.device(device):
        torch.zeros(1, device=device)  # makes the context
        module = DriverModule(image)

    def launch(name: str, blocks: int, job: Job) -> None:
        with torch.cuda.device(device):
            module.launch(name, blocks, job, torch.cuda.current_stream(device).cuda_stream)

    return Kernels(launch)


def image_path(device: torch.device) -> Path:
    """The file of the kernels for the model of a device, this version of torch and this source."""
    model = torch.cuda.get_device_properties(device).name
    key = hashlib.sha256(framed((source(), _architecture(device), model, torch.__version__))).hexdigest()[:32]
    return cache_folder() / f"comparison-{key}.cubin"


def _architecture(device: torch.device) -> str:
    properties = torch.cuda.get_device_properties(device)
    return f"sm_{properties.major}{properties.minor}"


def build(device: torch.device, path: Path) -> None:
    """Compile the kernels, compare them with torch on a device, and write them to a file; else write why not.

    Raises:
        torch.OutOfMemoryError: The device has too little free memory.
        SystemExit: They do not compile, fail, or differ from torch.
    """
    try:
        image = compile_device_code({"comparison.cu": source()}, _architecture(device), "--fmad=false")
        kernels = kernels_on(device, image)
        for dtype in KINDS:
            check_kernels(kernels, dtype, device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 whatever it is, torch's own code needs none of this
        atomic_write(failure_of(path), f"{type(error).__name__}: {error}".encode(), mode=0o600)
        sys.exit(1)
    atomic_write(path, image, mode=0o600)


def main(device: str, path: str = "") -> None:
    """Build the kernels for a device, unless the cache has them."""
    signal.alarm(BUILD_SECONDS)  # ends this process: judges wait for its lock
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    target = Path(path) if path else image_path(torch.device(device))
    if not is_decided(target):
        try:
            build(torch.device(device), target)
        except torch.OutOfMemoryError:
            sys.exit(os.EX_TEMPFAIL)


if __name__ == "__main__":
    main(*sys.argv[1:])
