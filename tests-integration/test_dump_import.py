"""Import of call dumps that FlashInfer 0.6.4 wrote on an H200: the adapters convert them into workloads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fib_schema import AxisConst, AxisVar, Definition, TensorSpec, TraceSet, validate
from fib_tracer import TracingConfig
from fib_tracer.dump_import import import_dumps

DUMPS = Path(__file__).parents[1] / "packages" / "fib-tracer" / "tests" / "dumps"


def norm(name: str, hidden: int, *, has_residual: bool) -> Definition:
    rows = TensorSpec(("batch_size", "hidden_size"), "bfloat16")
    inputs = {"hidden_states": rows, **({"residual": rows} if has_residual else {})}
    outputs = {"output": rows, **({"residual_out": rows} if has_residual else {})}
    reference = f"def run({', '.join(inputs)}, weight):\n    EPS = 1e-6\n    return hidden_states\n"
    axes = {"batch_size": AxisVar(), "hidden_size": AxisConst(hidden)}
    inputs["weight"] = TensorSpec(("hidden_size",), "bfloat16")
    return Definition(name, "rmsnorm", axes, inputs, outputs, reference)


def decode() -> Definition:
    constants = {"num_qo_heads": 16, "num_kv_heads": 2, "head_dim": 128, "page_size": 1}
    variables = ("batch_size", "num_pages", "len_indptr", "num_kv_indices")
    cache = TensorSpec(("num_pages", "page_size", "num_kv_heads", "head_dim"), "bfloat16")
    q = TensorSpec(("batch_size", "num_qo_heads", "head_dim"), "bfloat16")
    return Definition(
        "gqa_paged_decode_h16_kv2_d128_ps1",
        "gqa_paged",
        {**{name: AxisVar() for name in variables}, **{name: AxisConst(size) for name, size in constants.items()}},
        {
            "q": q,
            "k_cache": cache,
            "v_cache": cache,
            "kv_indptr": TensorSpec(("len_indptr",), "int32"),
            "kv_indices": TensorSpec(("num_kv_indices",), "int32"),
            "sm_scale": TensorSpec(None, "float32"),
        },
        {"output": q, "lse": TensorSpec(("batch_size", "num_qo_heads"), "float32")},
        "def run(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale):\n    return q, q[..., 0].float()\n",
        constraints=("len_indptr == batch_size + 1", "num_kv_indices == kv_indptr[-1].item()"),
    )


@pytest.mark.parametrize("form", ["pt", "safetensors"])
def test_dumped_calls_become_workloads(tmp_path: Path, form: str) -> None:
    definitions = [
        norm("rmsnorm_h128", 128, has_residual=False),
        norm("fused_add_rmsnorm_h2048", 2048, has_residual=True),
        decode(),
    ]
    TraceSet(tmp_path).add_definitions(definitions)
    report = import_dumps(DUMPS / form, tmp_path, TracingConfig("dump_all"))
    assert "flashinfer" in report.readers
    assert report.problems == []
    assert {name: stats.stored for name, stats in report.stats.items()} == {
        "rmsnorm_h128": 2,  # the third call has another epsilon than the reference
        "fused_add_rmsnorm_h2048": 1,
        "gqa_paged_decode_h16_kv2_d128_ps1": 2,
    }
    assert sum(count for (_, outcome), count in report.calls.items() if "eps" in outcome) == 1
    data_set = TraceSet.from_path(tmp_path)
    first, second = (trace.workload for trace in data_set.workloads["gqa_paged_decode_h16_kv2_d128_ps1"])
    assert first.axes == {"batch_size": 2, "num_pages": 7, "len_indptr": 3, "num_kv_indices": 5}
    assert first.inputs["sm_scale"].value == pytest.approx(128**-0.5)
    stored = data_set.get_workload_blob_tensor(second.inputs["kv_indptr"].path)
    assert torch.equal(stored["kv_indptr"], torch.tensor([0, 1, 5], dtype=torch.int32))
    assert stored["k_cache"].shape == (7, 1, 2, 128)
    assert not [problem for problem in validate(tmp_path).problems if problem.severity == "error"]
