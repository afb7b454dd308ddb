"""Hardware names of this machine, as traces state them."""

from __future__ import annotations


def local_hardware() -> tuple[str, ...]:
    """The hardware names of this machine's devices, the CPU last."""
    from fib_compile.device import hardware_from_device, list_cuda_devices

    return tuple(dict.fromkeys(hardware_from_device(device) for device in (*list_cuda_devices(), "cpu")))
