"""Architectures come from the variable, the devices or the solution's hardware, in this order."""

import pytest
from fib_compile import _plan
from fib_compile._plan import InvalidArch, architectures, gencode_flags, parse_architectures, runs_on
from fib_compile.device import architectures_of_machine


@pytest.fixture(autouse=True)
def no_device(monkeypatch):
    monkeypatch.setattr(_plan, "_device_architectures", lambda: ())
    monkeypatch.delenv("FIB_CUDA_ARCH_LIST", raising=False)


def test_a_list_may_be_separated_in_the_usual_ways():
    assert parse_architectures("9.0a, 8.0;12.0+PTX 8.0") == ("12.0+PTX", "8.0", "9.0a")


@pytest.mark.parametrize("text", ["sm_90", "9", "9.0b", "9.0a+ptx"])
def test_a_malformed_list_is_rejected(text):
    with pytest.raises(InvalidArch, match="is not an architecture"):
        parse_architectures(text)


def test_flags_of_nvcc():
    assert gencode_flags(("9.0a", "12.0+PTX")) == (
        "-gencode=arch=compute_90a,code=sm_90a",
        "-gencode=arch=compute_120,code=[sm_120,compute_120]",
    )


def test_the_variable_counts_before_devices_and_these_before_target_hardware(monkeypatch):
    assert architectures_of_machine() == ()
    monkeypatch.setattr(_plan, "_device_architectures", lambda: ("9.0a",))
    assert architectures_of_machine() == architectures(("NVIDIA B200",)) == ("9.0a",)
    monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "8.0")
    assert architectures(("NVIDIA H200",)) == ("8.0",)


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("NVIDIA H200", "9.0a"),
        ("NVIDIA H100 80GB HBM3", "9.0a"),
        ("NVIDIA GB200", "10.0a"),
        ("NVIDIA A100-SXM4-80GB", "8.0"),
        ("NVIDIA L40S", "8.9"),
        ("NVIDIA L4", "8.9"),
        ("NVIDIA A10G", "8.6"),
    ],
)
def test_target_hardware_names_the_architecture(name, arch):
    assert architectures((name,)) == (arch,)


def test_no_known_architecture_names_the_variable():
    with pytest.raises(InvalidArch, match="set FIB_CUDA_ARCH_LIST"):
        architectures(("cpu",))


@pytest.mark.parametrize(
    ("compiled", "wanted", "fits"),
    [
        (["9.0a"], ["9.0a"], True),
        (["8.0", "9.0a"], ["9.0a"], True),
        (["9.0a"], ["8.0", "9.0a"], False),
        (["9.0a"], ["9.0"], False),
        (["9.0"], ["9.0a"], True),
        (["8.0"], ["8.6"], True),
        (["8.6"], ["8.0"], False),
        (["8.0"], ["9.0"], False),
        (["8.0+PTX"], ["9.0a"], True),
        (["9.0a+PTX"], ["10.0"], False),
        (["10.0f"], ["10.3a"], True),
        (["10.0f"], ["12.0"], False),
        ([], [], True),
    ],
)
def test_code_runs_on_later_devices_of_its_generation(compiled, wanted, fits):
    assert runs_on(compiled, wanted) == fits
