"""Device settings that outlive a worker: clocks, power limit, compute mode, persistence.

A worker cannot change them where the sandbox holds: NVIDIA's kernel driver asks for ``CAP_SYS_ADMIN`` at each
request (``NV_IS_SUSER`` in its open modules), which `sandbox.users.drop_privileges` drops, also for root, and
NVML documents every such call as reserved for administrators. An administrator may have opened application clocks
and auto boost to all users (``nvidia-smi -acp UNRESTRICTED``), and the sandbox may be switched off. So the judge
reads the settings before and after each worker, reports differences, and restores them where it may.

Locked clocks (``nvidia-smi -lgc``) can be set and reset but not read, so they are not settings here: resetting
them unasked would undo what an operator has locked. `clock_monitor` sees the clocks that they lead to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch


@attrs.frozen
class DeviceState:
    """The settings of a device at one time; None where the device or the driver does not report a setting.

    Args:
        application_clocks_mhz: The clocks of the memory and of the multiprocessors that applications ask for.
        auto_boost: Whether the device raises its clocks by itself.
        compute_mode: NVML's number for who may use the device: 0 default, 2 prohibited, 3 one process.
        persistence: Whether the driver stays loaded without clients.
        power_limit_mw: In milliwatts.
    """

    application_clocks_mhz: tuple[int, int] | None = None
    auto_boost: bool | None = None
    compute_mode: int | None = None
    persistence: bool | None = None
    power_limit_mw: int | None = None


@attrs.frozen
class SettingChange:
    """A setting that differs between two readings.

    Args:
        setting: The name of the field of `DeviceState`.
        before: Its value in the first reading.
        after: Its value in the second one.
        problem: Why it was not restored; empty where it was.
    """

    setting: str
    before: object
    after: object
    problem: str = ""

    def __str__(self) -> str:
        outcome = f"not restored: {self.problem}" if self.problem else "restored"
        return f"{self.setting} of the device changed from {self.before} to {self.after} ({outcome})"


class DeviceSettings:
    """Reads and restores the settings of one device.

    Args:
        nvml: The module ``pynvml``, initialised.
        handle: Its handle of the device.
    """

    def __init__(self, nvml: Any, handle: object) -> None:
        self._nvml = nvml
        self._handle = handle
        self._readers: Mapping[str, Callable[[], object]] = {
            "application_clocks_mhz": self._application_clocks,
            "auto_boost": lambda: bool(nvml.nvmlDeviceGetAutoBoostedClocksEnabled(handle)[0]),
            "compute_mode": lambda: int(nvml.nvmlDeviceGetComputeMode(handle)),
            "persistence": lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle)),
            "power_limit_mw": lambda: int(nvml.nvmlDeviceGetPowerManagementLimit(handle)),
        }
        self._writers: Mapping[str, Callable[[Any], object]] = {
            "application_clocks_mhz": lambda clocks: nvml.nvmlDeviceSetApplicationsClocks(handle, *clocks),
            "auto_boost": lambda enabled: nvml.nvmlDeviceSetAutoBoostedClocksEnabled(handle, int(enabled)),
            "compute_mode": lambda mode: nvml.nvmlDeviceSetComputeMode(handle, mode),
            "persistence": lambda enabled: nvml.nvmlDeviceSetPersistenceMode(handle, int(enabled)),
            "power_limit_mw": lambda limit: nvml.nvmlDeviceSetPowerManagementLimit(handle, limit),
        }

    def read(self) -> DeviceState:
        """The current settings."""
        return DeviceState(**{name: self._value(reader) for name, reader in self._readers.items()})  # type: ignore[arg-type]

    def restore(self, before: DeviceState) -> tuple[SettingChange, ...]:
        """Compare the current settings with earlier ones, and restore those that differ.

        A setting that could not be read at either time is not a difference.

        Returns:
            The differences, each with the reason if it could not be restored.
        """
        after = self.read()
        changes = []
        for name in self._readers:
            old, new = getattr(before, name), getattr(after, name)
            if old is not None and new is not None and old != new:
                changes.append(SettingChange(name, old, new, self._write(name, old)))
        return tuple(changes)

    def _application_clocks(self) -> tuple[int, int]:
        memory, graphics = (
            int(self._nvml.nvmlDeviceGetApplicationsClock(self._handle, kind))
            for kind in (self._nvml.NVML_CLOCK_MEM, self._nvml.NVML_CLOCK_GRAPHICS)
        )
        return memory, graphics

    def _value(self, reader: Callable[[], object]) -> object | None:
        try:
            return reader()
        except self._nvml.NVMLError:
            return None  # not supported by this device, or deprecated in this driver

    def _write(self, name: str, value: object) -> str:
        """Restore a setting; returns the reason where that fails."""
        try:
            self._writers[name](value)
        except self._nvml.NVMLError as error:
            return str(error)
        return ""


def settings_of(device: torch.device) -> DeviceSettings | None:
    """The settings of a CUDA device; None on the CPU and without NVML."""
    if device.type == "cpu":
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        return DeviceSettings(pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    except pynvml.NVMLError:
        return None
