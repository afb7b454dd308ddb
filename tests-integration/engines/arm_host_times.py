"""Host time of single calls in an engine: plans and runs of attention, norms and rotary embeddings, as vLLM makes them.

In an arm with the plug-in, a call contains all that this adds to it, but no kernels: they run later.
"""

from __future__ import annotations

import functools
import importlib
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any

_DECODE = "flashinfer.decode", "BatchDecodeWithPagedKVCacheWrapper"
_PREFILL = "flashinfer.prefill", "BatchPrefillWithPagedKVCacheWrapper"
_PLAN = "vllm.v1.attention.backends.flashinfer", "fast_plan_decode"
_NORMS = ("rms_norm", "fused_add_rms_norm")
_ROPE = "vllm._custom_ops", "rotary_embedding"


def host_times(call: Callable[[], object], *, is_eager: bool) -> dict[str, list[int]]:
    """The nanoseconds of the calls that a function makes, by what is called.

    Args:
        call: The function.
        is_eager: Whether norms and embeddings are called; else they are compiled, and must stay as they are.
    """
    taken: dict[str, list[int]] = defaultdict(list)
    with ExitStack() as stack:
        for owner, attribute, name in _places(is_eager):
            stack.enter_context(_timed(owner, attribute, name, taken))
        call()
    return dict(taken)


def medians(turns: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, tuple[int, float]]:
    """The number of calls in a turn, and the median of the microseconds of all calls, by what is called."""
    names = sorted({name for turn in turns for name in turn})
    merged = {name: [time for turn in turns for time in turn.get(name, ())] for name in names}
    return {name: (round(len(times) / len(turns)), statistics.median(times) / 1e3) for name, times in merged.items()}


def _places(is_eager: bool) -> Iterator[tuple[Any, str, str | None]]:
    """Owner, attribute and name of each function; an op has its own name."""
    decode, prefill = (getattr(importlib.import_module(module), name) for module, name in (_DECODE, _PREFILL))
    yield importlib.import_module(_PLAN[0]), _PLAN[1], "decode plan"
    yield decode, "run", "decode run"
    yield prefill, "plan", "prefill plan"
    yield prefill, "run", "prefill run"
    if is_eager:
        ops = importlib.import_module("vllm.ir.ops")
        found = [getattr(ops, name) for name in _NORMS if hasattr(ops, name)]
        kinds = {type(one) for op in found for one in (op, getattr(op, "maybe_inplace", op))}
        yield from ((kind, "__call__", None) for kind in kinds if kind is not MethodType)
        if hasattr(module := importlib.import_module(_ROPE[0]), _ROPE[1]):
            yield module, _ROPE[1], "rotary embedding"


@contextmanager
def _timed(owner: Any, attribute: str, name: str | None, taken: dict[str, list[int]]) -> Iterator[None]:
    """Replace a function by one that notes its times."""
    original = getattr(owner, attribute)

    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter_ns()
        result = original(*args, **kwargs)
        taken[name or args[0].name].append(time.perf_counter_ns() - begin)
        return result

    setattr(owner, attribute, timed)
    try:
        yield
    finally:
        setattr(owner, attribute, original)
