"""Shared parts of the attention adapters: targets, plans, cache layouts, output buffers, baselines."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import attrs
import torch
from fib_schema import Definition

from .adapter import Call, Conversion, DefinitionRef, Original, Plan, Target

OUTPUTS = ("output", "lse")
DECODE_HINTS = frozenset({"non_blocking", "fixed_split_size", "disable_split_kv", "rope_scale", "rope_theta"})
"""Parameters of ``plan`` that have no effect on the result without a positional encoding."""
PREFILL_HINTS = DECODE_HINTS | {"max_token_per_sequence", "max_sequence_kv", "uniform_q_len"}
"""Likewise."""
NEUTRAL: Mapping[str, Any] = MappingProxyType(
    {"block_tables": None, "seq_lens": None, "q_len_per_req": 1, "window_right": 0, "is_causal": None}
)
"""Defaults of keywords that FlashInfer 0.7.2's ``plan`` of decode takes as ``**kwargs``; vLLM passes the first two."""
_NO_BUFFERS: Mapping[str, torch.Tensor] = MappingProxyType({})
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
    """The state that all runs of a wrapper share until its next plan; also the key of their handlers."""

    definition: DefinitionRef
    rows: int
    """The number of query rows. More rows are padding by the engine, which no definition describes."""
    inputs: tuple[Any, ...]
    """The definition's inputs after the caches."""
    layout: str = "NHD"
    keys: int | None = None
    """The number of rows of keys and values, unless these are paged."""
    is_routable: bool = True
    """False if a CUDA graph may replay the runs after a later plan."""
    buffers: Mapping[str, torch.Tensor] = attrs.field(factory=dict)
    """Of such runs, the whole buffers of the inputs that may be padded; see `Plan.convert`."""
    lse_buffers: list[torch.Tensor] = attrs.field(factory=list)
    """A buffer for a log-sum-exp that the caller does not want, kept because allocating one costs 2 us."""


class DecodeSettings(NamedTuple):
    """Settings that ``plan`` and ``forward`` give a wrapper's runs, named as the wrapper's attributes."""

    pos_encoding_mode: str = "NONE"
    window_left: int = -1
    logits_soft_cap: float | None = None
    sm_scale: float | None = None
    rope_scale: float | None = None
    rope_theta: float | None = None

    @property
    def is_causal(self) -> bool:
        """A decoded token is the last one and attends to all tokens."""
        return True


class PrefillSettings(NamedTuple):
    """Likewise, of a prefill wrapper."""

    causal: bool = False
    pos_encoding_mode: str = "NONE"
    use_fp16_qk_reduction: bool = False
    window_left: int = -1
    logits_soft_cap: float | None = None
    sm_scale: float | None = None
    rope_scale: float | None = None
    rope_theta: float | None = None

    @property
    def is_causal(self) -> bool:
        """Whether a token attends to those before it only."""
        return self.causal


Settings: TypeAlias = DecodeSettings | PrefillSettings


class WrapperPlan:
    """The plan of a wrapper, with the settings of its next runs, which ``forward`` replaces.

    Args:
        wrapper: Has been planned; it is not kept alive.
        plan: Without the scale, which is the last input.
        head_dim: Elements of a query, which determine the default scale.
        settings: Those of ``plan``.
    """

    def __init__(self, wrapper: Any, plan: AttentionPlan, head_dim: int, settings: Settings) -> None:
        self.is_routable, self.buffers = plan.is_routable, plan.buffers
        self._wrapper: Callable[[], Any] = weakref.ref(wrapper)
        self._plan, self._head_dim, self._settings = plan, head_dim, settings
        self._known: dict[Settings, AttentionPlan | str] = {}
        self.current = self._plan_of(settings)
        """The plan of a run, or the reason why it is unsupported."""

    def detached(self) -> WrapperPlan:
        """A copy that does not change the wrapper."""
        copied = copy.copy(self)
        copied._wrapper = _no_wrapper  # noqa: SLF001 of the same class
        return copied

    def with_indices(self, total: int) -> WrapperPlan:
        """The plan of a wrapper for CUDA graphs, for another number of page numbers in its buffer."""
        names = self._plan.definition.inputs[3:]  # after the queries and caches
        inputs = dict(zip(names, self._plan.inputs, strict=False))
        if len(inputs["kv_indices"]) == total:
            return self
        inputs["kv_indices"] = self.buffers["kv_indices"][:total]
        plan = attrs.evolve(self._plan, inputs=tuple(inputs.values()))
        return WrapperPlan(self._wrapper(), plan, self._head_dim, self._settings)

    def use(self, settings: Settings) -> None:
        """Give the next runs, and the wrapper, the settings of a ``forward``."""
        if type(settings.sm_scale) not in _SCALES:
            self.current = "its softmax scale is no number"
            return
        if settings == self._settings and type(self.current) is AttentionPlan:
            return
        self.current = "its settings could not be read"  # unless all that follows succeeds
        wrapper = self._wrapper()
        if wrapper is not None:
            for name, value in settings._asdict().items():
                setattr(wrapper, f"_{name}", value)
        self.current, self._settings = self._plan_of(settings), settings

    def _plan_of(self, settings: Settings) -> AttentionPlan | str:
        if settings not in self._known:
            if len(self._known) >= _MAX_SETTINGS:
                self._known.clear()
            self._known[settings] = unsupported_settings(settings) or self._with_scale(settings.sm_scale)
        return self._known[settings]

    def _with_scale(self, sm_scale: float | None) -> AttentionPlan:
        return attrs.evolve(self._plan, inputs=(*self._plan.inputs, softmax_scale(sm_scale, self._head_dim)))


_SCALES = frozenset({float, int, type(None)})
_MAX_SETTINGS = 64
"""Settings of one plan that are remembered; layers with scales of their own alternate between as many."""


def _no_wrapper() -> None:
    return None


def unsupported_settings(settings: Settings) -> str | None:
    """Reason that no definition describes runs with these settings; None if one may."""
    if not settings.is_causal:
        return "it is not causal"
    if settings.pos_encoding_mode != "NONE":
        return f"a positional encoding is applied inside ({settings.pos_encoding_mode})"
    if settings.window_left >= 0:
        return "it has a sliding window"
    if settings.logits_soft_cap:
        return "it has a logits soft cap"
    return "it sums products in float16" if getattr(settings, "use_fp16_qk_reduction", False) else None


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
        shadow=both_outputs,
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


def unsupported_plan(
    wrapper: Any, dtypes: tuple[Any, Any, Any], layouts: tuple[str | None, ...] = ("NHD", "HND")
) -> str | None:
    """Reason that no definition describes the runs of a plan, whatever their settings; None if one may.

    The dtypes are those of queries, of keys and values, and of the output; None stands for that of the queries.
    """
    if getattr(wrapper, "_jit_module", None) is not None:
        return "the wrapper has a custom kernel (jit_args)"
    if getattr(wrapper, "_kv_layout", None) not in layouts:
        return "the wrapper's KV-cache layout is unknown"
    query, *others = (None if dtype is None else str(dtype).removeprefix("torch.") for dtype in dtypes)
    for name, dtype in zip(("keys and values", "the output"), others, strict=True):
        if dtype not in (None, query):
            return f"the dtype of {name} ({dtype}) differs from that of queries ({query})"
    return None


def make_plan(
    wrapper: Any,
    name: str,
    names: str,
    rows: int,
    inputs: Sequence[Any],
    keys: int | None = None,
    buffers: Mapping[str, torch.Tensor] = _NO_BUFFERS,
) -> AttentionPlan:
    """The plan of a wrapper's next runs; `name` is that of the definition, `names` those of its inputs."""
    return AttentionPlan(
        DefinitionRef(name, tuple(names.split()), OUTPUTS),
        rows,
        tuple(inputs),
        layout=getattr(wrapper, "_kv_layout", None) or "NHD",
        keys=keys,
        is_routable=not is_replayed(wrapper),
        buffers=buffers,
    )


def is_replayed(wrapper: Any) -> bool:
    """Whether a CUDA graph may replay a wrapper's runs after later plans."""
    return bool(getattr(wrapper, "_use_cuda_graph", False))


def on_device(wrapper: Any, tensor: torch.Tensor, buffer: str) -> torch.Tensor:
    """An index tensor of a plan, on the wrapper's device; for CUDA graphs, the buffer that the kernels read.

    Args:
        wrapper: Has been planned.
        tensor: The argument of ``plan``.
        buffer: The wrapper's attribute for it.
    """
    kept = getattr(wrapper, buffer, None)
    if is_replayed(wrapper) and isinstance(kept, torch.Tensor):
        return kept[: len(tensor)]
    device = getattr(wrapper, "device", None)
    return tensor if device is None or tensor.device == device else tensor.to(device, non_blocking=True)


def page_buffers(wrapper: Any, indices: str, others: Iterable[str]) -> dict[str, torch.Tensor]:
    """The whole buffer of page numbers that all runs of a wrapper for CUDA graphs read; empty for other wrappers.

    Args:
        wrapper: Has been planned.
        indices: The attribute of the buffer.
        others: The attributes of the buffers of all other inputs that a plan writes to.
    """
    buffer = getattr(wrapper, indices, None)
    has_others = all(isinstance(getattr(wrapper, name, None), torch.Tensor) for name in others)
    return {"kv_indices": buffer} if is_replayed(wrapper) and has_others and isinstance(buffer, torch.Tensor) else {}


def last_value(tensor: torch.Tensor) -> int:
    """The total in an offsets tensor. On a device this synchronises, as FlashInfer's plan has just done."""
    return int(tensor[-1])


def softmax_scale(sm_scale: float | None, head_dim: int) -> float:
    """The softmax scale; by default, FlashInfer's."""
    return 1.0 / math.sqrt(head_dim) if sm_scale is None else float(sm_scale)


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


def output_buffers(plan: AttentionPlan, query: torch.Tensor, out: Any, lse: Any, return_lse: bool) -> tuple[Any, ...]:
    """Buffers for both outputs; a log-sum-exp that the caller does not want goes to a buffer of ours.

    Empty if the caller wants an output for which it gave no buffer.
    """
    if out is None:
        return ()
    if return_lse:
        return () if lse is None else (out, lse)
    if query.is_cuda and torch.cuda.is_current_stream_capturing():  # a graph has its own memory pool
        return (out, torch.empty(query.shape[:2], dtype=torch.float32, device=query.device))
    if not plan.lse_buffers:
        with torch.inference_mode(mode=False):  # runs outside of inference mode cannot write to an inference tensor
            plan.lse_buffers.append(torch.empty(query.shape[:2], dtype=torch.float32, device=query.device))
    return (out, plan.lse_buffers[0])


def finalize(result: Any, out: Any, lse: Any, return_lse: bool) -> Any:
    """The caller's result, from the definition's outputs or from buffers that were written (`result` is None)."""
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


def baseline(definition: Definition, wrapper: str, *, plan: Sequence[str], run: str, workspace_mib: int) -> str:
    """The source of a solution whose ``setup`` plans and whose ``run`` writes to both outputs.

    Args:
        definition: What it computes.
        wrapper: The path of the wrapper class.
        plan: Arguments of ``plan`` other than the scale and dtypes, in terms of the definition's inputs.
        run: Arguments of ``run`` other than the outputs.
        workspace_mib: The size of the workspace buffer.
    """
    keys = "k_cache" if "k_cache" in definition.inputs else "k"
    arguments = (*plan, "q_data_type=q.dtype", f"kv_data_type={keys}.dtype")
    return _BASELINE.format(
        module=wrapper.rpartition(".")[0],
        wrapper=wrapper,
        workspace_mib=workspace_mib,
        inputs=", ".join(definition.inputs),
        plan="\n".join(f"        {argument}," for argument in arguments),
        run=run,
    )
