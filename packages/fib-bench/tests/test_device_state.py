"""Tests of device settings that outlive a worker, with a fake NVML."""

# ruff: noqa: N802 names of NVML

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fib_bench.timing.device import DeviceSettings, SettingChange, settings_of

USUAL = {
    "application_clocks_mhz": (2619, 1980), "compute_mode": 0, "persistence": 1, "power_limit_mw": 700_000
}  # fmt: skip


class FakeNvml:
    """A device with settings that can be changed, or that refuses to."""

    NVML_CLOCK_GRAPHICS, NVML_CLOCK_MEM = 0, 2

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.clocks = {2: 2619, 0: 1980}
        self.mode, self.persistence, self.power = 0, 1, 700_000
        self.may_set = True

    def nvmlDeviceGetApplicationsClock(self, handle: object, kind: int) -> int:
        return self.clocks[kind]

    def nvmlDeviceGetAutoBoostedClocksEnabled(self, handle: object) -> list[int]:
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetComputeMode(self, handle: object) -> int:
        return self.mode

    def nvmlDeviceGetPersistenceMode(self, handle: object) -> int:
        return self.persistence

    def nvmlDeviceGetPowerManagementLimit(self, handle: object) -> int:
        return self.power

    def _check(self) -> None:
        if not self.may_set:
            raise self.NVMLError("Insufficient Permissions")

    def nvmlDeviceSetApplicationsClocks(self, handle: object, memory: int, graphics: int) -> None:
        self._check()
        self.clocks = {2: memory, 0: graphics}

    def nvmlDeviceSetComputeMode(self, handle: object, mode: int) -> None:
        self._check()
        self.mode = mode

    def nvmlDeviceSetPersistenceMode(self, handle: object, mode: int) -> None:
        self._check()
        self.persistence = mode

    def nvmlDeviceSetPowerManagementLimit(self, handle: object, limit: int) -> None:
        self._check()
        self.power = limit


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml()


@pytest.fixture
def settings(nvml: FakeNvml) -> DeviceSettings:
    return DeviceSettings(nvml, "handle")


def test_reads_what_the_device_tells(settings: DeviceSettings) -> None:
    assert settings.read() == USUAL


def test_unchanged_settings_are_no_difference(settings: DeviceSettings) -> None:
    assert settings.restore(settings.read()) == ()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda nvml: nvml.clocks.update({0: 1200}),
            SettingChange("application_clocks_mhz", (2619, 1980), (2619, 1200)),
        ),
        (lambda nvml: setattr(nvml, "mode", 3), SettingChange("compute_mode", 0, 3)),
        (lambda nvml: setattr(nvml, "persistence", 0), SettingChange("persistence", 1, 0)),
        (lambda nvml: setattr(nvml, "power", 200_000), SettingChange("power_limit_mw", 700_000, 200_000)),
    ],
)
def test_a_changed_setting_is_reported_and_restored(
    nvml: FakeNvml, settings: DeviceSettings, change: Callable[[FakeNvml], None], expected: SettingChange
) -> None:
    before = settings.read()
    change(nvml)
    assert settings.restore(before) == (expected,)
    assert settings.read() == before
    assert "restored" in str(expected)


def test_what_may_not_be_restored_is_reported_with_the_reason(nvml: FakeNvml, settings: DeviceSettings) -> None:
    before = settings.read()
    nvml.mode, nvml.may_set = 2, False
    (change,) = settings.restore(before)
    assert change == SettingChange("compute_mode", 0, 2, "Insufficient Permissions")
    assert str(change).endswith("from 0 to 2 (not restored: Insufficient Permissions)")


def test_a_setting_that_could_not_be_read_is_no_difference(nvml: FakeNvml, settings: DeviceSettings) -> None:
    nvml.power = 200_000
    assert settings.restore({name: value for name, value in USUAL.items() if name != "power_limit_mw"}) == ()


def test_the_cpu_has_no_settings() -> None:
    assert settings_of(torch.device("cpu")) is None
