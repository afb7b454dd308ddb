"""Collects workloads of routed calls into a data set."""

import sys

import torch
from flashinfer_bench import TraceSet, TracingConfig, TracingConfigRegistry, apply, disable_tracing, enable_tracing
from flashinfer_bench.tracing import FilterPolicy, PolicyRegistry, TracingRuntime, get_full_configs


@PolicyRegistry.register_filter_policy("keep_last")
class KeepLast(FilterPolicy):
    def drain(self):
        return super().drain()[-1:]


@apply("rmsnorm_h64")
def rmsnorm(x, weight):
    return torch.nn.functional.rms_norm(x, (64,), weight, 1e-6)


def call(*sizes):
    for size in sizes:
        rmsnorm(torch.full((size, 64), float(size)), torch.ones(64))


assert isinstance(get_full_configs(), TracingConfigRegistry)
by_size = TracingConfig(
    input_dump_policy=["weight"], filter_policy="keep_first_k_by_axes", filter_policy_kwargs={"k": 1}
)
with enable_tracing(sys.argv[1], {"rmsnorm_h64": by_size}) as runtime:
    assert isinstance(runtime, TracingRuntime)
    call(3, 5, 3)
    runtime.flush()
enable_tracing(dataset_path=sys.argv[1], tracing_config=TracingConfig(filter_policy="keep_last"))
call(11, 12, 13)
disable_tracing()

trace_set = TraceSet.from_path(sys.argv[1])
found = {trace.workload.axes["batch"]: trace.workload for trace in trace_set.workloads["rmsnorm_h64"]}
tensors = trace_set.get_workload_blob_tensor(found[5].inputs["weight"].path)
assert tensors["weight"].tolist() == [1.0] * 64
print(sorted(found))
