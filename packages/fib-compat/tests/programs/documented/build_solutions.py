"""Builds the reference and the solutions of a definition, and compares their results."""

import sys

import torch
from flashinfer_bench import TraceSet
from flashinfer_bench.compile import BuilderRegistry

trace_set = TraceSet.from_path(sys.argv[1])
definition = trace_set.definitions["rmsnorm_h64"]
registry = BuilderRegistry.get_instance()
reference = registry.build_reference(definition)
x, weight = torch.randn(4, 64), torch.ones(64)
for solution in trace_set.solutions["rmsnorm_h64"]:
    runnable = registry.build(definition, solution)
    print(runnable.metadata.solution_name, torch.allclose(runnable(x, weight), reference(x, weight), atol=1e-5))
    assert torch.equal(runnable.call_kwargs(x=x, weight=weight), runnable(x, weight))
    runnable.cleanup()
reference.cleanup()
