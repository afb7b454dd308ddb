"""What the adapters of attention wrappers share: targets, plans, caches by layout, buffers, baselines."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from fib_schema import Definition

from .adapter import Call, Described, Original, Plan, Reading, Target, Unplan

OUTPUTS = ("output", "lse")
DECODE_HINTS = frozenset({"non_blocking", "fixed_split_size", "disable_split_kv", "rope_scale", "rope_theta"})
"""Parameters of ``plan`` that change nothing where positions are not encoded inside."""
PREFILL_HINTS = DECODE_HINTS | {"max_token_per_sequence", "max_sequence_kv", "uniform_q_len"}
"""Likewise."""
_BASELINE = """\
import {module}
import torch

_WORKSPACE_BYTES = {workspace_mib} * 1024 * 1024


def setup({inputs}):
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
    wrapper = {wrapper}(workspace, "NHD")
    wrapper.plan(
{plan}
        sm_scale=float(sm_scale),
    )
    return {{"wrapper": wrapper}}


def run({inputs}, output, lse, *, wrapper):
    wrapper.run({run}, out=output, lse=lse, return_lse=True)
"""


@attrs.frozen(eq=False)
class AttentionPlan:
    """What runs of one wrapper have in common until it is planned anew; it is their key, for routes go with it."""

    described: Described
    rows: int
    """How many rows queries must have; others are padded by the engine, and no definition describes that."""
    tail: tuple[Any, ...]
    """The inputs behind the caches."""
    layout: str = "NHD"
    keys: int | None = None
    """Likewise how many rows keys and values must have, where these are not paged."""
    is_routable: bool = True
    """False where a CUDA graph may replay its runs after another plan: they are seen, and not routed."""
    scratch: list[torch.Tensor] = attrs.field(factory=list)
    """A log-sum-exp that nobody wants to see, kept for the next run: making one costs 2 us."""


def described(name: str, inputs: str) -> Described:
    """An attention definition."""
    return Described(name, tuple(inputs.split()), OUTPUTS)


def describe(plan: AttentionPlan) -> Described:
    """The definition of a plan's runs."""
    return plan.described


def targets(
    wrapper: str,
    *,
    plan: Callable[..., Any],
    run: Callable[..., Reading],
    hints: frozenset[str],
) -> tuple[Target, ...]:
    """The methods of a wrapper's class: what plans, what computes, and the older ones that plan anew by themselves.

    Args:
        wrapper: The path of the class.
        plan: Reads calls of ``plan``; see `Plan`.
        run: Reads calls of ``run``, with the parameters that `given` takes among others.
        hints: Parameters of ``plan`` that do not matter.
    """
    return (
        Plan(path=f"{wrapper}.plan", read=plan, ignored=hints),
        Call(
            path=f"{wrapper}.run",
            read=run,
            describe=describe,
            give=given,
            shadow=both_outputs,
            ignored=frozenset({"enable_pdl"}),
            reads_plan=True,
        ),
        Unplan(path=f"{wrapper}.forward"),
        Unplan(path=f"{wrapper}.forward_return_lse"),
    )


def why_not_plain(
    *, pos_encoding_mode: str = "NONE", window_left: int = -1, logits_soft_cap: float | None = None
) -> str | None:
    """Why no definition describes attention of a kind; None if one may."""
    if pos_encoding_mode != "NONE":
        return f"positions are encoded inside ({pos_encoding_mode})"
    if window_left >= 0:
        return "it has a sliding window"
    return "logits are capped" if logits_soft_cap else None


def why_not_wrapper(wrapper: Any, *, has_layout: bool = True) -> str | None:
    """Why no definition describes what a wrapper computes; None if one may."""
    if getattr(wrapper, "_jit_module", None) is not None:
        return "the wrapper has a kernel of its own (jit_args)"
    if has_layout and getattr(wrapper, "_kv_layout", None) not in ("NHD", "HND"):
        return "the layout of the wrapper's cache is unknown"
    return None


def why_not_dtypes(q_data_type: Any, kv_data_type: Any, o_data_type: Any) -> str | None:
    """Why no definition describes a mixture of types; None if they are one."""
    if kv_data_type is not None and _name(kv_data_type) != _name(q_data_type):
        return "keys and values have another type than queries"
    if o_data_type is not None and _name(o_data_type) != _name(q_data_type):
        return "the output has another type than queries"
    return None


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def is_replayed(wrapper: Any) -> bool:
    """Whether a CUDA graph may replay a wrapper's runs after later plans."""
    return bool(getattr(wrapper, "_use_cuda_graph", False))


def on_device(wrapper: Any, tensor: torch.Tensor, buffer: str) -> torch.Tensor:
    """A tensor that was planned with, where the wrapper computes; of a replayed one, what its kernels read.

    Args:
        wrapper: Has been planned.
        tensor: What its ``plan`` was given.
        buffer: The wrapper's attribute for it.
    """
    kept = getattr(wrapper, buffer, None)
    if is_replayed(wrapper) and isinstance(kept, torch.Tensor):
        return kept[: len(tensor)]
    device = getattr(wrapper, "device", None)
    return tensor if device is None or tensor.device == device else tensor.to(device, non_blocking=True)


def last_value(tensor: torch.Tensor) -> int:
    """The last of cumulative counts. Where they are on a device this waits for it, as the plan before has done."""
    return int(tensor[-1])


def scale_of(sm_scale: float | None, head_dim: int) -> float:
    """The softmax scale; by default, FlashInfer's."""
    return 1.0 / math.sqrt(head_dim) if sm_scale is None else float(sm_scale)


def paged_caches(cache: Any, layout: str) -> tuple[Any, Any]:
    """Keys and values by page, token, head and element: views, whatever form the cache has.

    Shapes:
        cache: Two of [pages, tokens, heads, elements], or one [pages, 2, tokens, heads, elements]; in
            the layout HND heads come before tokens.
    """
    k, v = cache if isinstance(cache, (tuple, list)) else (cache[:, 0], cache[:, 1])
    return (k, v) if layout == "NHD" else (k.transpose(1, 2), v.transpose(1, 2))


def is_scaled(*scales: Any) -> bool:
    """Whether a quantisation scale does anything; one in a tensor may."""
    return any(scale is not None and not (type(scale) in (float, int) and scale == 1) for scale in scales)


def buffers(plan: AttentionPlan, query: torch.Tensor, out: Any, lse: Any, return_lse: bool) -> tuple[Any, ...]:
    """Both outputs where a solution can write them at once: the caller's, and one that nobody wants to see.

    Nothing where the caller wants a log-sum-exp and gave no buffer for it.
    """
    if return_lse:
        return () if lse is None else (out, lse)
    if query.is_cuda and torch.cuda.is_current_stream_capturing():  # a graph has memory of its own
        return (out, torch.empty(query.shape[:2], dtype=torch.float32, device=query.device))
    scratch = plan.scratch
    if not scratch:
        with torch.inference_mode(mode=False):  # a later run outside of it could not write to what was made inside
            scratch[:] = [torch.empty(query.shape[:2], dtype=torch.float32, device=query.device)]
    return (out, scratch[0])


def given(result: Any, out: Any, lse: Any, return_lse: bool) -> Any:
    """What a wrapper's caller gets of the definition's outputs; None were written already."""
    if out is None and lse is None:
        return tuple(result) if return_lse else result[0]
    if result is None:
        return (out, lse) if return_lse else out
    output, found = result
    if out is not None:
        output = out.copy_(output)
    if not return_lse:
        return output
    return output, (found if lse is None else lse.copy_(found))


def both_outputs(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[Any]) -> Any:
    """Call a wrapper's ``run`` so that it gives both outputs, whatever the caller wants."""
    bound = inspect.signature(original).bind(*args, **kwargs)
    bound.arguments["return_lse"] = True
    if isinstance(values[-1], torch.Tensor):
        bound.arguments["lse"] = values[-1]
    return original(*bound.args, **bound.kwargs)


def baseline(definition: Definition, wrapper: str, *, plan: Sequence[str], run: str, workspace_mib: int) -> str:
    """The source of a solution whose ``setup`` plans and whose ``run`` writes to both outputs.

    Args:
        definition: What it computes.
        wrapper: The path of the class that does.
        plan: The arguments of its ``plan`` but the scale, in terms of the definition's inputs.
        run: The arguments of its ``run`` but the outputs.
        workspace_mib: The size of the buffer that it is made with.
    """
    return _BASELINE.format(
        module=wrapper.rpartition(".")[0],
        wrapper=wrapper,
        workspace_mib=workspace_mib,
        inputs=", ".join(definition.inputs),
        plan="\n".join(f"        {argument}," for argument in plan),
        run=run,
    )
