"""Device names, the environment snapshot and dtypes."""

import platform
from importlib.metadata import version

import pytest
import torch
from fib_compile import InvalidDevice
from fib_compile.device import (
    dtype_str_to_python_dtype,
    dtype_str_to_torch_dtype,
    env_snapshot,
    hardware_from_device,
    identify_compilers,
    is_dtype_integer,
    parse_device,
    torch_dtype,
)
from fib_schema import DType
from fib_schema.settings import InvalidSetting


def test_devices_are_the_cpu_or_numbered():
    assert parse_device("cpu") is None
    assert parse_device("cuda:3") == 3


@pytest.mark.parametrize("name", ["gpu", "cuda", "cuda:", "cuda:-1", "cuda:01", "cpu:0", ""])
def test_other_device_names_are_rejected(name):
    with pytest.raises(InvalidDevice, match="write 'cpu' or 'cuda:N'"):
        parse_device(name)


def test_a_missing_device_is_an_error():
    with pytest.raises(RuntimeError, match="no device 'cuda:99' on this machine"):
        hardware_from_device("cuda:99")


@pytest.mark.gpu
@pytest.mark.usefixtures("needs_gpu")
def test_the_hardware_of_a_cuda_device_is_the_name_in_torch():
    assert hardware_from_device("cuda:0") == torch.cuda.get_device_name(0)


def test_the_snapshot_holds_the_versions_that_matter():
    snapshot = env_snapshot("cpu")
    assert snapshot.hardware == "cpu"
    assert snapshot.libs["python"] == platform.python_version()
    assert snapshot.libs["torch"] == version("torch")
    assert snapshot.libs["tvm_ffi"] == version("apache-tvm-ffi")
    assert snapshot.libs.get("cuda") == torch.version.cuda


@pytest.mark.parametrize("dtype", list(DType))
def test_every_dtype_has_counterparts(dtype):
    if dtype is DType.FLOAT4_E2M1 and not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no fp4")
    assert torch_dtype(dtype) is dtype_str_to_torch_dtype(str(dtype))
    python = dtype_str_to_python_dtype(dtype)
    assert is_dtype_integer(dtype) == (python is int)


def test_an_unknown_dtype_lists_the_known_ones():
    with pytest.raises(InvalidSetting, match=r"dtype: got 'float31', expected one of .*float32"):
        torch_dtype("float31")


def test_a_missing_compiler_is_no_error_before_it_is_needed(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/c++")
    identify_compilers("cpu")
