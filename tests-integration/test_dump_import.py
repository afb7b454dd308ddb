"""Import of call dumps that FlashInfer 0.6.4 wrote on an H200: the adapters convert them into workloads."""

from pathlib import Path

import pytest
import torch
from fib_schema import TraceSet, validate
from fib_tracer import TracingConfig
from fib_tracer.dump_import import import_dumps
from public_data_set import needs_data_set, public_set

DUMPS = Path(__file__).parents[1] / "packages" / "fib-tracer" / "tests" / "dumps"
DECODE = "gqa_paged_decode_h16_kv2_d128_ps1"


@needs_data_set
@pytest.mark.parametrize("form", ["pt", "safetensors"])
def test_dumped_calls_become_workloads(tmp_path, form):
    names = ("rmsnorm_h128", "fused_add_rmsnorm_h2048", DECODE)
    TraceSet(tmp_path).add_definitions([public_set().get_definition(name) for name in names])
    report = import_dumps(DUMPS / form, tmp_path, TracingConfig("dump_all"))
    assert "flashinfer" in report.readers
    assert report.problems == []
    assert {name: stats.stored for name, stats in report.stats.items()} == {
        "rmsnorm_h128": 2,  # the third call has another epsilon than the reference
        "fused_add_rmsnorm_h2048": 1,
        DECODE: 2,
    }
    assert sum(count for (_, outcome), count in report.calls.items() if "eps" in outcome) == 1
    data_set = TraceSet.from_path(tmp_path)
    first, second = (trace.workload for trace in data_set.workloads[DECODE])
    assert first.axes == {"batch_size": 2, "num_pages": 7, "len_indptr": 3, "num_kv_indices": 5}
    assert first.inputs["sm_scale"].value == pytest.approx(128**-0.5)
    stored = data_set.get_workload_blob_tensor(second.inputs["kv_indptr"].path)
    assert torch.equal(stored["kv_indptr"], torch.tensor([0, 1, 5], dtype=torch.int32))
    assert stored["k_cache"].shape == (7, 1, 2, 128)
    assert not [problem for problem in validate(tmp_path).problems if problem.severity == "error"]
