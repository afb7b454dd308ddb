"""vLLM with two tensor-parallel ranks on two GPUs: traced into one data set, and routed alike.

usage: two_ranks.py trace OUT        trace both ranks into OUT/two-ranks/dataset, and report workloads and counts
       two_ranks.py route OUT ARM    route both ranks to OUT/arms/ARM, and compare what they routed

Nothing is timed, so that these commands may run at the same time.
OUT is a folder of `on_gpu.sh`, whose definitions, arms and caches are used; the report finds the results in
OUT/two-ranks. The plug-in of fib-integrations must be installed (as a wheel, not by a path alone), because vLLM finds
it by its entry point.

The model has twice the heads of `vllm_arms.py`, so that each rank calls the same definitions. Tracing is switched on by
the environment alone, as in production: vLLM loads the plug-in of fib-integrations in each process. Both
ranks build and choose for themselves, from the same data set. Norms are not routed here: the provider
is no option of this engine. Exit code 1 if a claim does not hold.
"""

import argparse
import json
import os
import shutil
import sys
from collections import Counter
from importlib.metadata import entry_points
from pathlib import Path

from arm_turns import decided, write_whole
from vllm_arms import BLOCKS, BYTES_OF_BLOCK, write_model

_RANKS, _LAYERS = 2, 2
_WARM_UPS = 3
"""Generations that each request something: builds, kernels that compile when called, nothing more."""
_REQUESTS, _GENERATED = 32, 64


def start(out):
    """An engine of two ranks; several may share the devices."""
    first_port = 20_000 + 64 * (os.getpid() % 640)  # engines that start together would find the same free port
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0", "TOKENIZERS_PARALLELISM": "false", "VLLM_PLUGINS": "fib_integrations",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    }  # fmt: skip
    os.environ.setdefault("VLLM_PORT", str(first_port))
    import vllm

    write_model(out / "two-ranks" / "model", _LAYERS, heads=64, key_heads=16)
    return vllm.LLM(
        str(out / "two-ranks" / "model"), load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", seed=0,
        max_model_len=4096, max_num_batched_tokens=4096, enable_prefix_caching=False, block_size=64,
        attention_backend="FLASHINFER", enforce_eager=True, num_gpu_blocks_override=BLOCKS, tensor_parallel_size=_RANKS,
        gpu_memory_utilization=0.05, kv_cache_memory_bytes=_LAYERS * BLOCKS * BYTES_OF_BLOCK,
        disable_custom_all_reduce=True,  # NCCL alone: custom reductions depend on how the devices are linked
    )  # fmt: skip


def generate(llm):
    import vllm

    prompts = [{"prompt_token_ids": list(range(1000 + i, 1128 + i))} for i in range(_REQUESTS)]
    wanted = vllm.SamplingParams(temperature=0.0, max_tokens=_GENERATED, ignore_eos=True, detokenize=False)
    return [list(one.outputs[0].token_ids) for one in llm.generate(prompts, wanted, use_tqdm=False)]


def trace(out):
    """Trace both ranks; yields problems."""
    dataset = out / "two-ranks" / "dataset"
    shutil.rmtree(dataset, ignore_errors=True)
    shutil.copytree(out / "dataset" / "definitions", dataset / "definitions")
    os.environ |= {"FIB_ENABLE_TRACING": "1", "FIB_DATASET_PATH": str(dataset)}
    llm = start(out)
    generate(llm)

    def flush(worker):
        del worker
        from fib_tracer import get_tracing_runtime

        runtime = get_tracing_runtime()
        runtime.flush()
        return {"pid": os.getpid(), "errors": runtime.error_counts()}

    ranks = llm.collective_rpc(flush)
    print(f"traced by {_RANKS} ranks: {ranks}")
    from fib_schema import TraceSet

    data_set = TraceSet.from_path(dataset)
    if not data_set.workloads:
        yield "nothing was traced"
    for name, traces in data_set.workloads.items():
        contents = Counter(
            json.dumps([dict(t.workload.axes), str(t.workload.inputs), str(t.workload.extra)], sort_keys=True)
            for t in traces
        )
        print(f"{name}: {len(traces)} workloads")
        if doubles := sum(count - 1 for count in contents.values()):
            yield f"{name}: {doubles} workloads are stored twice"
    files = [json.loads(path.read_text()) for path in (dataset / "traffic").glob("*.json")]
    used = (file["definitions"] for file in files if file["definitions"])
    counted = [{name: counts["calls"] for name, counts in definitions.items()} for definitions in used]
    print(f"calls counted by each process: {counted}")
    if len(counted) != _RANKS:
        yield f"calls are counted by {len(counted)} processes"
    elif counted[0] != counted[1]:
        yield "the ranks have counted different calls"


def route(out, arm):
    """Route both ranks; yields problems."""
    llm = start(out)
    plain = generate(llm)

    def enable(worker, data_set):
        del worker
        import fib_apply
        from fib_integrations import install_flashinfer_integrations

        install_flashinfer_integrations()
        config = fib_apply.ApplyConfig(require_speedup=False)
        fib_apply.enable_apply(data_set, config, stats=True)
        return data_set

    def wait(worker):
        del worker
        import fib_apply

        return fib_apply.get_runtime().wait_until_built(120)

    def counts(worker):
        del worker
        import fib_apply

        found = fib_apply.get_runtime().stats()
        return {name: {"hits": dict(one.hits), "misses": dict(one.misses)} for name, one in found.items()}

    print(llm.collective_rpc(enable, args=(str(out / "arms" / arm),)))
    for _ in range(_WARM_UPS):
        generate(llm)  # requests builds and first runs
        print("built:", llm.collective_rpc(wait))
    before = llm.collective_rpc(counts)
    tokens = generate(llm)
    after = llm.collective_rpc(counts)
    for rank, found in enumerate(after):
        print(f"rank {rank}: {json.dumps(found)}")
    if after[0] != after[1] or before[0] != before[1]:
        yield "the ranks have routed different calls"
    routed = {name: _decided(found) - _decided(before[0].get(name)) for name, found in after[0].items()}
    print(f"calls that a recorded key decided, by rank 0 in the last generation: {routed}")
    if not any(count for name, count in routed.items() if "decode" in name):
        yield "no recorded key has decided a decode"
    if arm == "winners" and not any(found["hits"] for found in after[0].values()):
        yield "no solution has served a call"
    same = sum(ours == theirs for ours, theirs in zip(tokens, plain, strict=True))
    print(f"{same} of {len(plain)} requests have the tokens of the unrouted engine")
    if arm == "routed" and same < len(plain):
        yield "tokens differ from those of the unrouted engine"


def _decided(counts):
    """The calls of a definition that a recorded key decided."""
    if counts is None:
        return 0
    return decided({**counts, "misses": {f": {reason}": count for reason, count in counts["misses"].items()}})


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("trace", "route"))
    parser.add_argument("out", type=Path)
    parser.add_argument("arm", nargs="?", default="routed")
    options = parser.parse_args(arguments)
    name = "trace" if options.command == "trace" else f"route-{options.arm}"
    record = options.out / "two-ranks" / f"{name}.json"
    record.unlink(missing_ok=True)
    if not entry_points(group="vllm.general_plugins", name="fib_integrations"):
        print("problem: fib-integrations is not installed with its entry points", file=sys.stderr)
        return 2
    problems = list(trace(options.out) if options.command == "trace" else route(options.out, options.arm))
    write_whole(record, json.dumps({"value": f"{_RANKS} ranks", "problems": problems}))
    for problem in problems:
        print(f"problem: {problem}", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
