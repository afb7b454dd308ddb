"""The stopwatch against CUPTI's record of the very same calls, for functions of one kernel."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cupti import cupti as api
from fib_bench.timing import TimedCall, bracket_costs_ns, stopwatch_for
from gpu_report import SOLUTIONS, Bench

_OURS = ("FillFunctorIh", "spin_kernel")
"""Parts of the names of kernels that overwrite the L2 cache or spin."""
Call = Callable[[], object]


def cupti(bench: Bench) -> None:
    """Compare both, in turns: the clock of the device drifts under load."""
    device = torch.device(bench.device)
    torch.cuda.set_device(device)
    rows, numbers = [], []
    for name, make in _single_kernels(bench.device):
        ours, theirs, chain, method = _compare(make, device)
        difference = f"{ours - theirs:+.2f} us" if theirs < 10 else f"{ours / theirs - 1:+.2%}"
        rows.append((name, f"{theirs:.2f}", f"{ours:.2f}", difference, method, chain))
        numbers.append({"name": name, "cupti_us": theirs, "ours_us": ours})
    header = ("function", "CUPTI us", "stopwatch us", "difference", "method", "calls per sample")
    bench.report.table("Against CUPTI's kernel times (functions of one kernel)", header, rows)
    bench.report.numbers["cupti"] = numbers


def _compare(make: Callable[[], Call], device: torch.device) -> tuple[float, float, int, str]:
    """Both times of one function in microseconds, calls per sample, and the method."""
    calls = [TimedCall(make()) for _ in range(8)]
    stopwatch = stopwatch_for(device, calls)
    warmth = stopwatch.warm_up(10, 1.0)
    groups = len(calls) // warmth.chain
    (cost,) = bracket_costs_ns(device, warmth.method, (warmth.chain,), 60)
    brackets: list[float] = []
    kernels: list[float] = []
    for _ in range(10):
        seen, durations = _watched(lambda: [x for _ in range(3) for x in stopwatch.sample(groups)])
        kernels += durations
        # long kernels: the very samples that CUPTI saw, which costs each bracket 0.3 us
        brackets += seen if warmth.chain == 1 else [x for _ in range(5) for x in stopwatch.sample(groups)]
    ours = (statistics.median(brackets) - cost) / warmth.chain
    return ours / 1e3, statistics.mean(kernels) / 1e3, warmth.chain, warmth.method


def _watched(run: Callable[[], list[float]]) -> tuple[list[float], list[float]]:
    """What a run returns, and the durations in nanoseconds of its kernels."""
    found: list[float] = []

    def take(activities: Any) -> None:
        for activity in activities:
            is_kernel = activity.kind == api.ActivityKind.CONCURRENT_KERNEL
            if is_kernel and not any(part in activity.name for part in _OURS):
                found.append(float(activity.end - activity.start))

    api.activity_register_callbacks(lambda: (8 << 20, 0), take)
    api.activity_enable(api.ActivityKind.CONCURRENT_KERNEL)
    result = run()
    torch.cuda.synchronize()
    api.activity_flush_all(1)
    api.activity_disable(api.ActivityKind.CONCURRENT_KERNEL)
    api.finalize()
    return result, found


def _single_kernels(device: str) -> Iterable[tuple[str, Callable[[], Call]]]:
    """Names, and makers of calls on tensors of their own."""
    module = _load(SOLUTIONS / "rmsnorm_triton.py")

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device).to(torch.bfloat16)

    def rmsnorm(rows: int, columns: int) -> Call:
        x, weight = normal(rows, columns), normal(columns)
        y = torch.empty_like(x)
        return lambda: module.run(x, weight, y)

    def multiply(kib: int) -> Call:
        x = normal(kib * 512)
        y = torch.empty_like(x)
        return lambda: torch.mul(x, 2.0, out=y)

    def matmul(m: int, n: int, k: int) -> Call:
        a, b = normal(m, k), normal(k, n)
        c = normal(m, n)
        return lambda: torch.mm(a, b, out=c)

    for shape in ((1, 512), (1, 4096), (64, 4096), (1024, 4096), (8192, 7168)):
        yield f"rmsnorm (Triton) {shape[0]} x {shape[1]}", partial(rmsnorm, *shape)
    for kib in (64, 4096, 65536, 1 << 20):
        yield f"multiply {kib} KiB", partial(multiply, kib)
    for sizes in ((64, 4096, 4096), (2048, 4096, 4096), (8192, 8192, 4096)):
        yield "matmul " + " x ".join(map(str, sizes)), partial(matmul, *sizes)


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
