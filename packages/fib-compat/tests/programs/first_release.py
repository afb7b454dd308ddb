"""The first release's words: rules, presets, the older form of calls, JSON codec, registry."""

import os
import sys

import torch
from flashinfer_bench import apply, enable_apply
from flashinfer_bench.apply.hook import set_apply_hook
from flashinfer_bench.apply.runtime import get_runtime, set_runtime
from flashinfer_bench.compile.registry import get_registry
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.json_codec import from_json, load_jsonl_file, to_json
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.traceset import TraceSet
from flashinfer_bench.tracer import TracingRule, disable_tracing, enable_tracing, get_tracer, make_tracing_hook
from flashinfer_bench.tracer.presets import DUMP_INT32, KEY_AXES, policy_keep_first_k

trace_set = TraceSet.from_path(sys.argv[1])
definition = trace_set.definitions["rmsnorm_h64"]
assert (definition.type, definition.get_const_axes(), definition.get_var_axes()) == (
    "rmsnorm",
    {"hidden": 64},
    ["batch"],
)
assert from_json(to_json(definition), Definition) == definition
x, weight = torch.randn(7, 64), torch.ones(64)
runnable = get_registry().build_reference(definition)
expected = runnable.call_kwargs(x=x, weight=weight)
with enable_apply(sys.argv[1]) as apply_fn:
    result = apply_fn("rmsnorm_h64", runtime_kwargs={"x": x, "weight": weight}, fallback=lambda x, weight: "fallback")
    assert get_runtime() is not None and result is not None
set_runtime(None)
assert (
    apply("rmsnorm_h64", runtime_kwargs={"x": x, "weight": weight}, fallback=lambda x, weight: "fallback") == "fallback"
)

os.environ["FIB_DATASET_PATH"] = sys.argv[1]
rule = TracingRule(tensors_to_dump=DUMP_INT32, dedup_policy=policy_keep_first_k(1), dedup_keys=KEY_AXES)
tracer = enable_tracing(rules={"rmsnorm_h64": rule})
assert get_tracer() is tracer
tracer.collect("rmsnorm_h64", {"x": x, "weight": weight})
set_apply_hook(make_tracing_hook(tracer))
for size in (7, 9, 9):
    apply("rmsnorm_h64", runtime_kwargs={"x": torch.ones(size, 64), "weight": weight}, fallback=lambda x, weight: x)
set_apply_hook(None)
disable_tracing()
runnable.close()
lines = load_jsonl_file(os.path.join(sys.argv[1], "workloads/rmsnorm/rmsnorm_h64.jsonl"), Trace)
assert all(line.is_workload() for line in lines)
print(sorted({line.workload.axes["batch"] for line in lines} & {7, 9}))
