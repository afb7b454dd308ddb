"""vLLM with and without routing, compared on one GPU: tokens per second, time to first token, hits, equal tokens.

usage: vllm_arms.py measure OUT [options]     rounds that are missing; exits 75 if time ends before they are complete
       vllm_arms.py report OUT [options]      tables; exits 1 if a claim does not hold
       vllm_arms.py trace OUT --mode MODE     workloads of the model's calls into OUT/tracing, which has definitions

The arms are plain, off (functions patched, nothing enabled), tracing (with full quotas), and those that are routed to a
data set of `arm_data_sets.py`: routed (to the engine's own kernels), winners (to what is faster) and slow (to what is
slower). `arm_turns.py` measures, and `arm_report.py` reports. `on_gpu.sh` shows the whole way.
"""

import argparse
import hashlib
import json
import os
import shlex
import shutil
import signal
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

from arm_report import LEAST_ROUNDS, report
from arm_turns import END, END_PROFILED, ROUTED, START, TURN, layers_of, measure, write_whole

TRACED = ("tracing", "traced")
"""The arms that are traced; `trace` runs the second one."""
ARMS, MODES = ("plain", "off", "tracing", *ROUTED), ("eager", "graphs")
_NEEDED = {
    "eager": ("gqa_paged_decode", "gqa_paged_prefill", "rmsnorm"),
    "graphs": ("gqa_paged_decode", "gqa_paged_prefill"),
}
"""Beginnings of the definitions that `trace` must have seen in a mode; under CUDA graphs, Inductor makes the norms."""
BLOCKS = 2048
"""Blocks of the KV cache: their number is part of a key, and what vLLM finds free differs from start to start."""
BYTES_OF_BLOCK = 2 * 64 * 8 * 128 * 2
"""Of one layer: keys and values of 64 tokens, 8 heads, 128 numbers of 16 bits."""
_REQUESTS, _PROMPT, _GENERATED, _IN_A_TURN = 32, 128, 64, 32
"""Requests of a generation (graphs are captured for as many, and for one), tokens of a prompt, and tokens that are
generated for each request: where tokens are compared, and in a turn."""


def model_folder(out, layers):
    return out / f"model-{layers}"


def write_model(folder, layers, heads=32, key_heads=8):
    """The configuration of a model of Llama-3.1-8B's shape; its weights are random."""
    shape = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": heads, "num_key_value_heads": key_heads, "head_dim": 128,
        "num_hidden_layers": layers, "vocab_size": 128256,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
        "bos_token_id": 128000, "eos_token_id": 128001, "tie_word_embeddings": False,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "config.json", json.dumps(shape))  # engines that start together read it
    return shape


def engine(out, options):
    """Start vLLM in this process, generate tokens when told to, and write a record."""
    first_port = 20_000 + 64 * (os.getpid() % 640)  # engines that start together would find the same free port
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_PLUGINS": "",
        "VLLM_USE_FLASHINFER_SAMPLER": "0", "TOKENIZERS_PARALLELISM": "false", "VLLM_PORT": str(first_port),
    }  # fmt: skip
    import flashinfer
    import torch
    import vllm

    _ = vllm.LLM, vllm.SamplingParams  # imported at the first access
    commands = _commands(options)
    next(commands)
    begin = time.perf_counter()
    runtime = switch_on(options.arm, out)  # after the imports, as vLLM loads plug-ins
    switched_on = time.perf_counter() - begin
    captured = _count_captures(torch, lambda: _counts(runtime))
    traces_start = options.arm == "traced" and options.mode == "graphs"
    if traces_start:  # calls of graphs are seen only before and while these are captured
        runtime = _trace(options, out)
    llm = vllm.LLM(**_arguments(out, options))
    started = time.perf_counter() - begin
    at_start = _counts(runtime)
    if options.arm in TRACED and not traces_start:  # the calls of requests, without those of the start
        runtime = _trace(options, out)
    prompts = [{"prompt_token_ids": list(range(1000 + i, 1000 + i + _PROMPT))} for i in range(_REQUESTS)]

    def generate(requests, count):
        wanted = vllm.SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
        before = time.perf_counter()
        found = llm.generate(requests, wanted, use_tqdm=False)
        return time.perf_counter() - before, [list(one.outputs[0].token_ids) for one in found]

    def timed_turn():
        """Tokens per second, and milliseconds to the first token."""
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # this thread only, and the same core in all arms
        generate(prompts[:1], 2)  # after other processes have used the device
        seconds, made = generate(prompts, _IN_A_TURN)
        first = statistics.median(1e3 * generate(prompts[:1], 1)[0] for _ in range(3))
        return sum(map(len, made)) / seconds, first

    for _ in range(2):  # compiles, builds and loads; routed solutions are ready afterwards
        generate(prompts, _GENERATED)
        generate(prompts[:1], 4)
        if runtime is not None and hasattr(runtime, "wait_until_built"):
            runtime.wait_until_built(240)
    _, tokens = generate(prompts, _GENERATED)
    before = _counts(runtime)
    turns = []
    after = before
    device_ms = {}
    for command in commands:
        if command == TURN:
            turns.append(timed_turn())
            after = _counts(runtime)
            continue
        if command == END_PROFILED:
            device_ms = _device_times(torch, lambda: generate(prompts, 16))
        total = _counts(runtime)
        if options.arm in TRACED:
            runtime.stop()
            shutil.rmtree(_traced_copy(options), ignore_errors=True)
        record = {
            "machine": _machine(torch),
            "shape": {"layers": options.layers, "vllm": vllm.__version__, "flashinfer": flashinfer.__version__},
            "start_seconds": started,
            "switch_on_seconds": switched_on,
            "tokens_per_second": [speed for speed, _ in turns],
            "first_token_ms": [first for _, first in turns],
            "device_ms": device_ms,
            "tokens": hashlib.sha256(json.dumps(tokens).encode()).hexdigest(),
            "at_start": {kind: dict(counts) for kind, counts in at_start.items()},
            "captured": {kind: dict(counts) for kind, counts in captured.items()},
            "total": {kind: dict(counts) for kind, counts in total.items()},
            **{kind: dict(after[kind] - before[kind]) for kind in after},
        }
        write_whole(options.record, json.dumps(record))


def _arguments(out, options):
    """Arguments of vLLM; several engines share a device."""
    arguments = {
        "model": str(model_folder(out, options.layers)), "load_format": "dummy", "skip_tokenizer_init": True,
        "dtype": "bfloat16", "max_model_len": 4096, "max_num_batched_tokens": _REQUESTS * _PROMPT, "seed": 0,
        "enable_prefix_caching": False, "block_size": 64, "attention_backend": "FLASHINFER",
        "enforce_eager": options.mode == "eager", "gpu_memory_utilization": 0.05, "num_gpu_blocks_override": BLOCKS,
        "kv_cache_memory_bytes": options.layers * BLOCKS * BYTES_OF_BLOCK,
    }  # fmt: skip
    if options.mode == "graphs":
        arguments["cudagraph_capture_sizes"] = [1, _REQUESTS]
    if options.arm in (*ROUTED, *TRACED):
        arguments["ir_op_priority"] = {"rms_norm": ["fib"], "fused_add_rms_norm": ["fib"]}
    return arguments | options.settings


def _commands(options):
    """The commands of the measuring process. Each answer, a byte, is sent when the next command is asked for."""
    if options.answers is None:
        yield from (START, *[TURN] * options.turns, END_PROFILED)
        return
    command = ""
    while command not in (END, END_PROFILED):
        os.write(options.answers, b".")
        command = sys.stdin.readline().strip()
        if not command:
            sys.exit("the measuring process has closed its pipe")
        yield command
    os.write(options.answers, b".")


def _device_times(torch, call):
    """Milliseconds of device time by kernel; none without a GPU."""
    if not torch.cuda.is_available():
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    times = {event.key: event.self_device_time_total / 1e3 for event in found.key_averages()}
    return {name: time for name, time in times.items() if time > 0}


def _count_captures(torch, counts):
    """Counts of calls while CUDA graphs are captured from now on; a graph keeps the kernels of these calls."""
    graph, found = torch.cuda.graph, {kind: Counter[str]() for kind in counts()}
    enter, leave = graph.__enter__, graph.__exit__
    before = {}

    def counting_enter(self):
        before.update(counts())
        return enter(self)

    def counting_leave(self, *error):
        result = leave(self, *error)
        for kind, now in counts().items():
            found[kind].update(now - before[kind])
        return result

    graph.__enter__, graph.__exit__ = counting_enter, counting_leave
    return found


def switch_on(arm, out, say=print):
    """Patch and enable what an arm needs, and say what is ready; returns the runtime."""
    if arm == "plain":
        return None
    from fib_integrations.startup import install_all

    install_all(count_calls=arm != "off")
    if arm in ROUTED:
        from fib_apply import ApplyConfig, ApplyConfigRegistry, enable_apply
        from fib_schema import TraceSet

        dataset = out / "arms" / arm
        config = ApplyConfigRegistry(default=ApplyConfig(require_speedup=False))
        if arm == "winners":
            solutions = [one for known in TraceSet.from_path(dataset).solutions.values() for one in known]
            engines = [one for one in solutions if not one.name.startswith("own_")]
            known = {one.definition: ApplyConfig(baseline=one.name) for one in engines}
            config = ApplyConfigRegistry(per_definition=known)
        runtime = enable_apply(dataset, config, stats=True)
        say(str(runtime.warm_up(240)))  # before the engine captures graphs
        return runtime
    return None


def _trace(options, out):
    """Start tracing: all sizes into OUT/tracing; or, to measure what it costs, into a copy until quotas are full."""
    from fib_tracer import TracingConfig, enable_tracing

    if options.arm == "traced":
        return enable_tracing(out / "tracing", every_size())
    copy = _traced_copy(options)
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(out / "dataset" / "definitions", copy / "definitions")
    return enable_tracing(copy, TracingConfig(max_kept=1))


def _traced_copy(options):
    return options.record.with_suffix(".traced")


def every_size():
    """Settings of a tracer that keep a call of each size: keys have sizes.

    The tracer's own settings keep attention by its average length, which is the same for one request and for 32.
    """
    from fib_tracer import TracingConfig, TracingConfigRegistry
    from fib_tracer.settings import Rule

    policy = "keep_first_k_by_axes"
    attention = Rule(TracingConfig("dump_int", filter_policy=policy), "gqa*")
    return TracingConfigRegistry(TracingConfig("dump_none", filter_policy=policy), rules=(attention,))


def _counts(runtime):
    """Hits and misses by definition and reason, calls that no definition describes, and traced calls."""
    counts = {kind: Counter() for kind in ("hits", "misses", "unsupported", "traced")}
    if runtime is None:
        return counts
    if not hasattr(runtime, "wait_until_built"):
        counts["traced"].update({name: stats.calls for name, stats in runtime.stats().items()})
        return counts
    from fib_integrations import status

    for name, stats in runtime.stats().items():
        counts["hits"][name] += sum(stats.hits.values())
        counts["misses"].update({f"{name}: {reason}": count for reason, count in stats.misses.items()})
    for target in status():
        counts["unsupported"].update({f"{target.path}: {reason}": n for reason, n in target.unsupported_calls})
    return counts


def _machine(torch):
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    if not torch.cuda.is_available():
        return f"CPU {boot}"
    properties = torch.cuda.get_device_properties(0)
    return f"{properties.name} {getattr(properties, 'uuid', '')} {boot}"


def untraced(record, mode):
    """Problems of a traced run: definitions that it must have called in a mode, and did not."""
    counted = json.loads(record.read_text())
    calls = Counter(counted["total"]["traced"])
    found = [f"no call of {name} was traced" for name in _NEEDED[mode] if not _sum_of(calls, name)]
    captured = counted["captured"]["traced"]
    if mode == "graphs" and not _sum_of(captured, "gqa_paged_decode"):
        found.append(f"no captured decode was traced, but {captured}")
    return found


def _sum_of(counts, beginning):
    return sum(count for name, count in counts.items() if name.startswith(beginning))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("measure", "report", "trace", "engine"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=LEAST_ROUNDS)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--layers", type=int, default=2, help="of the model in eager mode, and while it is traced")
    text = "with CUDA graphs: there the device takes most of the time, as in a whole model"
    parser.add_argument("--graph-layers", type=int, default=16, help=text)
    parser.add_argument("--turns", type=int, default=24, help="generations of an engine process in a round")
    parser.add_argument("--seconds", type=float, default=500.0, help="time of this command")
    parser.add_argument("--longest", type=float, default=120.0, help="expected seconds of the first round")
    parser.add_argument("--command-line", default=f"{shlex.quote(sys.executable)} {shlex.quote(__file__)}")
    parser.add_argument("--arm", choices=(*ARMS, "traced"), default="plain")
    parser.add_argument("--mode", choices=MODES, default="eager")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--settings", type=json.loads, default={}, help="further arguments of vllm.LLM, as JSON")
    parser.add_argument("--answers", type=int, help=argparse.SUPPRESS)  # a file descriptor
    options = parser.parse_args(arguments)
    if options.command != "report" and options.answers is None:  # not each process of a measurement
        for mode in MODES:
            write_model(model_folder(options.out, layers_of(options, mode)), layers_of(options, mode))
    if options.command == "measure":
        return measure(options.out, options, shlex.split(options.command_line))
    if options.command == "report":
        return report(options.out, options)
    if options.command == "trace":
        record = options.out / f"traced-{options.mode}.json"
        options.arm, options.record, options.turns = "traced", record, 1
    engine(options.out, options)
    problems = untraced(options.record, options.mode) if options.command == "trace" else []
    for problem in problems:
        print(f"problem: {problem}", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # `timeout` sends it: engine processes are killed then
    sys.exit(main())
