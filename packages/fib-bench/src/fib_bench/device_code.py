"""Device code: compilation of CUDA sources by NVRTC, and its publication in a cache folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from fib_schema import FibError
from fib_schema.files import staged


class DeviceCodeError(FibError):
    """Device code could not be compiled or published."""


def compile_device_code(sources: Mapping[str, str], architecture: str) -> bytes:
    """Compile sources to a cubin, the first with the others as its headers; `DeviceCodeError` if NVRTC fails.

    A process that has done so cannot be forked for workers any more. The architecture is, for example, ``sm_90``.
    """
    from cuda.bindings import nvrtc

    def check(result: tuple[object, ...]) -> object:
        status, *values = result
        if int(status) != 0:  # type: ignore[call-overload]
            raise DeviceCodeError(f"NVRTC failed with status {status}")
        return values[0] if values else None

    (name, text), *headers = ((name.encode(), text.encode()) for name, text in sources.items())
    names, texts = [name for name, _ in headers], [text for _, text in headers]
    program = check(nvrtc.nvrtcCreateProgram(text, name, len(headers), texts, names))
    flags = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    if int(status) != 0:
        log = b" " * int(check(nvrtc.nvrtcGetProgramLogSize(program)))  # type: ignore[call-overload]
        check(nvrtc.nvrtcGetProgramLog(program, log))
        raise DeviceCodeError(f"{name.decode()} does not compile:\n{log.decode(errors='replace')}")
    image: bytes = b" " * int(check(nvrtc.nvrtcGetCUBINSize(program)))  # type: ignore[call-overload]
    check(nvrtc.nvrtcGetCUBIN(program, image))
    return image


def publish(path: Path, module: str, *arguments: str) -> None:
    """Let a module write a file in a process of its own, and publish the file if that succeeds.

    The module is run with the arguments and the path to write to; what it prints in the end is in a `DeviceCodeError`.
    """
    with staged(path) as target:
        command = [sys.executable, "-P", "-m", module, *arguments, str(target)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise DeviceCodeError(run.stderr.strip()[-4000:] or f"the process ended with status {run.returncode}")
