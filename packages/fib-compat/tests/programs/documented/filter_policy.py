"""Records every second call of a function, by a filter policy of the program's own."""

import sys

import torch
from flashinfer_bench import TraceSet, apply
from flashinfer_bench.tracing import PolicyRegistry, TracingConfig, enable_tracing


class EverySecond:
    def __init__(self, first=0):
        self.first, self.entries = first, []

    def submit(self, entry):
        self.entries.append(entry)

    def drain(self):
        chosen, self.entries = self.entries[self.first :: 2], []
        return chosen

    def reset(self):
        self.entries = []


PolicyRegistry.register_filter_policy("every_second", EverySecond, override=True)


@apply(lambda x, weight: f"rmsnorm_h{x.shape[-1]}")
def rmsnorm(x, weight):
    return torch.nn.functional.rms_norm(x, (64,), weight, 1e-6)


settings = TracingConfig(input_dump_policy=["weight"], filter_policy="every_second", filter_policy_kwargs={"first": 1})
with enable_tracing(sys.argv[1], tracing_config={"rmsnorm_h64": settings}):
    for batch in (2, 3, 5, 7):
        rmsnorm(torch.randn(batch, 64), torch.ones(64))
for trace in TraceSet.from_path(sys.argv[1]).workloads["rmsnorm_h64"]:
    inputs = {name: type(value).__name__ for name, value in trace.workload.inputs.items()}
    print(trace.workload.axes["batch"], inputs)
