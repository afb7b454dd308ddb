"""Section about autotuned kernels: ten of attention with eight configurations each, with nothing and all compiled."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fib_bench.events import Event, Working
from fib_schema import AxisConst, AxisVar, Definition, RandomInput, Solution, TensorSpec, Workload
from gpu_further import benchmark
from gpu_report import evidence_of
from gpu_session import Bench

_SOLUTIONS, _CONFIGURATIONS = 10, 8
_BATCHES = (1, 2, 4)
_HEADS, _DIM = 16, 128
_COMPILATION_FACTOR, _COMPILATION_SECONDS, _FILLED_SECONDS = 1.3, 10.0, 20.0
_SHAPE = ("batch", "heads", "length", "dim")

_REFERENCE = """import torch

def run(q, k, v):
    logits = q.float() @ k.float().transpose(-1, -2) * q.shape[-1] ** -0.5
    return (logits.softmax(-1) @ v.float()).to(q.dtype)
"""
_SOURCE = '''import torch
import triton
import triton.language as tl

CONFIGS = [
    triton.Config({{"ROWS": rows, "KEYS": keys}}, num_warps=warps, num_stages=2)
    for rows in (32, 64) for keys in (32, 64) for warps in (4, 8)
]


IS_TUNED = torch.cuda.is_available()  # the interpreter has no autotuner
tuned = triton.autotune(CONFIGS, key=["batch_heads", "length"]) if IS_TUNED else lambda kernel: kernel


@tuned
@triton.jit
def attend(
    q, k, v, out, batch_heads, length, scale,
    DIM: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):
    """Solution {index}."""
    base = tl.program_id(1).to(tl.int64) * length * DIM
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    depth = tl.arange(0, DIM)
    at = base + rows[:, None] * DIM + depth[None, :]
    queries = tl.load(q + at, mask=rows[:, None] < length, other=0.0)
    peak = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS, DIM), tl.float32)
    for begin in range(0, length, KEYS):
        token = begin + tl.arange(0, KEYS)
        there = base + token[:, None] * DIM + depth[None, :]
        keys = tl.load(k + there, mask=token[:, None] < length, other=0.0)
        values = tl.load(v + there, mask=token[:, None] < length, other=0.0)
        logits = tl.dot(queries, tl.trans(keys)) * scale
        logits = tl.where(token[None, :] < length, logits, -float("inf"))
        higher = tl.maximum(peak, tl.max(logits, 1))
        weights = tl.exp2(logits - higher[:, None])
        fade = tl.exp2(peak - higher)
        total = total * fade + tl.sum(weights, 1)
        found = found * fade[:, None] + tl.dot(weights.to(values.dtype), values)
        peak = higher
    found = found / total[:, None]
    tl.store(out + at, found.to(out.dtype.element_ty), mask=rows[:, None] < length)


def arguments(q, k, v):
    out = torch.empty_like(q)
    batch, heads, length, dim = q.shape
    scale = dim ** -0.5 * 1.4426950408889634
    constants = {{"DIM": dim}} | ({{}} if IS_TUNED else CONFIGS[0].kwargs)
    return out, (q, k, v, out, batch * heads, length, scale), constants


def run(q, k, v):
    out, given, constants = arguments(q, k, v)
    attend[lambda meta: (triton.cdiv(q.shape[2], meta["ROWS"]), given[4])](*given, **constants)
    return out
'''
_COMPILE = """import time, torch, attention_triton as module
tensors = [torch.zeros({shape}, dtype=torch.float16, device="{device}") for _ in range(3)]
_, given, constants = module.arguments(*tensors)
begin = time.perf_counter()
for config in module.CONFIGS:
    module.attend.fn.warmup(*given, **constants, **config.all_kwargs(), grid=(1, 1))
print(time.perf_counter() - begin)
"""


def autotuned(bench: Bench) -> None:
    """Seconds without the start of processes, and what compilation alone takes; the budget does not apply."""
    count, length = (_SOLUTIONS, 1024) if bench.is_cuda else (2, 32)
    definition = _definition(length)
    workloads = [
        Workload({"batch": batch}, {name: RandomInput() for name in "qkv"}, f"attention-{batch}") for batch in _BATCHES
    ]
    solutions = [_solution(bench, definition, index) for index in range(count)]
    compilation = _compilation_seconds(bench, length) * count
    cores = len(os.sched_getaffinity(0))
    os.environ["FIB_CACHE_PATH"] = tempfile.mkdtemp(prefix="fib-autotuned-")
    rows: list[tuple[str, ...]] = []
    for state in ("nothing compiled", "everything compiled"):
        begun: list[float] = []

        def note(event: Event, begun: list[float] = begun) -> None:
            if isinstance(event, Working) and not begun:
                begun.append(time.perf_counter())

        result = benchmark(
            bench,
            {definition.name: solutions},
            {definition.name: (definition, workloads)},
            observe=note,
            device=bench.device,
            concurrency=bench.concurrency,
        )
        seconds = time.perf_counter() - begun[0]
        limit = _COMPILATION_FACTOR * compilation / cores + _COMPILATION_SECONDS
        passed = sum(trace.is_successful() for trace in result.traces)
        for trace in result.traces:
            if not trace.is_successful():
                bench.report.say(f"- {trace.solution} {dict(trace.workload.axes)}: {evidence_of(trace)}")
        phases = ", ".join(f"{phase} {taken:.1f}" for phase, taken in result.seconds.items())
        limits = f"{limit if state.startswith('nothing') else _FILLED_SECONDS:.1f}"
        rows.append((state, f"{passed}/{count * len(workloads)}", f"{seconds:.1f}", limits, phases))
        print(f"  {state}: {passed} passed in {seconds:.1f} s: {phases}", flush=True)
    bench.report.say(
        f"{count} solutions with {_CONFIGURATIONS} configurations, {len(workloads)} workloads each. All compilations "
        f"take {compilation:.1f} s one after the other, by those of one solution: {compilation / cores:.1f} s on "
        f"{cores} cores."
    )
    bench.report.say()
    bench.report.table("Autotuned attention", ("run", "passed", "seconds", "limit", "seconds by phase"), rows)


def _definition(length: int) -> Definition:
    axes = {"batch": AxisVar(), "heads": AxisConst(_HEADS), "length": AxisConst(length), "dim": AxisConst(_DIM)}
    tensor = TensorSpec(_SHAPE, "float16")
    return Definition("attention", "attention", axes, dict.fromkeys("qkv", tensor), {"out": tensor}, _REFERENCE)


def _solution(bench: Bench, definition: Definition, index: int) -> Solution:
    source = _SOURCE.format(index=index)
    return bench.solution(f"attention_{index}", definition, "attention_triton.py", source, returns=True)


def _compilation_seconds(bench: Bench, length: int) -> float:
    """Seconds to compile the configurations of one solution one after the other; 0 on the CPU, which interprets."""
    if not bench.is_cuda:
        return 0.0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "attention_triton.py").write_text(_SOURCE.format(index=-1), "utf-8")
        code = _COMPILE.format(shape=(1, _HEADS, length, _DIM), device=bench.device)
        environment = {**os.environ, "TRITON_CACHE_DIR": f"{folder}/cache"}
        printed = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env=environment, stdout=subprocess.PIPE, check=True
        ).stdout
    return float(printed)
