"""One run at a time measures on a physical device, whoever started the others.

A lock is a file in a folder that all users of the machine share, named by the device's UUID. The
system drops it with the process that holds it, however that ends.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import torch
from filelock import FileLock

FOLDER_VARIABLE = "FIB_BENCH_LOCKS"
"""The folder, where the default will not do: containers that share a device must share it."""
_FOLDER = Path("/tmp/fib-bench-locks")
_FOR_ALL = 0o1777


def lock_of(device: torch.device) -> FileLock:
    """The lock of a device; entered, it waits until nobody else measures there.

    Raises:
        OSError: The folder cannot be made.
    """
    folder = Path(os.environ.get(FOLDER_VARIABLE) or _FOLDER)
    if not folder.is_dir():
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
        with suppress(PermissionError):  # another user was faster
            folder.chmod(_FOR_ALL)
    path = folder / f"{identity_of(device)}.lock"
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW)
        os.fchmod(descriptor, 0o666)
        os.close(descriptor)
    return FileLock(path, thread_local=False)


def identity_of(device: torch.device) -> str:
    """The device's UUID, which no other device has; ``cpu`` for the processors of this machine."""
    if device.type == "cpu":
        return "cpu"
    return re.sub(r"[^\w-]", "", str(torch.cuda.get_device_properties(device).uuid))
