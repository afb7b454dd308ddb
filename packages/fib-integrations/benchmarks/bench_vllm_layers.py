"""vLLM's layers traced, measured and routed with vLLM's defaults, on a GPU; called again until it prints "complete".

Steps that are missing are made one after the other, each in a process of its own that ends in time:

1. `trace`: an eager engine traces into OUT/dataset, which gets definitions, baselines, a simple decode kernel
   (`_DECODE`) and the solutions of --solutions.
2. `measure`: ``fib-bench run --resume``.
3. `plain-N`, `routed-N`, `forced-N`: engines with CUDA graphs: vLLM alone; routed; routed to a data set without vLLM's
   own decode, so that graphs hold the decode kernel. With --requests 32, 30 requests are padded with two empty ones.

OUT/results has a record of each step, OUT/logs what it printed. --archive packs OUT, and restores it if it is missing.
The model has Llama-3.1-8B's or Qwen3-30B-A3B's shape and random weights.

usage: python bench_vllm_layers.py OUT [--model llama|qwen3] [--seconds 520] [--archive FILE] [--solutions FOLDER]
Exit codes: 0 complete, 75 call it again, others a problem that is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

_AGAIN = 75
_STARTS = {"trace": 200, "measure": 60, "engine": 200}
"""Seconds that a step may take; below, it is not started."""
_BLOCKS = 8192
"""Blocks of the cache: their number is part of the keys of attention, and what vLLM finds free differs."""
_STEPS, _REPEATS = 24, 5
_KINDS = {
    "attention": r"flash|fib_decode",
    "experts": r"fused_moe|moe_",
    "linear": r"nvjet|gemm|cutlass|cublas|splitk",
}
_COMMON = {
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "head_dim": 128,
}
_MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192, "rope_theta": 500000.0,
    },
    "qwen3": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "num_experts": 128,
        "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts_per_tok": 8, "norm_topk_prob": True,
        "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 151936, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192, "rope_theta": 1000000.0, "decoder_sparse_step": 1, "hidden_act": "silu",
    },
}  # fmt: skip
_ATTENTION = "fa_paged_decode_h32_kv{0}_d128_ps16 fa_paged_causal_h32_kv{0}_d128_ps16"
_NAMES = {
    "llama": f"{_ATTENTION.format(8)} gemm_bf16_n6144_k4096 gemm_bf16_n4096_k4096 gemm_bf16_n28672_k4096 "
    "gemm_bf16_n4096_k14336 gemm_bf16_n128256_k4096",
    "qwen3": f"{_ATTENTION.format(4)} moe_bf16_e128_topk8_h2048_i768 gemm_bf16_n5120_k2048 gemm_bf16_n2048_k4096 "
    "gemm_bf16_n128_k2048 gemm_bf16_n151936_k2048",
}


_DECODE = """\
import torch
import triton
import triton.language as tl


@triton.jit
def fib_decode(
    q, k, v, lens, table, out, scale, q_s, q_h, k_p, k_t, k_h, v_p, v_t, v_h, t_s, o_s, o_h,
    GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
):
    request, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lens + request)
    g, d, t = tl.arange(0, ROWS), tl.arange(0, D), tl.arange(0, PAGE)
    rows = (head * GROUP + g)[:, None]
    queries = tl.load(q + request * q_s + rows * q_h + d[None, :], mask=(g < GROUP)[:, None], other=0.0)
    best = tl.full((ROWS,), -float("inf"), tl.float32)
    total, acc = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS, D), tl.float32)
    for start in range(0, length, PAGE):
        page = tl.load(table + request * t_s + start // PAGE).to(tl.int64)
        is_key = start + t < length
        keys = tl.load(k + page * k_p + t[:, None] * k_t + head * k_h + d[None, :], mask=is_key[:, None], other=0.0)
        values = tl.load(v + page * v_p + t[:, None] * v_t + head * v_h + d[None, :], mask=is_key[:, None], other=0.0)
        scores = tl.where(is_key[None, :], tl.dot(queries, tl.trans(keys)) * scale, -float("inf"))
        most = tl.maximum(best, tl.max(scores, 1))
        weights, kept = tl.exp(scores - most[:, None]), tl.exp(best - most)
        total, acc = total * kept + tl.sum(weights, 1), acc * kept[:, None]
        acc += tl.dot(weights.to(values.dtype), values)
        best = most
    result = acc / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + request * o_s + rows * o_h + d[None, :], result.to(out.dtype.element_ty), mask=(g < GROUP)[:, None])


def run(q, k_cache, v_cache, seq_lens, block_table, softmax_scale, output):
    group, page, heads = q.shape[1] // k_cache.shape[2], k_cache.shape[1], k_cache.shape[2]
    fib_decode[(len(q), heads)](
        q, k_cache, v_cache, seq_lens, block_table, output, softmax_scale, q.stride(0), q.stride(1),
        *k_cache.stride()[:3], *v_cache.stride()[:3], block_table.stride(0), output.stride(0), output.stride(1),
        GROUP=group, ROWS=max(16, triton.next_power_of_2(group)), D=q.shape[2], PAGE=page,
    )
"""
"""A decode of one program per request and key head; a request without keys has a row of zeros."""


def main() -> int:
    """Make the missing steps, as long as there is time for them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", choices=_MODELS, default="llama")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--max-workloads", type=int, default=4, help="workloads of each definition that are measured")
    parser.add_argument("--solutions", type=Path, help="a data set whose solutions are added")
    parser.add_argument("--seconds", type=float, default=520.0, help="the longest time of this call")
    parser.add_argument("--archive", type=Path)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    os.environ |= {"VLLM_PLUGINS": "", "FIB_CACHE_PATH": str(options.out / "cache"), "PYTHONUNBUFFERED": "1"}
    if options.step is not None:
        _run_step(options)
        return 0
    if options.archive is not None and options.archive.exists() and not options.out.exists():
        with tarfile.open(options.archive) as packed:
            packed.extractall(options.out, filter="data")
    try:
        return _make_steps(options, time.monotonic() + options.seconds)
    finally:
        if options.archive is not None:
            _pack(options.out, options.archive)


def _make_steps(options: argparse.Namespace, end: float) -> int:
    for folder in ("results", "logs"):
        (options.out / folder).mkdir(parents=True, exist_ok=True)
    arms = [f"{arm}-{number}" for number in range(options.rounds) for arm in ("plain", "routed", "forced")]
    for step in ("trace", "measure", *arms):
        record, log = options.out / "results" / f"{step}.json", options.out / "logs" / f"{step}.txt"
        if record.exists():
            continue
        left, needed = end - time.monotonic(), _STARTS.get(step, _STARTS["engine"])
        if left < needed:
            print(f"{step} is missing: call this again")
            return _AGAIN
        if step == "trace":
            shutil.rmtree(options.out / "dataset", ignore_errors=True)  # of a trace that was not completed
        begin = time.monotonic()
        with log.open("a") as file:
            command = [sys.executable, __file__, *sys.argv[1:], "--step", step, "--seconds", str(left - 15)]
            status = _limited(command, left - 10, file)
        print(f"{step}: status {status} after {time.monotonic() - begin:.0f} s", flush=True)
        if status != 0:
            print(log.read_text(errors="replace")[-6000:])
            if step == "measure" and status in (-9, _AGAIN):
                return _AGAIN  # each pair that was measured has its trace
            return _AGAIN if status == -9 and left < options.seconds / 2 else 1
        print(record.read_text()[:3000])
    (options.out / "results" / "report.md").write_text(text := _report(options.out / "results", arms))
    print(text, "complete", sep="\n")
    return 0


def _limited(command: list[str], seconds: float, file: Any) -> int:
    """The status of a command with all that it starts; -9 if it was killed when the time was over."""
    process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return -9


def _pack(out: Path, archive: Path) -> None:
    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if member.name.startswith(("./cache", "./forced")) else member

    partial = archive.with_name(f"{archive.name}.part")
    with tarfile.open(partial, "w:gz") as packed:
        packed.add(out, ".", filter=kept)
    partial.replace(archive)


def _run_step(options: argparse.Namespace) -> None:
    step, arm = options.step, options.step.partition("-")[0]
    if step == "measure":
        record = _measure(options)
    else:
        if step == "trace":
            _write_data_set(options)
        if arm == "forced":
            shutil.rmtree(options.out / "forced", ignore_errors=True)
            shutil.copytree(options.out / "dataset", options.out / "forced")
            shutil.rmtree(options.out / "forced" / "traces" / "vllm" / "gqa_paged", ignore_errors=True)
        record = _run_engine(options, arm)
    path = options.out / "results" / f"{step}.json"
    path.with_suffix(".part").write_text(json.dumps(record, indent=1))
    path.with_suffix(".part").replace(path)


def _write_data_set(options: argparse.Namespace) -> None:
    from fib_integrations.adapters import all_adapters
    from fib_integrations.baselines import make_baselines
    from fib_integrations.cli import main as command
    from fib_schema import BuildSpec, Solution, SourceFile, TraceSet

    folder = options.out / "dataset"
    folder.mkdir(parents=True)
    if command(["definitions", str(folder), *_NAMES[options.model].split()]):
        raise SystemExit("a definition was not written")
    data_set = TraceSet.from_path(folder)
    spec = BuildSpec("triton", ["cuda"], "main.py::run", destination_passing_style=True)
    decodes = [name for name in data_set.definitions if name.startswith("fa_paged_decode")]
    ours = [Solution(f"plain_{one}", one, "fib", spec, [SourceFile("main.py", _DECODE)]) for one in decodes]
    given = [] if options.solutions is None else list(TraceSet.from_path(options.solutions).solutions.items())
    ours += [one for name, several in given if name in data_set.definitions for one in several]
    data_set.add_solutions([*make_baselines(data_set, all_adapters().values()).solutions, *ours])


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure for as long as there is time; what is measured, by solution."""
    folder, end = options.out / "dataset", time.monotonic() + options.seconds - 10
    run = [sys.executable, "-m", "fib_bench.cli.main", "run", str(folder), "--resume"]
    status = _limited([*run, "--max-workloads", str(options.max_workloads)], end - time.monotonic(), sys.stdout)
    if status not in (0, 1):  # 1: some work could not run
        raise SystemExit(_AGAIN)
    found: dict[str, Any] = {}
    for path in sorted((folder / "traces").rglob("*.jsonl")):
        for trace in map(json.loads, path.read_text().splitlines()):
            evaluation = trace["evaluation"]
            performance = evaluation.get("performance") or {}
            timing = (performance.get("extra") or {}).get("timing", {})
            row = [evaluation["status"], performance.get("latency_ms"), timing.get("graph_safe")]
            row += [timing.get("graph_unsafe_reason"), evaluation.get("log", "")[-200:]]
            found.setdefault(trace["solution"], []).append(row)
    if not found:
        raise SystemExit("nothing was measured")
    return found


def _run_engine(options: argparse.Namespace, arm: str) -> dict[str, Any]:
    import fib_apply
    import fib_integrations
    import fib_tracer
    import torch
    import vllm
    from fib_integrations import vllm as hooks
    from vllm import LLM, SamplingParams

    enabled: Any = nullcontext()
    if arm != "plain":
        fib_integrations.install_flashinfer_integrations(count_calls=True)
        hooks.install_hooks()
    if arm in ("routed", "forced"):
        folder = options.out / ("dataset" if arm == "routed" else arm)
        enabled = fib_apply.enable_apply(folder, stats=True)
    elif arm == "trace":
        enabled = fib_tracer.enable_tracing(options.out / "dataset")
    model = options.out / "model"
    model.mkdir(exist_ok=True)
    config = {**_COMMON, **_MODELS[options.model], "num_hidden_layers": options.layers}
    (model / "config.json").write_text(json.dumps(config))
    begin = time.monotonic()
    graphs: dict[str, Any] = {"enforce_eager": True}  # before a capture, requests have one token
    if arm != "trace":
        graphs = {"compilation_config": {"cudagraph_capture_sizes": [1, 2, options.requests]}}
    with enabled as runtime:
        engine = LLM(
            model=str(model), load_format="dummy", skip_tokenizer_init=True, max_model_len=8192, seed=0,
            dtype="bfloat16", enable_prefix_caching=False, num_gpu_blocks_override=_BLOCKS,
            **graphs,
        )  # fmt: skip

        def generate(requests: int, tokens: int) -> list[list[int]]:
            prompts = [{"prompt_token_ids": list(range(100 + i, 100 + i + options.prompt))} for i in range(requests)]
            settings = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
            return [list(one.outputs[0].token_ids) for one in engine.generate(prompts, settings, use_tqdm=False)]

        record: dict[str, Any] = {
            "versions": [vllm.__version__, torch.__version__, torch.cuda.get_device_name()],
            "start_s": time.monotonic() - begin,
            "tokens": {str(n): generate(n, _STEPS) for n in (options.requests, options.requests - 2)},
        }
        if arm != "trace":
            record |= {f"{n} requests": _timed(generate, n) for n in (options.requests, options.requests - 2)}
            record["decode_kernels"] = _kernels(generate, options.requests)
        record["status"] = [
            [one.path, one.state, one.detail, dict(one.unsupported_calls)]
            for one in fib_integrations.status()
            if one.path.startswith("vllm.")
        ]
        record["stats"] = {} if arm == "plain" else {name: str(counts) for name, counts in runtime.stats().items()}
    return record


def _timed(generate: Any, requests: int) -> dict[str, list[float]]:
    """Seconds of prefills, and milliseconds of a decode step: the difference of generations of two lengths."""
    first, steps = [], []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        generate(requests, 1)
        middle = time.perf_counter()
        generate(requests, 1 + _STEPS)
        first.append(middle - begin)
        steps.append((time.perf_counter() - middle - first[-1]) / _STEPS * 1e3)
    return {"prefill_s": first, "decode_ms": steps}


def _kernels(generate: Any, requests: int) -> dict[str, Any]:
    """The device's time of decode steps by kind and by kernel, in us per step."""
    import torch

    def profiled(tokens: int) -> Counter[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            generate(requests, tokens)
        return Counter({event.key: event.self_device_time_total for event in profile.key_averages()})

    prefill = profiled(1)
    times = {name: (us - prefill[name]) / _STEPS for name, us in profiled(1 + _STEPS).items()}
    kinds: Counter[str] = Counter()
    for name, us in times.items():
        kinds[next((kind for kind, text in _KINDS.items() if re.search(text, name.lower())), "others")] += us
    listed = sorted(((us, name[:120]) for name, us in times.items()), reverse=True)[:25]
    return {"kinds": dict(kinds), "kernels": listed}


def _report(results: Path, arms: list[str]) -> str:
    """Medians of the arms, tokens that equal those of the first plain engine, kinds of kernels, and decisions."""
    records = {arm: json.loads((results / f"{arm}.json").read_text()) for arm in arms}
    plain, lines = (
        records["plain-0"],
        ["| engine | requests | prefill s | decode ms | equal tokens |", "|" + " --- |" * 5],
    )
    for arm, record in records.items():
        for requests, tokens in record["tokens"].items():
            times, expected = record[f"{requests} requests"], plain["tokens"][requests]
            pairs = [
                pair for ours, theirs in zip(tokens, expected, strict=True) for pair in zip(ours, theirs, strict=True)
            ]
            equal = sum(one == other for one, other in pairs) / len(pairs)
            medians = [f"{statistics.median(times[name]):.3f}" for name in ("prefill_s", "decode_ms")]
            lines.append(f"| {arm} | {requests} | {medians[0]} | {medians[1]} | {equal:.1%} |")
    for arm, record in records.items():
        total = sum(record["decode_kernels"]["kinds"].values())
        shares = ", ".join(f"{kind} {us / total:.1%}" for kind, us in record["decode_kernels"]["kinds"].items())
        lines.append(f"\n{arm}: {total:.0f} us of kernels a decode step: {shares}")
        lines += [f"- {name}: {counts}" for name, counts in record["stats"].items()]
        lines += [f"- {path}: {state} {problem} {counts}" for path, state, problem, counts in record["status"]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
