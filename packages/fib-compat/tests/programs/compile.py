"""Builds a solution and the reference, and calls them in each way."""

import sys

import torch
from flashinfer_bench import TraceSet
from flashinfer_bench.compile import Builder, BuilderRegistry, BuildError, Runnable, RunnableMetadata
from flashinfer_bench.compile.builders import PythonBuilder

trace_set = TraceSet.from_path(sys.argv[1])
definition = trace_set.definitions["rmsnorm_h64"]
solution = trace_set.get_solution("plain")
registry = BuilderRegistry.get_instance()
runnable = registry.build(definition, solution)
assert isinstance(runnable, Runnable) and isinstance(runnable.metadata, RunnableMetadata)
assert runnable.metadata.build_type == "python" and runnable.metadata.solution_name == "plain"

x, weight = torch.randn(8, 64), torch.ones(64)
expected = registry.build_reference(definition)(x, weight)
torch.testing.assert_close(runnable(x, weight), expected)
torch.testing.assert_close(runnable.call_kwargs(x=x, weight=weight), expected)
torch.testing.assert_close(runnable.call_value_returning(x, weight), expected)
y = torch.empty_like(x)
runnable.call_destination_passing(x, weight, y)
torch.testing.assert_close(y, expected)

builder = PythonBuilder()
assert isinstance(builder, Builder) and builder.is_available() and builder.can_build(solution)
broken = solution.model_copy(
    update={"name": "broken", "sources": [solution.sources[0].model_copy(update={"content": "def run(:"})]}
)
try:
    BuilderRegistry([builder]).build(definition, broken)
except BuildError as error:
    print("refused:", type(error).__name__)
registry.cleanup()
