"""Overhead of the provider ``fib`` in vLLM's IR ops, in microseconds, on the CPU with vLLM's own dispatch.

As in `bench_steps.py`, each call is timed alone, after other code and data have filled the processor's caches, and all
states take turns in one process. The provider after ``fib`` computes nothing. A result is the median of the differences
from calls without ``fib`` in vLLM's list; the last row has the times of these calls.

usage, where vLLM's module ``vllm.ir`` can be imported (it needs no GPU): python bench_vllm_provider.py [--rounds 80]
"""

from __future__ import annotations

import argparse
import importlib
import logging
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

SUPPORT = Path(__file__).parents[1] / "tests" / "support"
sys.path.insert(0, str(SUPPORT))

import fib_integrations  # noqa: E402 found there
import flashinfer_stand_ins  # noqa: E402 found there
from bench_adapters import installed, serving  # noqa: E402 a neighbour
from bench_steps import CACHE_BYTES, medians, runtime_for  # noqa: E402 a neighbour
from fib_integrations.vllm import PROVIDER, register  # noqa: E402 found there
from flashinfer_stand_ins.examples import EXAMPLES  # noqa: E402 found there

_NEXT, _PASSES = "empty", 5
_PLAIN = "without `fib`, the call itself"


def _ops() -> Any:
    """The IR ops, called as vLLM's eager mode calls them, with the provider and an empty one."""
    try:
        module, ops = importlib.import_module("vllm.ir.op"), importlib.import_module("vllm.ir.ops")
    except ImportError as error:
        sys.exit(f"vllm.ir cannot be imported ({error}): install vLLM, or put its folder on PYTHONPATH")
    vars(module)["_ENABLE_TORCH_WRAP"] = False
    tensor = torch.Tensor

    def rms_norm(x: Any, weight: Any, epsilon: float, variance_size: int | None = None) -> Any:
        return x

    def fused_add_rms_norm(
        x: Any, x_residual: Any, weight: Any, epsilon: float, variance_size: int | None = None
    ) -> Any:
        return x, x_residual

    common = {"x": tensor, "weight": tensor | None, "epsilon": float, "variance_size": int | None}
    rms_norm.__annotations__ = {**common, "return": tensor}
    fused_add_rms_norm.__annotations__ = {**common, "x_residual": tensor, "return": tuple[tensor, tensor]}

    def supports(x: Any, weight: Any, epsilon: float, variance_size: int | None = None) -> bool:
        return variance_size is None

    def supports_fused(x: Any, x_residual: Any, weight: Any, epsilon: float, variance_size: int | None = None) -> bool:
        return variance_size is None

    ops.rms_norm.register_impl(_NEXT, supports_args=supports)(rms_norm)
    ops.fused_add_rms_norm.register_impl(_NEXT, supports_args=supports_fused, inplace=True)(fused_add_rms_norm)
    return ops


@contextmanager
def _without() -> Iterator[None]:
    fib_integrations.uninstall_flashinfer_integrations()
    yield


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """The microseconds added to each call, by state, and those of a call without the provider."""
    fi, ops = importlib.import_module("flashinfer"), _ops()
    if problems := register(ops):
        sys.exit(f"this version of vLLM cannot be measured: {problems}")
    definitions = {example.definition.name: example.definition for example in EXAMPLES}
    runtime = runtime_for(fi, definitions, is_recorded=True)
    x, w, memory = torch.zeros(3, 8).bfloat16(), torch.zeros(8).bfloat16(), torch.zeros(CACHE_BYTES, dtype=torch.uint8)
    calls: dict[str, Callable[[], Any]] = {
        "rms_norm": lambda: ops.rms_norm(x, w, 1e-6),
        "fused_add_rms_norm": lambda: ops.fused_add_rms_norm.maybe_inplace(x, x, w, 1e-5),
    }
    states: dict[str, Callable[[], Any]] = {
        "uninstalled": _without, "nothing enabled": installed, "routed": lambda: serving(runtime)
    }  # fmt: skip
    added: dict[str, dict[str, list[float]]] = {state: defaultdict(list) for state in (*states, _PLAIN)}
    for _ in range(_PASSES):
        _set_providers(ops, _NEXT, "native")
        plain = medians(calls, memory, rounds)
        for name, time_us in plain.items():
            added[_PLAIN][name].append(time_us)
        _set_providers(ops, PROVIDER, _NEXT, "native")
        for state, enter in states.items():
            with enter():
                register(ops)
                for name, time_us in medians(calls, memory, rounds).items():
                    added[state][name].append(time_us - plain[name])
    return {state: {name: statistics.median(times) for name, times in found.items()} for state, found in added.items()}


def _set_providers(ops: Any, *names: str) -> None:
    for op in (ops.rms_norm, ops.fused_add_rms_norm):
        op.set_default(list(names))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=80)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, str(flashinfer_stand_ins.write(Path(folder), flashinfer_stand_ins.VERSIONS[0])))
        found = measure(options.rounds)
    print("| added, us | rms_norm | fused_add_rms_norm |\n| --- | --- | --- |")
    for state, calls in found.items():
        print(f"| {state} | {calls['rms_norm']:.1f} | {calls['fused_add_rms_norm']:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
