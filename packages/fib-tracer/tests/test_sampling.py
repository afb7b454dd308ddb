"""Tests of sampling: definitions, chosen workloads and identical blobs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fib_schema import (
    RandomInput,
    SafetensorsInput,
    ScalarInput,
    TargetNotEmpty,
    Trace,
    TraceSet,
    UnknownName,
    Workload,
    validate,
)
from fib_tracer import TracingConfig
from fib_tracer.maintenance import sample

from .conftest import workloads
from .test_survey import gather_workload, stored


def keeping(policy: str, **arguments: Any) -> TracingConfig:
    return TracingConfig(filter_policy=policy, filter_policy_kwargs=arguments)


@pytest.fixture
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("samples") / "small"


@pytest.fixture
def filled(root: Path) -> Path:
    trace_set = TraceSet.from_path(root)
    trace_set.add_traces([stored(trace_set, f"{rows}{letter}", rows) for rows in (2, 3) for letter in "xyz"])
    return root


def uuids(root: Path) -> list[str]:
    return [workload.uuid for workload in workloads(root, "gather_h8")]


def test_a_sample_has_definitions_workloads_and_blobs(filled: Path, other: Path) -> None:
    report = sample(filled, other, keeping("keep_first_k", k=2))
    assert report.is_ok
    assert report.definitions == {"silu_h8": (0, 0), "gather_h8": (6, 2), "gqa_paged_decode_h2": (0, 0)}
    assert sorted(TraceSet.from_path(other).definitions) == sorted(TraceSet.from_path(filled).definitions)
    assert uuids(other) == ["2x", "2y"]
    copied = {path.relative_to(other): path.read_bytes() for path in (other / "blob").rglob("*.safetensors")}
    assert copied == {path: (filled / path).read_bytes() for path in copied}
    assert (len(copied), sum(map(len, copied.values()))) == (report.blobs, report.blob_bytes) == (2, report.blob_bytes)
    assert validate(other).is_ok


def test_a_sample_by_axes_has_the_first_of_each_combination(filled: Path, other: Path) -> None:
    sample(filled, other, keeping("keep_first_k_by_axes", k=1), ["gather_h8"])
    assert uuids(other) == ["2x", "3x"]
    assert list(TraceSet.from_path(other).definitions) == ["gather_h8"]


def test_attention_compares_stored_average_lengths(root: Path, other: Path) -> None:
    trace_set = TraceSet.from_path(root)

    def decode(uuid: str, lengths: list[int]) -> Trace:
        indptr = torch.tensor([0, *lengths]).cumsum(0).int()
        tensors = {"kv_indptr": indptr, "kv_indices": torch.arange(int(indptr[-1])).int()}
        path = trace_set.add_workload_blob_tensor("gqa_paged_decode_h2", uuid, tensors)
        inputs = {name: SafetensorsInput(path, name) for name in tensors}
        axes = {"B": len(lengths), "L": len(lengths) + 1, "K": int(indptr[-1])}
        inputs_of_all = {"q": RandomInput(), **inputs, "sm_scale": ScalarInput(1.0)}
        return Trace("gqa_paged_decode_h2", Workload(axes, inputs_of_all, uuid))

    trace_set.add_traces([decode("a", [4, 6]), decode("b", [5]), decode("c", [5, 5, 5]), decode("d", [9, 9])])
    sample(root, other, keeping("attention", k=1))
    assert [w.uuid for w in workloads(other, "gqa_paged_decode_h2")] == ["a", "d"]


def test_a_workload_without_its_tensors_is_reported_and_skipped(filled: Path, other: Path) -> None:
    trace_set = TraceSet.from_path(filled)
    first = trace_set.workloads["gather_h8"][0].workload.inputs["rows"].path
    (filled / first).unlink()
    trace_set.add_traces([gather_workload("out", 2, first.replace("2x", "link"))])
    (filled / first.replace("2x", "link")).symlink_to("/etc/hostname")
    report = sample(filled, other, keeping("keep_all"))
    assert not report.is_ok
    assert ["does not exist" in p.message or "leads out" in p.message for p in report.problems] == [True, True]
    assert uuids(other) == ["2y", "2z", "3x", "3y", "3z"]
    assert validate(other).is_ok


def test_a_target_that_is_not_empty_is_refused(filled: Path, other: Path) -> None:
    config = keeping("keep_first")
    with pytest.raises(TargetNotEmpty, match="lies inside"):
        sample(filled, filled / "small", config)
    other.mkdir()
    (other / "x").touch()
    with pytest.raises(TargetNotEmpty, match="not empty"):
        sample(filled, other, config)
    with pytest.raises(TargetNotEmpty, match="not a folder"):
        sample(filled, other / "x", config)
    with pytest.raises(UnknownName, match="silu_h9"):
        sample(filled, other.with_name("new"), config, ["silu_h9"])
    assert not other.with_name("new").exists()


def test_a_sample_that_cannot_be_written_leaves_no_folder(
    filled: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(source: object, target: object) -> None:
        raise OSError(28, "No space left on device", str(source), None, str(target))

    monkeypatch.setattr(shutil, "copyfile", copy)
    before = sorted(other.parent.iterdir())
    with pytest.raises(OSError, match="No space") as caught:
        sample(filled, other, keeping("keep_first_k", k=2))
    assert str(caught.value.filename).startswith(f"{other}/blob/")
    assert sorted(other.parent.iterdir()) == before
