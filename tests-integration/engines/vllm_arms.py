"""vLLM with and without routing, compared on one GPU: tokens per second, time to first token, hits, equal tokens.

usage: vllm_arms.py measure OUT [options]     rounds that are missing; exits 75 if time ends before they are complete
       vllm_arms.py report OUT [options]      tables; exits 1 if a claim does not hold
       vllm_arms.py trace OUT [options]       workloads of the model's calls into OUT/dataset

The arms are plain, off (functions patched, nothing enabled), and those that are routed to a data set of
`arm_data_sets.py`: routed (to the engine's own kernels), winners (to what is faster) and slow (to what is slower).
A round starts one engine process for each arm and mode, in an order that rotates, so that drifts of the machine hit
all arms. Ratios are taken within rounds. Records are files, so that a run continues where it stopped. `on_gpu.sh`
shows the whole way.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROUTED = ("routed", "winners", "slow")
"""The arms with a data set of their own."""
ARMS, MODES = ("plain", "off", *ROUTED), ("eager", "graphs")
AGAIN = 75
"""Exit code for "call me again" (EX_TEMPFAIL)."""
_LEAST_ROUNDS = 5
_MOST_KERNELS = 12
"""Kernels in a table of device times."""
_BLOCKS = 2048
"""Blocks of the KV cache: their number is part of a key, and what vLLM finds free differs from start to start."""
_REQUESTS = 32
"""Requests of a generation; graphs are captured for as many, and for one."""
_MARGIN = 1.3
"""Factor on the longest engine process so far that has to fit into the time that is left."""
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
)  # fmt: skip
"""Quantiles of Student's t distribution for 95 % intervals, from one degree of freedom on."""

Record = Mapping[str, Any]


# -- rounds --------------------------------------------------------------------------------------------------------


def planned(rounds: int, arms: Sequence[str], modes: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Round, mode and arm of each engine process; the order of arms rotates from round to round."""
    for number in range(rounds):
        turn = number % len(arms)
        for mode in modes:
            for arm in (*arms[turn:], *arms[:turn]):
                yield number, mode, arm


def place(out: Path, number: int, mode: str, arm: str) -> Path:
    """The record of one engine process."""
    return out / "rounds" / f"{number:03}-{mode}-{arm}.json"


def measure(
    out: Path, options: argparse.Namespace, engine: Sequence[str], clock: Callable[[], float] = time.monotonic
) -> int:
    """Start the engine processes whose records are missing, as long as another one fits into the time.

    Imports take as long as the rest, so the next process imports while this one starts its engine. Nothing is timed
    meanwhile, and only one process uses the device.
    """
    (out / "rounds").mkdir(parents=True, exist_ok=True)
    end, longest = clock() + options.seconds, options.longest
    missing = [key for key in planned(options.rounds, options.arms, options.modes) if not place(out, *key).exists()]
    processes: dict[tuple[int, str, str], subprocess.Popen[str]] = {}
    try:
        for key, following in zip_longest(missing, missing[1:]):
            target = place(out, *key)
            if clock() + _MARGIN * longest > end:
                print(f"stopped before {target.stem}: call this again", flush=True)
                return AGAIN
            begin = clock()
            for one in (key, following):
                if one is not None and one not in processes:
                    processes[one] = _begin(out, options, engine, one)
            try:
                _tell(processes[key], "start")
                if following is not None:
                    _wait_for_imports(processes[following], _partial(out, following), max(end - begin, 1.0))
                _tell(processes[key], "time")
                code = processes[key].wait(timeout=max(end - begin, 1.0))
            except subprocess.TimeoutExpired:
                print(f"{target.stem}: killed after {end - begin:.0f} s, when the time was over", file=sys.stderr)
                return AGAIN
            if code or not _partial(out, key).exists():
                print(f"{target.stem}: the engine process ended with code {code}", file=sys.stderr)
                return 1
            target.with_suffix(".ready").unlink(missing_ok=True)
            _partial(out, key).rename(target)  # a process that was killed leaves no record
            longest = max(longest, clock() - begin)
            print(f"{target.stem}: {clock() - begin:.0f} s", flush=True)
    finally:
        for process in processes.values():
            process.kill()
            with suppress(BrokenPipeError), process:  # closes its standard input, and waits
                pass
    return 0


def _partial(out: Path, key: tuple[int, str, str]) -> Path:
    return place(out, *key).with_suffix(".partial")


def _begin(
    out: Path, options: argparse.Namespace, engine: Sequence[str], key: tuple[int, str, str]
) -> subprocess.Popen[str]:
    """Start an engine process, which imports and then waits for a line."""
    (_, mode, arm), partial = key, _partial(out, key)
    partial.with_suffix(".ready").unlink(missing_ok=True)
    command = [*engine, "engine", str(out), "--arm", arm, "--mode", mode, "--record", str(partial)]
    command += ["--layers", str(options.layers), "--repetitions", str(options.repetitions), "--waits", "yes"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, text=True)


def _tell(process: subprocess.Popen[str], word: str) -> None:
    """Let a process go on; one that has ended needs no word."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(f"{word}\n")
        process.stdin.flush()


def _wait_for_imports(process: subprocess.Popen[str], partial: Path, seconds: float) -> None:
    """Wait until a process has imported what it needs, or has ended.

    Raises:
        subprocess.TimeoutExpired: It has not in so many seconds.
    """
    end = time.monotonic() + seconds
    while process.poll() is None and not partial.with_suffix(".ready").exists():
        if time.monotonic() > end:
            raise subprocess.TimeoutExpired(process.args, seconds)
        time.sleep(0.02)


# -- report --------------------------------------------------------------------------------------------------------


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and its 95 % interval; infinite for a single value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    quantile = _T_975[min(len(values) - 1, len(_T_975)) - 1]
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def ratio(pairs: Iterable[tuple[float, float]]) -> tuple[float, float, float]:
    """The geometric mean of ratios within rounds, with its 95 % interval."""
    mean, low, high = interval([math.log(ours / theirs) for ours, theirs in pairs])
    return math.exp(mean), math.exp(low), math.exp(high)


def records_of(out: Path, options: argparse.Namespace) -> dict[tuple[int, str, str], Record]:
    """The records that are there."""
    wanted = planned(options.rounds, options.arms, options.modes)
    paths = {key: place(out, *key) for key in wanted}
    return {key: json.loads(path.read_text()) for key, path in paths.items() if path.exists()}


def problems_of(records: Mapping[tuple[int, str, str], Record], options: argparse.Namespace) -> list[str]:
    """Reasons why the records prove nothing, or a claim that does not hold."""
    found = []
    machines = {record["machine"] for record in records.values()}
    if len(machines) > 1:
        found.append(f"the rounds are of {len(machines)} machines: {', '.join(sorted(machines))}")
    shapes = {json.dumps(record["shape"], sort_keys=True) for record in records.values()}
    if len(shapes) > 1:
        found.append(f"the rounds have {len(shapes)} shapes of models or versions")
    for mode in options.modes:
        whole = [n for n in range(options.rounds) if all((n, mode, arm) in records for arm in options.arms)]
        if len(whole) < _LEAST_ROUNDS:
            found.append(f"{mode}: {len(whole)} complete rounds, fewer than {_LEAST_ROUNDS}")
        of_mode = {(n, arm): record for (n, m, arm), record in records.items() if m == mode}
        for arm in options.arms:
            mine = {record["tokens"] for (_, a), record in of_mode.items() if a == arm}
            plain = {record["tokens"] for (_, a), record in of_mode.items() if a == "plain"}
            if arm != "winners" and mine and plain and mine != plain:  # own kernels round otherwise
                found.append(f"{mode}, {arm}: other tokens than plain")
        if mode == "eager":
            found += _problems_of_routing(of_mode)
    return found


def _problems_of_routing(records: Mapping[tuple[int, str], Record]) -> Iterator[str]:
    """Problems of eager runs: in graphs, hits are counted at the capture only."""
    for arm in ("routed", "slow"):
        hits = [sum(record["hits"].values()) for (_, a), record in records.items() if a == arm]
        if not all(hits):
            yield f"eager, {arm}: a run has no hits"
    against_plain = {arm: list(_pairs(records, arm, "tokens_per_second")) for arm in ("winners", "slow")}
    if against_plain["winners"] and ratio(against_plain["winners"])[2] < 1:
        yield "eager, winners: slower than plain"
    if against_plain["slow"] and ratio(against_plain["slow"])[2] >= 1:
        yield "eager, slow: not slower than plain, although its solutions are"


def _pairs(records: Mapping[tuple[int, str], Record], arm: str, name: str) -> Iterator[tuple[float, float]]:
    """The medians of an arm and of plain in each round that has both."""
    for (number, a), record in records.items():
        if a == arm and (number, "plain") in records:
            yield statistics.median(record[name]), statistics.median(records[number, "plain"][name])


def report(out: Path, options: argparse.Namespace) -> int:
    """Print the tables; 1 if there is a problem."""
    records = records_of(out, options)
    if not records:
        print("no records", file=sys.stderr)
        return 1
    first = next(iter(records.values()))
    print(f"{first['machine']}; {json.dumps(first['shape'])}\n")
    print("| mode | arm | rounds | tokens/s (95 %) | against plain | first token, ms | against plain | start, s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for mode in options.modes:
        for arm in options.arms:
            mine = {n: record for (n, m, a), record in records.items() if (m, a) == (mode, arm)}
            if mine:
                print(_row(mode, arm, mine, {n: r for (n, m, a), r in records.items() if (m, a) == (mode, "plain")}))
    for mode in options.modes:
        for arm in (arm for arm in options.arms if arm in ROUTED):
            routed = [record for (_, m, a), record in records.items() if (m, a) == (mode, arm)]
            _print_counts(f"{mode}, {arm}", routed)
            _print_counts(f"{mode}, {arm}, at the start", [record["at_start"] for record in routed])
        print_device_times(
            {arm: records[0, mode, arm]["device_ms"] for arm in options.arms if (0, mode, arm) in records}, mode
        )
    problems = problems_of(records, options)
    for problem in problems:
        print(f"problem: {problem}", file=sys.stderr)
    return int(bool(problems))


def _print_counts(title: str, records: Sequence[Record]) -> None:
    """Print the sums of what was counted; at the start of the engine, that includes the capture of graphs."""
    for kind in ("hits", "misses", "unsupported"):
        total: Counter[str] = Counter()
        for record in records:
            total.update(record[kind])
        print(f"\n{title}, {kind}: {sum(total.values())}")
        for name, count in total.most_common():
            print(f"- {name}: {count}")


def print_device_times(arms: Mapping[str, Mapping[str, float]], mode: str) -> None:
    """Print the time of the longest kernels in each arm, of one generation in the first round."""
    longest: Counter[str] = Counter()
    for times in arms.values():
        longest |= Counter(times)
    print(f"\n| device time in ms, {mode} | {' | '.join(arms)} |\n| --- |{' --- |' * len(arms)}")
    for name, _ in longest.most_common(_MOST_KERNELS):
        print(f"| `{name[:80]}` | {' | '.join(f'{times.get(name, 0.0):.2f}' for times in arms.values())} |")
    print(f"| all | {' | '.join(f'{sum(times.values()):.2f}' for times in arms.values())} |")


def _row(mode: str, arm: str, mine: Mapping[int, Record], plain: Mapping[int, Record]) -> str:
    both = sorted(mine.keys() & plain.keys())
    cells = [mode, arm, str(len(mine))]
    for name, digits in (("tokens_per_second", 0), ("first_token_ms", 2)):
        values = {n: statistics.median(record[name]) for n, record in mine.items()}
        others = {n: statistics.median(plain[n][name]) for n in both}
        mean, low, high = interval(list(values.values()))
        cells.append(f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})")
        if arm == "plain" or not both:
            cells.append("")
        else:
            cells.append("{:.4f} ({:.4f} to {:.4f})".format(*ratio((values[n], others[n]) for n in both)))
    cells.append(f"{statistics.median(record['start_seconds'] for record in mine.values()):.1f}")
    return f"| {' | '.join(cells)} |"


# -- the engine process ------------------------------------------------------------------------------------------------


def write_model(folder: Path, layers: int) -> dict[str, Any]:
    """The configuration of a model of Llama-3.1-8B's shape; its weights are random."""
    shape = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": layers, "vocab_size": 128256,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
        "bos_token_id": 128000, "eos_token_id": 128001, "tie_word_embeddings": False,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape))
    return shape


def engine(out: Path, options: argparse.Namespace) -> None:
    """Start vLLM in this process, generate tokens, and write a record."""
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_PLUGINS": "",
        "VLLM_USE_FLASHINFER_SAMPLER": "0", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    import flashinfer
    import torch
    import vllm

    _ = vllm.LLM, vllm.SamplingParams  # imported at the first access
    _wait_for("start", options)
    begin = time.perf_counter()
    runtime = _switch_on(options.arm, out)  # after the imports, as vLLM loads plug-ins
    write_model(out / "model", options.layers)
    arguments: dict[str, Any] = {
        "model": str(out / "model"), "load_format": "dummy", "skip_tokenizer_init": True, "dtype": "bfloat16",
        "max_model_len": 4096, "gpu_memory_utilization": 0.5, "enable_prefix_caching": False, "seed": 0,
        "block_size": 64, "attention_backend": "FLASHINFER", "enforce_eager": options.mode == "eager",
        "num_gpu_blocks_override": _BLOCKS,
    }  # fmt: skip
    if options.mode == "graphs":
        arguments["cudagraph_capture_sizes"] = [1, _REQUESTS]
    if options.arm in (*ROUTED, "traced"):
        arguments["ir_op_priority"] = {"rms_norm": ["fib"], "fused_add_rms_norm": ["fib"]}
    llm = vllm.LLM(**arguments)
    started = time.perf_counter() - begin
    at_start = _counts(runtime)
    if options.arm == "traced":  # what serves requests, rather than the engine's own start
        from fib_tracer import enable_tracing

        runtime = enable_tracing(out / "dataset")
    prompts = [{"prompt_token_ids": list(range(1000 + i, 1128 + i))} for i in range(_REQUESTS)]

    def generate(requests: Any, count: int) -> tuple[float, list[list[int]]]:
        wanted = vllm.SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
        before = time.perf_counter()
        found = llm.generate(requests, wanted, use_tqdm=False)
        return time.perf_counter() - before, [list(one.outputs[0].token_ids) for one in found]

    for _ in range(2):  # compiles, builds and loads; routed solutions are ready afterwards
        generate(prompts, 64)
        generate(prompts[:1], 4)
        if runtime is not None and hasattr(runtime, "wait_until_built"):
            runtime.wait_until_built(240)
    _wait_for("time", options)
    before = _counts(runtime)
    timed = [generate(prompts, 64) for _ in range(options.repetitions)]
    first = [1e3 * generate(prompts[:1], 1)[0] for _ in range(3 * options.repetitions)]
    after = _counts(runtime)
    device_ms = _device_times(torch, lambda: generate(prompts, 16))
    if options.arm == "traced":
        runtime.stop()
    record = {
        "machine": _machine(torch),
        "shape": {"layers": options.layers, "vllm": vllm.__version__, "flashinfer": flashinfer.__version__},
        "start_seconds": started,
        "tokens_per_second": [sum(map(len, tokens)) / seconds for seconds, tokens in timed],
        "first_token_ms": first,
        "device_ms": device_ms,
        "tokens": hashlib.sha256(json.dumps(timed[0][1]).encode()).hexdigest(),
        "at_start": {kind: dict(counts) for kind, counts in at_start.items()},
        **{kind: dict(after[kind] - before[kind]) for kind in after},
    }
    options.record.write_text(json.dumps(record))


def _wait_for(word: str, options: argparse.Namespace) -> None:
    """Wait until the process that measures says this word; `measure` tells why."""
    if options.waits == "yes":
        options.record.with_suffix(".ready").touch()
        if sys.stdin.readline().strip() != word:
            sys.exit(f"nobody waits for this process any more: expected {word!r} on standard input")


def _device_times(torch: Any, call: Callable[[], object]) -> dict[str, float]:
    """Milliseconds of device time by kernel."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    times = {event.key: event.self_device_time_total / 1e3 for event in found.key_averages()}
    return {name: time for name, time in times.items() if time > 0}


def _switch_on(arm: str, out: Path) -> Any:
    """Patch and enable what an arm needs; returns the runtime."""
    if arm == "plain":
        return None
    from fib_integrations import install_flashinfer_integrations
    from fib_integrations.vllm_provider import register_when_imported

    install_flashinfer_integrations(count_calls=arm != "off")
    register_when_imported()
    if arm in ROUTED:
        from fib_apply import ApplyConfig, ApplyConfigRegistry, enable_apply
        from fib_schema import TraceSet

        dataset = out / "arms" / arm
        config = ApplyConfigRegistry(default=ApplyConfig(require_speedup=False))
        if arm == "winners":
            names = TraceSet.from_path(dataset).definition_names()
            known = {name: ApplyConfig(baseline=f"engine_{name}") for name in names}
            config = ApplyConfigRegistry(per_definition=known)
        runtime = enable_apply(dataset, config, stats=True)
        print(runtime.warm_up(240), flush=True)  # before the engine captures graphs
        return runtime
    return None


def _counts(runtime: Any) -> dict[str, Counter[str]]:
    """Hits and misses by definition and reason, and calls that no definition describes."""
    counts: dict[str, Counter[str]] = {"hits": Counter(), "misses": Counter(), "unsupported": Counter()}
    if runtime is None or not hasattr(runtime, "wait_until_built"):
        return counts
    from fib_integrations import status

    for name, stats in runtime.stats().items():
        counts["hits"][name] += sum(stats.hits.values())
        counts["misses"].update({f"{name}: {reason}": count for reason, count in stats.misses.items()})
    for target in status():
        counts["unsupported"].update({f"{target.path}: {reason}": n for reason, n in target.unsupported_calls})
    return counts


def _machine(torch: Any) -> str:
    properties = torch.cuda.get_device_properties(0)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    return f"{properties.name} {getattr(properties, 'uuid', '')} {boot}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("measure", "report", "trace", "engine"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=_LEAST_ROUNDS)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=5, help="timed generations of one engine process")
    parser.add_argument("--seconds", type=float, default=500.0, help="time of this command")
    parser.add_argument("--longest", type=float, default=60.0, help="expected seconds of the first engine process")
    parser.add_argument("--command-line", default=f"{shlex.quote(sys.executable)} {shlex.quote(__file__)}")
    parser.add_argument("--arm", choices=(*ARMS, "traced"), default="plain")
    parser.add_argument("--mode", choices=MODES, default="eager")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--waits", choices=("yes", "no"), default="no", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.command == "measure":
        return measure(options.out, options, shlex.split(options.command_line))
    if options.command == "report":
        return report(options.out, options)
    if options.command == "trace":
        options.arm, options.record = "traced", options.out / "traced.json"
    engine(options.out, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
