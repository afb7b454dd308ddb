"""Tests of hardware names: their architectures, and which targets a device fits."""

import pytest
from fib_schema.hardware import Fit, architectures_of, fit_of, unknown_targets

H200 = "NVIDIA H200"


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("NVIDIA H100 80GB HBM3", "9.0"),
        ("NVIDIA_H100", "9.0"),
        ("h200", "9.0"),
        ("NVIDIA GH200 480GB", "9.0"),
        ("NVIDIA A100-SXM4-80GB", "8.0"),
        ("A100_80GB", "8.0"),
        ("NVIDIA B200", "10.0"),
        ("NVIDIA B300", "10.3"),
        ("NVIDIA L40S", "8.9"),
        ("NVIDIA L4", "8.9"),
        ("Tesla V100-SXM2-16GB", "7.0"),
        ("Tesla T4", "7.5"),
        ("NVIDIA GeForce RTX 4090", "8.9"),
        ("RTX4090", "8.9"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "8.9"),
        ("NVIDIA GeForce RTX 3060 Ti", "8.6"),
        ("NVIDIA RTX A6000", "8.6"),
        ("NVIDIA RTX 6000 Ada Generation", "8.9"),
        ("Quadro RTX 6000", "7.5"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0"),
        ("NVIDIA GeForce RTX 5090", "12.0"),
        ("AMD Instinct MI300X", "gfx942"),
        ("gfx90a", "gfx90a"),
        ("gfx942:sramecc+:xnack-", "gfx942"),
        ("sm_90a", "9.0"),
        ("sm90", "9.0"),
        ("sm_120", "12.0"),
        ("8.6", "8.6"),
        ("cpu", "cpu"),
        ("CPU", "cpu"),
        ("x86_64", "cpu"),
        ("Intel Xeon Platinum 8480", "cpu"),
        ("AMD EPYC 9654", "cpu"),
    ],
)
def test_a_name_has_an_architecture(name, architecture):
    assert architectures_of(name) == {architecture}


@pytest.mark.parametrize(
    "name", ["", "H1000", "NVIDIA", "NVIDIA Graphics Device", "banana", "sm", "gfx", "L", "MI 5", "42", "100"]
)
def test_a_name_that_is_in_no_table_has_none(name):
    assert architectures_of(name) == frozenset()


def test_a_family_has_several_architectures():
    assert architectures_of("Ampere") == {"8.0", "8.6", "8.7"}


@pytest.mark.parametrize(
    ("targets", "hardware", "fit"),
    [
        (("H100",), H200, Fit.SAME_ARCHITECTURE),
        (("hopper",), H200, Fit.SAME_ARCHITECTURE),
        (("sm_90a",), H200, Fit.SAME_ARCHITECTURE),
        (("H100", "H200"), H200, Fit.NAMED),
        (("cuda",), H200, Fit.NAMED),
        (("gpu",), "AMD Instinct MI300X", Fit.NAMED),
        (("rocm",), "AMD Instinct MI300X", Fit.NAMED),
        (("cuda",), "AMD Instinct MI300X", Fit.NAMED),
        (("A100",), H200, Fit.NONE),
        (("A100",), "NVIDIA A40", Fit.NONE),
        (("B300",), "NVIDIA B200", Fit.NONE),
        (("cpu",), H200, Fit.NONE),
        (("H100",), "cpu", Fit.NONE),
        (("cpu",), "cpu", Fit.NAMED),
        (("x86_64",), "cpu", Fit.SAME_ARCHITECTURE),
        (("banana",), H200, Fit.NONE),
        (("NVIDIA Graphics Device",), "NVIDIA Graphics Device", Fit.NAMED),
        (("NVIDIA Graphics Device",), "another device", Fit.NONE),
    ],
)
def test_a_device_fits_by_name_or_by_architecture(targets, hardware, fit):
    assert fit_of(targets, hardware) is fit


def test_unknown_targets_come_with_suggestions():
    errors = unknown_targets(("H100", "H1000", "NVIDIA_B2000", "cuda"), H200)
    assert [error.name for error in errors] == ["H1000", "NVIDIA_B2000"]
    assert str(errors[0]).startswith("no hardware is named 'H1000'; did you mean 'H100'")
    assert "'B200'" in str(errors[1])


def test_the_name_of_this_device_is_known_whatever_it_is():
    assert unknown_targets(("NVIDIA Graphics Device",), "NVIDIA Graphics Device") == []
