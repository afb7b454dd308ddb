"""Routes calls in both modes, with settings by definition, and back."""

import sys

import torch
from flashinfer_bench import ApplyConfig, ApplyConfigRegistry, apply, disable_apply, enable_apply
from flashinfer_bench.apply import ApplyRuntime

calls = []


@apply(lambda x, weight: f"rmsnorm_h{x.shape[1]}")
def rmsnorm(x, weight):
    calls.append(tuple(x.shape))
    return torch.nn.functional.rms_norm(x, (x.shape[1],), weight, 1e-6)


x, weight = torch.randn(8, 64), torch.ones(64)
expected = rmsnorm(x, weight)
assert calls == [(8, 64)]
configs = ApplyConfigRegistry(default=ApplyConfig(max_atol=1e-2, max_rtol=1e-2, aot_ratio=1.0))
configs.register("rmsnorm_h64", ApplyConfig(max_atol=1e-2, max_rtol=10.0, on_miss_policy="use_def_best"))
with enable_apply(sys.argv[1], configs) as runtime:
    assert isinstance(runtime, ApplyRuntime) and ApplyRuntime.get_instance() is runtime
    torch.testing.assert_close(rmsnorm(x, weight), expected)
    result = apply("rmsnorm_h64", args=(x, weight), kwargs={}, fallback=rmsnorm)
    torch.testing.assert_close(result, expected)
    y = torch.empty_like(x)
    apply("rmsnorm_h64", args=(x, weight, y), kwargs={}, fallback=None)
    torch.testing.assert_close(y, expected)
    assert calls == [(8, 64)], "a solution serves all of these"
    rmsnorm(torch.randn(2, 32), torch.ones(32))
    assert calls == [(8, 64), (2, 32)], "and none this one"
disable_apply()
rmsnorm(x, weight)
print(len(calls), "calls of the fallback")
