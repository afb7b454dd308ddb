"""Calls of vLLM's layers that are traced with vLLM's defaults, on a GPU; `--routed`: with kernels of a data set.

The model has Llama-3.1-8B's or Qwen3-30B-A3B's shape and random weights. The first run writes definitions and baselines
into the data set and traces eagerly; `fib-bench run DATASET` measures them; `--routed` then runs vLLM with its CUDA
graphs. Each run prints the state of each patched function, what was not converted, and the device's time by kernel.

usage: python bench_vllm_layers.py DATASET [--model llama|qwen3] [--layers 16] [--requests 32] [--routed | --plain]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

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


def main() -> int:
    """Run the engine and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_set", type=Path)
    parser.add_argument("--model", choices=_MODELS, default="llama")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--blocks", type=int, default=8192, help="blocks of the cache: part of the keys of attention")
    state = parser.add_mutually_exclusive_group()
    state.add_argument("--routed", action="store_true")
    state.add_argument("--plain", action="store_true", help="nothing is enabled")
    options = parser.parse_args()
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    options.data_set.mkdir(parents=True, exist_ok=True)
    from fib_integrations.cli import main as command

    if command(["definitions", str(options.data_set), *_NAMES[options.model].split()]):
        return 2
    if command(["baselines", str(options.data_set)]):
        return 2
    with tempfile.TemporaryDirectory() as folder:
        config = {**_COMMON, **_MODELS[options.model], "num_hidden_layers": options.layers}
        (Path(folder) / "config.json").write_text(json.dumps(config))
        _run(options, folder)
    return 0


def _run(options: argparse.Namespace, folder: str) -> None:
    import fib_apply
    import fib_integrations
    import fib_tracer
    import torch
    from fib_integrations import vllm as hooks
    from vllm import LLM, SamplingParams

    if options.plain:
        enabled: Any = nullcontext()
    else:
        fib_integrations.install_flashinfer_integrations(count_calls=True)
        hooks.install_hooks()
        enabled = fib_apply.enable_apply(options.data_set, stats=True) if options.routed else None
    with enabled or fib_tracer.enable_tracing(options.data_set) as runtime:
        engine = LLM(
            model=folder, load_format="dummy", skip_tokenizer_init=True, max_model_len=8192, seed=0, dtype="bfloat16",
            enable_prefix_caching=False, num_gpu_blocks_override=options.blocks,
            enforce_eager=not (options.routed or options.plain),
        )  # fmt: skip
        prompts = [
            {"prompt_token_ids": list(range(100 + i, 100 + i + options.prompt))} for i in range(options.requests)
        ]
        settings = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True, detokenize=False)
        engine.generate(prompts, settings, use_tqdm=False)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            engine.generate(prompts, settings, use_tqdm=False)
        times = Counter({event.key: event.self_device_time_total for event in profile.key_averages()})
        for name, time_us in times.most_common(25):
            print(f"{time_us / sum(times.values()):7.1%}  {name[:140]}")
        for one in fib_integrations.status():
            if one.path.startswith("vllm."):
                print(one.path, one.state, one.detail, dict(one.unsupported_calls))
        for name, counts in ({} if options.plain else runtime.stats()).items():
            print(name, counts)


if __name__ == "__main__":
    sys.exit(main())
