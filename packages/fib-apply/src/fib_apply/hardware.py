"""What this machine has, as traces name it."""

from __future__ import annotations


def hardware_at_hand() -> tuple[str, ...]:
    """What devices of this machine call themselves, the CPU last."""
    from fib_compile.device import hardware_from_device, list_cuda_devices

    return tuple(dict.fromkeys(hardware_from_device(device) for device in (*list_cuda_devices(), "cpu")))
