"""Tests of device settings that outlive a worker, with a fake NVML."""

# ruff: noqa: N802 names of NVML

import attrs
import pytest
import torch
from fib_bench.judge.device import settings_of

USUAL = {
    "application_clocks_mhz": (2619, 1980), "compute_mode": 0, "persistence": 1, "power_limit_mw": 700_000
}  # fmt: skip


class FakeNvml:
    """A device with settings."""

    NVML_CLOCK_GRAPHICS, NVML_CLOCK_MEM = 0, 2

    class NVMLError(Exception):
        pass

    def __init__(self):
        self.clocks = {2: 2619, 0: 1980}
        self.mode, self.persistence, self.power = 0, 1, 700_000

    def nvmlDeviceGetApplicationsClock(self, handle, kind):
        return self.clocks[kind]

    def nvmlDeviceGetAutoBoostedClocksEnabled(self, handle):
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetComputeMode(self, handle):
        return self.mode

    def nvmlDeviceGetPersistenceMode(self, handle):
        return self.persistence

    def nvmlDeviceGetPowerManagementLimit(self, handle):
        return self.power


@pytest.fixture
def nvml(monkeypatch):
    device = FakeNvml()
    monkeypatch.setattr("fib_bench.judge.device._nvml_of", lambda _: (device, "handle"))
    return device


@pytest.mark.usefixtures("nvml")
def test_reads_what_the_device_tells(device_context):
    assert settings_of(device_context.device) == USUAL
    assert attrs.evolve(device_context, settings=USUAL).changed_settings() == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda nvml: nvml.clocks.update({0: 1200}), "application_clocks_mhz from (2619, 1980) to (2619, 1200)"),
        (lambda nvml: setattr(nvml, "mode", 3), "compute_mode from 0 to 3"),
        (lambda nvml: setattr(nvml, "persistence", 0), "persistence from 1 to 0"),
        (lambda nvml: setattr(nvml, "power", 200_000), "power_limit_mw from 700000 to 200000"),
    ],
)
def test_a_changed_setting_is_reported(nvml, device_context, change, expected):
    change(nvml)
    assert attrs.evolve(device_context, settings=USUAL).changed_settings() == [expected]


def test_a_setting_that_could_not_be_read_is_no_difference(nvml, device_context):
    nvml.power = 200_000
    known = {name: value for name, value in USUAL.items() if name != "power_limit_mw"} | {"auto_boost": 1}
    assert attrs.evolve(device_context, settings=known).changed_settings() == []


def test_the_cpu_has_no_settings():
    assert settings_of(torch.device("cpu")) == {}
