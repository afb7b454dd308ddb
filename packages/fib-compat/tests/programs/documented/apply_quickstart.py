"""Routes a function to the best recorded solution, in all documented ways."""

import os
import sys

import torch
from flashinfer_bench import ApplyConfig, ApplyConfigRegistry, TraceSet, apply, disable_apply, enable_apply


@apply(lambda x, weight: f"rmsnorm_h{x.shape[-1]}")
def rmsnorm(x, weight):
    return "fallback"


x, weight = torch.randn(4, 64), torch.ones(64)
print(rmsnorm(x, weight))

trace_set = TraceSet.from_path(sys.argv[1])
best = trace_set.get_best_trace("rmsnorm_h64", axes={"batch": 4})
config = ApplyConfig(max_atol=1e-2, max_rtol=1e-2, aot_ratio=0, on_miss_policy="use_def_best")
registry = ApplyConfigRegistry(default=config).register("not_in_this_data_set", ApplyConfig())
with enable_apply(trace_set, registry):
    result = rmsnorm(x, weight)
    assert torch.is_tensor(result)
    missed = rmsnorm(torch.randn(5, 64), weight)
    assert torch.is_tensor(missed)
print(rmsnorm(x, weight), best.solution)

runtime = enable_apply(sys.argv[1], config)
out = torch.empty_like(x)
apply("rmsnorm_h64", args=(x, weight, out), kwargs={}, fallback=lambda *args: out.fill_(0))
assert torch.allclose(out, result)
assert torch.allclose(apply("rmsnorm_h64", runtime_kwargs={"x": x, "weight": weight}, fallback=None), result)
disable_apply()
assert os.environ.get("FIB_ENABLE_APPLY") is None
print(rmsnorm(x, weight))
