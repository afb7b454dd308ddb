"""Traces an engine: `enable_tracing` around its steps is all that is added to it."""

import sys

import flashinfer
import torch
from flashinfer_bench import TraceSet, TracingConfig, enable_tracing


class Engine:
    """Normalizes a batch per step, with FlashInfer."""

    def __init__(self):
        self.weight = torch.ones(64, dtype=torch.bfloat16)

    def step(self, batch):
        hidden = torch.ones(batch, 64, dtype=torch.bfloat16)
        return flashinfer.norm.rmsnorm(hidden, self.weight, 1e-6)


engine = Engine()
configs = {
    "rmsnorm_h64": TracingConfig(
        input_dump_policy=["weight"], filter_policy="keep_first_k_by_axes", filter_policy_kwargs={"k": 1}
    ),
    "gqa_paged_decode_h32_kv8_d128_ps1": TracingConfig(input_dump_policy="dump_int", filter_policy="attention"),
}
with enable_tracing(dataset_path=sys.argv[1], tracing_config=configs):
    for batch in (1, 2, 2, 4, 1):
        engine.step(batch)
engine.step(16)

trace_set = TraceSet.from_path(sys.argv[1])
workloads = [trace.workload for trace in trace_set.workloads["rmsnorm_h64"]]
stored = {workload.axes["batch_size"]: workload.inputs["weight"] for workload in workloads}
tensor = trace_set.get_workload_blob_tensor(stored[4].path)[stored[4].tensor_key]
assert tensor.shape == (64,) and all(workload.inputs["hidden_states"].type == "random" for workload in workloads)
print(sorted(stored))
