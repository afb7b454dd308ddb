"""Tests of loading tensors from damaged, huge and hostile files."""

import os
import pickle

import pytest
import torch
from fib_tracer.dump_calls import DamagedCall, load_dumped_tensors
from safetensors.torch import save_file

LIMIT = 1 << 20


def test_tensors_round_trip_with_values_dtypes_and_strides(tmp_path):
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.bool, torch.float8_e4m3fn)
    saved = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in dtypes}
    saved |= {"strided": torch.arange(12.0).reshape(3, 4).t(), "shared": saved["torch.int64"][:1]}
    saved["parameter"] = torch.nn.Parameter(torch.ones(2))
    torch.save(saved, tmp_path / "inputs.pt")
    found = load_dumped_tensors(tmp_path / "inputs.pt", LIMIT)
    assert list(found) == list(saved)
    for name, tensor in found.items():
        assert tensor.dtype == saved[name].dtype
        assert tensor.stride() == saved[name].stride()
        assert torch.equal(tensor.to(torch.float32), saved[name].to(torch.float32))
        assert not tensor.requires_grad


def test_safetensors_round_trip(tmp_path):
    save_file({"a": torch.ones(3)}, tmp_path / "inputs.safetensors")
    assert torch.equal(load_dumped_tensors(tmp_path / "inputs.safetensors", LIMIT)["a"], torch.ones(3))


class _Runs:
    """Creates a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.mknod, (str(self.file),)


@pytest.mark.parametrize("kind", ["archive", "bare"])
def test_a_hostile_file_runs_nothing(tmp_path, kind):
    proof = tmp_path / "proof"
    file = tmp_path / "inputs.pt"
    torch.save({"arg_0": _Runs(proof)}, file) if kind == "archive" else file.write_bytes(pickle.dumps(_Runs(proof)))
    with pytest.raises(DamagedCall, match=r"cannot be read|was cut off"):
        load_dumped_tensors(file, LIMIT)
    assert not proof.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.ones(1)], "cannot be read"),
        ({"a": 1}, "not an ordinary tensor"),
        ({"a": torch.ones(1).expand(1 << 40)}, "more than 1 MiB"),
        ({"a": torch.ones(1 << 19)}, "more than 1 MiB"),
        ({"a": torch.eye(3).to_sparse()}, "not an ordinary tensor"),
    ],
)
def test_anything_but_a_mapping_of_ordinary_tensors_is_refused(tmp_path, content, message):
    torch.save(content, tmp_path / "inputs.pt")
    with pytest.raises(DamagedCall, match=message):
        load_dumped_tensors(tmp_path / "inputs.pt", LIMIT)


def test_files_that_were_cut_off_are_refused(tmp_path):
    torch.save({"a": torch.ones(400)}, tmp_path / "whole.pt")
    save_file({"a": torch.ones(400)}, tmp_path / "whole.safetensors")
    for suffix in (".pt", ".safetensors"):
        data = (tmp_path / f"whole{suffix}").read_bytes()
        for size in (0, 1, len(data) // 2, len(data) - 1):
            (tmp_path / f"inputs{suffix}").write_bytes(data[:size])
            with pytest.raises(DamagedCall):
                load_dumped_tensors(tmp_path / f"inputs{suffix}", LIMIT)


def test_a_large_safetensors_file_is_refused(tmp_path):
    save_file({"a": torch.ones(1 << 20)}, tmp_path / "inputs.safetensors")
    with pytest.raises(DamagedCall, match="more than 1 MiB"):
        load_dumped_tensors(tmp_path / "inputs.safetensors", LIMIT)
