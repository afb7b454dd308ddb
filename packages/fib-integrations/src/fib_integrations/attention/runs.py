"""Methods of attention wrappers that are patched, and the caches and outputs of their runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from ..adapter import Call, Conversion, Original, Plan, Target
from .plans import AttentionPlan
from .settings import NEUTRAL

_BUFFERS = "_fib_unwanted_lse"
"""The attribute of a wrapper with its buffers, by shape and device."""
_MAX_BUFFERS = 64


def plan_target(wrapper: str, convert: Callable[..., Any], hints: frozenset[str] = frozenset()) -> Plan:
    """The ``plan`` method of a wrapper class; `hints` are parameters that do not matter."""
    return Plan(path=f"{wrapper}.plan", convert=convert, ignored=hints, neutral=NEUTRAL)


def run_target(wrapper: str, convert: Callable[..., Conversion]) -> Call:
    """The ``run`` method of a wrapper class; `convert` has the parameters ``out``, ``lse`` and ``return_lse``."""
    return Call(
        path=f"{wrapper}.run",
        convert=convert,
        describe=lambda plan: plan.definition,
        finalize=finalize,
        shadow=_both_outputs,
        ignored=frozenset({"enable_pdl"}),
        uses_plan=True,
    )


def forward_targets(wrapper: str, convert: Callable[..., Conversion]) -> tuple[Call, Call]:
    """``forward`` and ``forward_return_lse`` of a wrapper class, which give the plan new settings and run it."""
    forward = Call(
        path=f"{wrapper}.forward",
        convert=convert,
        describe=lambda plan: plan.definition,
        finalize=finalize,
        shadow=_both_outputs_of_forward,
        uses_plan=True,
        changes_plan=True,
    )
    with_lse = functools.partial(convert, return_lse=True)
    return forward, attrs.evolve(forward, path=f"{wrapper}.forward_return_lse", convert=with_lse)


def targets(
    wrapper: str,
    *,
    plan: Callable[..., Any],
    run: Callable[..., Conversion],
    forward: Callable[..., Conversion],
    hints: frozenset[str],
) -> tuple[Target, ...]:
    """``plan``, ``run`` and the deprecated ``forward`` methods of a wrapper class."""
    return (plan_target(wrapper, plan, hints), run_target(wrapper, run), *forward_targets(wrapper, forward))


def paged_caches(cache: Any, layout: str) -> tuple[Any, Any]:
    """Views of the key and value caches in NHD order.

    Shapes:
        cache: Two of [pages, tokens, heads, elements], or one [pages, 2, tokens, heads, elements]; in
            the layout HND heads come before tokens.
    """
    k, v = cache if isinstance(cache, (tuple, list)) else (cache[:, 0], cache[:, 1])
    return (k, v) if layout == "NHD" else (k.transpose(1, 2), v.transpose(1, 2))


def is_scaled(*scales: Any) -> bool:
    """Whether a quantisation scale may have an effect: it is a tensor, or a number other than 1."""
    return any(scale is not None and not (type(scale) in (float, int) and scale == 1) for scale in scales)


def output_buffers(
    plan: AttentionPlan,
    query: torch.Tensor,
    out: Any,
    lse: Any,
    return_lse: bool,
    wrapper: Callable[[], Any] = lambda: None,
) -> tuple[Any, ...]:
    """Buffers for both outputs, also for a log-sum-exp that the caller does not want.

    Empty if the caller wants an output for which it gave no buffer. The query has the plan's number of rows. `wrapper`
    returns the plan's wrapper, which keeps the buffer; without one, each call gets memory of its own.
    """
    if out is None:
        return ()
    if return_lse:
        return () if lse is None else (out, lse)
    if plan.unwanted is not None and type(query) is torch.Tensor and not _is_captured(query):
        return out, plan.unwanted
    owner, shape = wrapper(), query.shape[:2]
    if owner is None or type(query) is not torch.Tensor or _is_captured(query):  # memory for a fake tensor is fake, too
        return out, torch.empty(shape, dtype=torch.float32, device=query.device)
    plan.unwanted = _kept_buffer(owner, shape, query.device)
    return out, plan.unwanted


def _is_captured(query: torch.Tensor) -> bool:
    """Whether a graph captures the call: it has a memory pool of its own."""
    return query.is_cuda and torch.cuda.is_current_stream_capturing()


def _kept_buffer(wrapper: Any, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """A tensor of float32 that a wrapper keeps for its next plans: allocation takes long with cold caches.

    See ``benchmarks/bench_steps.py``. A solution may read it again. Runs of one wrapper share FlashInfer's workspace,
    so that none may overlap another.
    """
    kept: dict[Any, torch.Tensor] = vars(wrapper).setdefault(_BUFFERS, {})
    found = kept.get((*shape, device))
    if found is None:
        if len(kept) >= _MAX_BUFFERS:
            kept.clear()
        with torch.inference_mode(mode=False):  # runs outside of inference mode cannot write to an inference tensor
            found = kept[*shape, device] = torch.empty(shape, dtype=torch.float32, device=device)
    return found


def finalize(result: Any, out: Any, lse: Any, return_lse: bool) -> Any:
    """The caller's result, from the definition's outputs or from buffers that were written (`result` is None)."""
    if out is None and lse is None:
        return tuple(result) if return_lse else result[0]
    if result is None:
        return (out, lse) if return_lse else out
    output, found = result
    if out is not None:
        output = _written("out", out, output)
    if not return_lse:
        return output
    return output, (found if lse is None else _written("lse", lse, found))


def _written(name: str, buffer: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """A caller's buffer with a result.

    Raises:
        ValueError: It has another shape or dtype; FlashInfer refuses it, too.
    """
    if buffer.shape != result.shape or buffer.dtype is not result.dtype:
        wanted, given = (f"{list(one.shape)} of {one.dtype}" for one in (result, buffer))
        raise ValueError(f"{name}: {wanted} is needed, got {given}")
    return buffer.copy_(result)


def _both_outputs(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[Any]) -> Any:
    """Call a wrapper's ``run`` with ``return_lse=True``, whatever the caller gave."""
    bound = inspect.signature(original).bind(*args, **kwargs)
    bound.arguments["return_lse"] = True
    if isinstance(values[-1], torch.Tensor):
        bound.arguments["lse"] = values[-1]
    return original(*bound.args, **bound.kwargs)


def _both_outputs_of_forward(
    original: Original, args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[Any]
) -> Any:
    """Call a wrapper's ``forward_return_lse``."""
    del original, values
    return args[0].forward_return_lse(*args[1:], **kwargs)
