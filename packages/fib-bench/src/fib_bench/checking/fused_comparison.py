"""Fused comparison. Kernels that compare an output in one launch, and the fallback to torch's own code.

The kernels are compiled once for a device model and a version of torch, into a private folder of this user, which
sandboxed solutions cannot write, like that of the timing module. A separate process first compares them with torch on
the device, and publishes them if they agree: a kernel that fails there ends no judge. Each judge checks each dtype once
more before its first use. After any failure `fused` returns None, and `fallback_reason` states the reason.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import attrs
import torch
from fib_schema import FibError, get_fib_cache_path
from fib_schema.files import atomic_write
from fib_schema.framing import framed
from fib_schema.private_files import private_folder, read_private

from ..device_code import DeviceCodeError, compile_device_code, publish
from .elements import is_on_cpu
from .fused_kernels import KINDS, THREADS, Job, Kernels, source
from .fused_self_test import check_kernels

T = TypeVar("T")
_BUILD_SECONDS = 120.0
_NAMES = ("fib_compare", "fib_probe", "fib_extent")


class NotFused(FibError):
    """The kernels cannot be used on a device."""


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
    """Why this process uses torch's own code on a CUDA device; nothing if it does not."""
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
            self._kernels = kernels_on(self.device, image_for(self.device))
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


def image_for(device: torch.device) -> bytes:
    """The kernels for a device, compiled and compared with torch once for its model.

    Raises:
        NotFused: They do not compile, fail or differ from torch; unless memory was short, this is remembered.
        subprocess.TimeoutExpired: That took too long.
        OSError: The folder cannot be used.
    """
    properties = torch.cuda.get_device_properties(device)
    return published(f"sm_{properties.major}{properties.minor}", properties.name, str(device))


def published(architecture: str, model: str, device: str) -> bytes:
    """The same by what identifies the image: the architecture, the model of the device, and the device to build on."""
    key = hashlib.sha256(framed((source(), architecture, model, torch.__version__))).hexdigest()[:32]
    folder = private_folder(get_fib_cache_path() / "fib-bench-comparison-v1")
    path, failure = folder / f"comparison-{key}.cubin", folder / f"comparison-{key}.failed"
    with _locked(folder / "lock"):
        if not path.exists() and not failure.exists():
            try:
                publish(path, __name__, architecture, device, seconds=_BUILD_SECONDS)
            except DeviceCodeError as error:
                if "OutOfMemoryError" in str(error):
                    raise NotFused(str(error)) from error
                atomic_write(failure, str(error).encode(), mode=0o600)
        if failure.exists():
            last = read_private(failure).decode(errors="replace").splitlines()[-1]
            raise NotFused(f"{last} (to try again, delete {failure})")
        return read_private(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Exclude other judges that start at the same time."""
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(architecture: str, device: str, path: str) -> None:
    """Compile the kernels, compare them with torch on a device, and write them to a file."""
    image = compile_device_code({"comparison.cu": source()}, architecture, "--fmad=false")
    kernels = kernels_on(torch.device(device), image)
    for dtype in KINDS:
        check_kernels(kernels, dtype, torch.device(device))
    Path(path).write_bytes(image)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:  # noqa: BLE001 the judge repeats it as the reason
        sys.exit(f"{type(error).__name__}: {error}")
