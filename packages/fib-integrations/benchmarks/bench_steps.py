"""Overhead of a step of an engine on the CPU, in microseconds: one plan, then two runs, norms and embeddings.

Between two calls an engine does much else, so that nothing of a call is left in the processor's caches. Therefore each
call is timed alone, after other code and data have filled them. The functions have FlashInfer's signatures and do
nothing. All states take turns in one process; a result is the median of the differences from the unpatched calls.

usage: python bench_steps.py [--rounds 30] [--json FILE]
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import logging
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

SUPPORT = Path(__file__).parents[1] / "tests" / "support"
sys.path.insert(0, str(SUPPORT))

import fib_integrations  # noqa: E402 found there
import flashinfer_stand_ins  # noqa: E402 found there
from bench_adapters import installed, serving  # noqa: E402 a neighbour
from fib_apply import ApplyConfig, ApplyRuntime, enable_apply, set_apply_hook  # noqa: E402 found there
from fib_schema import BuildSpec, Definition, Solution, SourceFile, TraceSet  # noqa: E402 found there
from fib_tracer import TracingConfig, enable_tracing  # noqa: E402 found there
from flashinfer_stand_ins import behaviour  # noqa: E402 found there
from flashinfer_stand_ins.examples import EXAMPLES, decode_wrapper, passed  # noqa: E402 found there

CACHE_BYTES = 48 << 20
_PASSES = 7
_NORM, _DECODE = "rmsnorm_h8", "gqa_paged_decode_h4_kv2_d8_ps4"
_TRACED = (_NORM, "fused_add_rmsnorm_h8", _DECODE)
Calls = Mapping[str, Callable[[], Any]]


def _empty_stand_ins() -> None:
    """Replace the computations of the stand-ins by nothing."""
    result = torch.zeros(1)
    behaviour.rmsnorm = behaviour.fused_add_rmsnorm = lambda a: result
    behaviour.apply_rope_with_cos_sin_cache_inplace = lambda a: None
    behaviour.Paged.attend = lambda self, a: a["out"]


def _calls(fi: Any) -> Calls:
    """The calls of a step, as vLLM makes them."""
    x, w = torch.zeros(3, 8, dtype=torch.bfloat16), torch.zeros(8, dtype=torch.bfloat16)
    positions, angles = torch.zeros(3, dtype=torch.int64), torch.zeros(16, 4)
    heads = torch.zeros(3, 32, dtype=torch.bfloat16), torch.zeros(3, 16, dtype=torch.bfloat16)
    q = torch.zeros(3, 4, 8, dtype=torch.bfloat16)
    cache, out = tuple(torch.zeros(2, 8, 4, 2, 8, dtype=torch.bfloat16)), torch.zeros_like(q)
    wrapper, plan = decode_wrapper(fi, 4), {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
    indptr, last = torch.tensor([0, 1, 3, 4], dtype=torch.int32), torch.tensor([3, 2, 5], dtype=torch.int32)
    indices = torch.arange(4, dtype=torch.int32)
    return {
        "plan": lambda: wrapper.plan(indptr, indices, last, 4, 2, 8, 4, sm_scale=0.25, **plan),
        "run": lambda: wrapper.run(q, cache, k_scale=1.0, v_scale=1.0, out=out),
        "second run": lambda: wrapper.run(q, cache, k_scale=1.0, v_scale=1.0, out=out),
        "rope": lambda: fi.rope.apply_rope_with_cos_sin_cache_inplace(positions, *heads, 8, angles, True),
        "rmsnorm": lambda: fi.norm.rmsnorm(x, w, 1e-6),
        "fused_add": lambda: fi.norm.fused_add_rmsnorm(x, x, w, 1e-5),
    }


def _solution(definition: Definition, *, has_setup: bool) -> Solution:
    """A solution that computes nothing."""
    is_passing = len(definition.outputs) > 1
    names = ", ".join((*definition.inputs, *(definition.outputs if is_passing else ())))
    source = f"def run({names}):\n    return {'None' if is_passing else next(iter(definition.inputs))}\n"
    if has_setup:
        source += f"\n\ndef setup({', '.join(definition.inputs)}):\n    return {{}}\n"
    spec = BuildSpec("python", ["cpu"], "main.py::run", destination_passing_style=is_passing)
    return Solution(f"empty_{definition.name}", definition.name, "bench", spec, [SourceFile("main.py", source)])


@contextmanager
def _tracing(root: Path, definitions: Mapping[str, Definition]) -> Iterator[None]:
    """Tracing with full quotas."""
    fib_integrations.install_flashinfer_integrations()
    trace_set = TraceSet(root=root, definitions={name: definitions[name] for name in _TRACED})
    with enable_tracing(trace_set, TracingConfig(max_kept=1)):
        yield


def runtime_for(fi: Any, definitions: Mapping[str, Definition], *, is_recorded: bool) -> ApplyRuntime:
    """A runtime with solutions that are recorded at the sizes of the calls, or for other sizes."""
    seen: dict[str, Any] = {}
    fib_integrations.install_flashinfer_integrations()
    set_apply_hook(lambda name, inputs: seen.update({name: dict(inputs)}))
    for call in _calls(fi).values():
        call()
    set_apply_hook(None)
    traces, solutions = {}, {}
    for name in (_NORM, _DECODE):
        inputs = seen[name] if is_recorded else _twice(seen[name])
        solution = _solution(definitions[name], has_setup=name == _DECODE and not is_recorded)
        traces[name], solutions[name] = (passed(solution, definitions[name], inputs),), (solution,)
    found = TraceSet(None, {name: definitions[name] for name in solutions}, solutions, {}, traces)
    with enable_apply(found, ApplyConfig(require_speedup=False), stats=True) as runtime:
        pass
    return runtime


def _twice(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs of twice as many rows or requests."""
    return {
        name: torch.cat([value] * 2) if name in ("hidden_states", "q", "kv_indptr", "kv_last_page_len") else value
        for name, value in inputs.items()
    }


def _fill_caches(memory: torch.Tensor) -> None:
    memory.add_(1)
    json.loads(json.dumps({str(i): [i, {"a": str(i)}] for i in range(200)}))
    importlib.util.find_spec("json.tool")


def measure(rounds: int, folder: Path) -> dict[str, dict[str, float]]:
    """The microseconds added to each call, by state."""
    fi = importlib.import_module("flashinfer")
    _empty_stand_ins()
    definitions = {example.definition.name: example.definition for example in EXAMPLES}
    states: dict[str, Callable[[], Any]] = {
        "nothing enabled": installed,
        "traced": functools.partial(_tracing, folder, definitions),
        "hit": functools.partial(serving, runtime_for(fi, definitions, is_recorded=True)),
        "miss": functools.partial(serving, runtime_for(fi, definitions, is_recorded=False)),
    }
    memory = torch.zeros(CACHE_BYTES, dtype=torch.uint8)
    added: dict[str, dict[str, list[float]]] = {state: defaultdict(list) for state in states}
    for _ in range(_PASSES):
        fib_integrations.uninstall_flashinfer_integrations()
        plain = medians(_calls(fi), memory, rounds)
        for state, enter in states.items():
            with enter():
                found = medians(_calls(fi), memory, rounds)
            for name, time_us in found.items():
                added[state][name].append(time_us - plain[name])
    return {state: {name: statistics.median(times) for name, times in calls.items()} for state, calls in added.items()}


def medians(calls: Calls, memory: torch.Tensor, rounds: int) -> dict[str, float]:
    """The median of the microseconds of each call, with caches that hold other data, and `memory`."""
    times: dict[str, list[float]] = defaultdict(list)
    for number in range(-3, rounds):  # the first ones make handlers and compile
        for name, call in calls.items():
            _fill_caches(memory)
            begin = time.perf_counter_ns()
            call()
            taken = time.perf_counter_ns() - begin
            if number >= 0:
                times[name].append(taken / 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, str(flashinfer_stand_ins.write(Path(folder), flashinfer_stand_ins.VERSIONS[0])))
        found = measure(options.rounds, Path(folder) / "data")
    names = list(next(iter(found.values())))
    print(f"| added, us | {' | '.join(names)} | all |\n|{' --- |' * (len(names) + 2)}")
    for state, calls in found.items():
        print(f"| {state} | {' | '.join(f'{calls[name]:.1f}' for name in names)} | {sum(calls.values()):.1f} |")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
