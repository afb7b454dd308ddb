"""Cache of the kernels of fused comparisons: a private folder, and the process that fills it. Imports no torch.

That process holds a lock of the folder. A judge that needs the kernels takes the lock, so it waits for them.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fib_schema import get_fib_cache_path
from fib_schema.files import atomic_write
from fib_schema.private_files import private_folder, read_private

BUILD_SECONDS = 120
"""The time limit of a build."""
_BUILDER = "fib_bench.checking.fused_comparison"


class NotBuilt(Exception):
    """The kernels could not be built, or differ from torch."""


def cache_folder() -> Path:
    """The folder of built kernels, which no other user can change; it may be deleted at any time.

    Raises:
        UnsafePath: Another user could replace the kernels.
        OSError: It cannot be made.
    """
    return private_folder(get_fib_cache_path() / "fib-bench-comparison-v1")


def failure_of(path: Path) -> Path:
    """The file that states why kernels could not be built; as long as it exists, they are not built again."""
    return path.with_suffix(".failed")


def is_decided(path: Path) -> bool:
    """Whether kernels were built, or could not be."""
    return path.exists() or failure_of(path).exists()


@contextmanager
def building_ahead(device: str) -> Iterator[subprocess.Popen[bytes] | None]:
    """Build while a block imports torch, unless the cache has kernels or another process builds.

    The block gets the process, which is killed at the end of the block.

    Args:
        device: For example ``cuda:0``; nothing is built for other kinds of devices.
    """
    process = None
    with suppress(OSError):  # the first comparison finds out why, and is made by torch
        process = _start(device)
    try:
        yield process
    finally:
        if process is not None:
            process.kill()
            process.wait()


def _start(device: str) -> subprocess.Popen[bytes] | None:
    if not device.startswith("cuda"):
        return None
    folder = cache_folder()
    with _lock_file(folder).open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        if any(map(is_decided, folder.glob("comparison-*"))):
            return None
        nowhere = subprocess.DEVNULL
        return subprocess.Popen(  # it inherits the lock
            _command(device), pass_fds=[file.fileno()], stdin=nowhere, stdout=nowhere, stderr=nowhere
        )


def built(path: Path, device: str) -> bytes:
    """Kernels of the cache, built if they are not there.

    Args:
        path: The file in the cache.
        device: The device to build for.

    Raises:
        NotBuilt: They could not be built, now or earlier.
        subprocess.TimeoutExpired: It took too long.
        OSError: The folder cannot be used.
    """
    failure = failure_of(path)
    with _locked(path.parent):
        if not is_decided(path):
            run = subprocess.run(
                _command(device, str(path)), capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
            )
            if run.returncode == os.EX_TEMPFAIL:
                raise NotBuilt("the device has too little free memory to check the kernels")
            if not is_decided(path):
                text = f"{run.stderr}\nthe process that checks the kernels ended with status {run.returncode}"
                atomic_write(failure, text.encode(), mode=0o600)
        if failure.exists():
            last = read_private(failure).decode(errors="replace").splitlines()[-1]
            raise NotBuilt(f"{last} (to try again, delete {failure})")
        return read_private(path)


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", _BUILDER, *arguments]


def _lock_file(folder: Path) -> Path:
    return folder / "lock"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with _lock_file(folder).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
