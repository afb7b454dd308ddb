"""Attention adapters, shared: settings and plans of wrappers, patched methods, outputs, and sources of baselines.

A `WrapperPlan` holds the inputs that all runs of a wrapper share until its next plan. `targets` are the methods that
are patched. `baseline_source` makes solutions that call the engine's own kernels.
"""

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

DECODE_HINTS = frozenset({"non_blocking", "fixed_split_size", "disable_split_kv", "rope_scale", "rope_theta"})
"""Parameters of ``plan`` that have no effect on the result without a positional encoding."""
PREFILL_HINTS = DECODE_HINTS | {"max_token_per_sequence", "max_sequence_kv", "uniform_q_len"}
"""The same of a prefill wrapper."""
NEUTRAL: Mapping[str, Any] = MappingProxyType(
    {"block_tables": None, "seq_lens": None, "q_len_per_req": 1, "window_right": 0, "is_causal": None}
)
"""Defaults of keywords that FlashInfer 0.7.2's ``plan`` of decode takes as ``**kwargs``; vLLM passes the first two."""


class Settings(NamedTuple):
    """Settings that ``plan`` and ``forward`` give a wrapper's runs, named as the wrapper's attributes.

    A wrapper for decode has neither of the first and the third: a decoded token attends to all tokens.
    """

    causal: bool = True
    pos_encoding_mode: str = "NONE"
    use_fp16_qk_reduction: bool = False
    window_left: int = -1
    logits_soft_cap: float | None = None
    sm_scale: float | None = None
    rope_scale: float | None = None
    rope_theta: float | None = None


def unsupported_settings(settings: Settings) -> str | None:
    """Reason that no definition describes runs with these settings; None if one may."""
    if not settings.causal:
        return "it is not causal"
    if settings.pos_encoding_mode != "NONE":
        return f"a positional encoding is applied inside ({settings.pos_encoding_mode})"
    if settings.window_left >= 0:
        return "it has a sliding window"
    if settings.logits_soft_cap:
        return "it has a logits soft cap"
    return "it sums products in float16" if settings.use_fp16_qk_reduction else None


def compiled_problem(planned: Settings) -> str | None:
    """Reason that no definition describes any run of a plan with these settings, whatever a run changes.

    FlashInfer compiles them into the kernels when it plans. None if one may.
    """
    if planned.pos_encoding_mode != "NONE":
        return f"it was planned with a positional encoding ({planned.pos_encoding_mode})"
    if planned.logits_soft_cap:
        return "it was planned with a logits soft cap"
    return "it was planned with sums in float16" if planned.use_fp16_qk_reduction else None


def softmax_scale(sm_scale: float | None, head_dim: int) -> float:
    """The softmax scale; by default, FlashInfer's."""
    return 1.0 / math.sqrt(head_dim) if sm_scale is None else float(sm_scale)


_CUSTOM_KERNEL = "the wrapper has a custom kernel (jit_args)"
_OUTPUTS = ("output", "lse")
NO_BUFFERS: Mapping[str, torch.Tensor] = MappingProxyType({})
_SCALES = frozenset({float, int, type(None)})
_FEW = 256
_MAX_SETTINGS = 64
"""Settings of one plan that are remembered; layers with scales of their own alternate between as many."""


@attrs.frozen(eq=False)
class PlanKind:
    """The part that all plans with the same model and settings share; engines plan at each step."""

    definition: DefinitionRef
    layout: str
    head_dim: int
    settings: Settings
    problem: str | None
    """The reason why runs with these settings are unsupported."""
    sm_scale: float
    """The softmax scale: the last input."""


@attrs.define(eq=False)  # not frozen: one is made at each step of an engine
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
    buffers: Mapping[str, torch.Tensor] = NO_BUFFERS
    """Of such runs, the whole buffers of the inputs that may be padded; see `Plan.convert`."""
    unwanted: torch.Tensor | None = None
    """A buffer for a log-sum-exp that the caller does not want."""


class WrapperPlan:
    """The plan of a wrapper, with the settings of its next runs, which ``forward`` replaces."""

    __slots__ = ("_kind", "_known", "_plan", "_settings", "buffers", "current", "is_routable", "sizes", "wrapper")

    def __init__(self, wrapper: Any, plan: AttentionPlan, kind: PlanKind, sizes: tuple[int, ...]) -> None:
        self.is_routable, self.buffers = plan.is_routable, plan.buffers
        self.sizes = kind, plan.is_routable, sizes
        self.wrapper: Callable[[], Any] = weakref.ref(wrapper)
        """Returns the wrapper, or None if it is gone."""
        self._plan, self._kind = plan, kind
        self._settings = kind.settings
        self._known: dict[Settings, AttentionPlan | str] | None = None
        self.current: AttentionPlan | str = kind.problem or plan
        """The plan of a run, or the reason why it is unsupported."""

    def detached(self) -> WrapperPlan:
        """A copy that does not change the wrapper."""
        copied = copy.copy(self)
        copied.wrapper = lambda: None
        return copied

    def with_indices(self, total: int) -> WrapperPlan:
        """The plan of a wrapper for CUDA graphs, for another number of page numbers in its buffer."""
        names = self._plan.definition.inputs[3:]  # after the queries and caches
        inputs = dict(zip(names, self._plan.inputs, strict=True))
        if len(inputs["kv_indices"]) == total:
            return self
        inputs["kv_indices"] = self.buffers["kv_indices"][:total]
        plan = attrs.evolve(self._plan, inputs=tuple(inputs.values()))
        return WrapperPlan(self.wrapper(), plan, self._kind, (plan.rows, total))

    def use(self, settings: Settings) -> None:
        """Give the next runs, and the wrapper, the settings of a ``forward``."""
        if type(settings.sm_scale) not in _SCALES:
            self.current = "its softmax scale is not a number"
            return
        wrapper = self.wrapper()
        if wrapper is not None and _has_own_run(wrapper):  # the original calls it
            self.current = "its class or object has a `run` of its own"
            return
        if settings == self._settings and type(self.current) is AttentionPlan:
            return
        if self._known is None:
            self._known = {self._kind.settings: self._kind.problem or self._plan}
        self.current = "its settings could not be read"  # unless all that follows succeeds
        if wrapper is not None:
            for name, value in settings._asdict().items():
                if hasattr(wrapper, f"_{name}"):
                    setattr(wrapper, f"_{name}", value)
        self.current, self._settings = self._plan_of(settings, self._known), settings

    def _plan_of(self, settings: Settings, known: dict[Settings, AttentionPlan | str]) -> AttentionPlan | str:
        if settings not in known:
            if len(known) >= _MAX_SETTINGS:
                known.clear()
            problem = compiled_problem(self._kind.settings) or unsupported_settings(settings)
            known[settings] = problem or self._with_scale(settings.sm_scale)
        return known[settings]

    def _with_scale(self, sm_scale: float | None) -> AttentionPlan:
        plan, scale = self._plan, softmax_scale(sm_scale, self._kind.head_dim)
        inputs, others = (*plan.inputs[:-1], scale), (plan.layout, plan.keys, plan.is_routable, plan.buffers)
        return AttentionPlan(plan.definition, plan.rows, inputs, *others)  # faster than `attrs.evolve`


def _has_own_run(wrapper: Any) -> bool:
    return "run" in vars(wrapper) or not hasattr(type(wrapper).run, "__fib_patched__")


_Dtypes: TypeAlias = tuple[Any, Any, Any]
"""Of queries, of keys and values, and of the output; None stands for that of the queries."""


def unsupported_plan(wrapper: Any, dtypes: _Dtypes, layouts: tuple[str | None, ...]) -> str | None:
    """Reason that no definition describes the runs of a plan, whatever their settings; None if one may."""
    if getattr(wrapper, "_jit_module", None) is not None:
        return _CUSTOM_KERNEL
    return _unsupported_kind(getattr(wrapper, "_kv_layout", None), dtypes, layouts)


def _unsupported_kind(layout: Any, dtypes: _Dtypes, layouts: tuple[str | None, ...]) -> str | None:
    if layout not in layouts:
        return "the wrapper's KV-cache layout is unknown"
    query, *others = (None if dtype is None else str(dtype).removeprefix("torch.") for dtype in dtypes)
    for name, dtype in zip(("keys and values", "the output"), others, strict=True):
        if dtype not in (None, query):
            return f"the dtype of {name} ({dtype}) differs from that of queries ({query})"
    return None


def make_kind(name: str, names: str, layout: str, head_dim: int, settings: Settings) -> PlanKind:
    """The kind of plans of a definition; `name` is its name, `names` those of its inputs."""
    problem, scale = unsupported_settings(settings), softmax_scale(settings.sm_scale, head_dim)
    return PlanKind(_definition(name, names), layout, head_dim, settings, problem, scale)


def cached_kind(make: Callable[[str, Any, Settings], PlanKind | str]) -> Callable[..., PlanKind | str]:
    """Call a function once for each kind of plans.

    It takes the layout of the cache, sizes and settings. It is not called for an unknown layout or mixed dtypes, nor
    for a wrapper with a custom kernel.

    Returns:
        A function that takes the wrapper, a tuple of the dtypes (see `unsupported_plan`), sizes and settings. It
        returns the kind, or the reason why its runs are unsupported.
    """

    def known(layout: Any, dtypes: _Dtypes, sizes: tuple[int, ...], settings: Settings) -> PlanKind | str:
        return _unsupported_kind(layout, dtypes, ("NHD", "HND")) or make(layout, sizes, settings)

    cached = functools.lru_cache(maxsize=256)(known)

    def kind(wrapper: Any, dtypes: _Dtypes, sizes: tuple[int, ...], settings: Settings) -> PlanKind | str:
        if getattr(wrapper, "_jit_module", None) is not None:
            return _CUSTOM_KERNEL
        # the value of a tensor may change
        is_plain = type(settings.sm_scale) in _SCALES and type(settings.logits_soft_cap) in _SCALES
        return (cached if is_plain else known)(getattr(wrapper, "_kv_layout", None), dtypes, sizes, settings)

    return kind


def make_plan(wrapper: Any, name: str, names: str, rows: int, inputs: Sequence[Any]) -> AttentionPlan:
    """The plan of a wrapper's next runs; `name` is that of the definition, `names` those of its inputs."""
    layout = getattr(wrapper, "_kv_layout", None) or "NHD"
    return AttentionPlan(_definition(name, names), rows, tuple(inputs), layout, None, not is_replayed(wrapper))


@functools.lru_cache(maxsize=256)
def _definition(name: str, names: str) -> DefinitionRef:
    """The definition with these inputs."""
    return DefinitionRef(name, tuple(names.split()), _OUTPUTS)


def is_replayed(wrapper: Any) -> bool:
    """Whether a CUDA graph may replay a wrapper's runs after later plans."""
    return bool(getattr(wrapper, "_use_cuda_graph", False))


def on_device(
    wrapper: Any, tensors: Iterable[torch.Tensor], buffers: Iterable[str], *, replayed: bool
) -> list[torch.Tensor]:
    """Index tensors of a plan, on the wrapper's device: what the wrapper's kernels read, if it keeps that."""
    device, found = getattr(wrapper, "device", None), []
    for tensor, buffer in zip(tensors, buffers, strict=False):
        kept = getattr(wrapper, buffer, None)
        if replayed and isinstance(kept, torch.Tensor):
            found.append(kept[: tensor.shape[0]])
        elif device is None or tensor.device == device:
            found.append(tensor)
        elif isinstance(kept, torch.Tensor) and kept.device == device and kept.shape == tensor.shape:
            found.append(kept)  # the copy that `plan` has made
        else:
            found.append(tensor.to(device, non_blocking=True))
    return found


def page_buffers(wrapper: Any, indices: str, others: Iterable[str]) -> Mapping[str, torch.Tensor]:
    """The whole buffer of page numbers that all runs of a wrapper for CUDA graphs read; empty if it has none."""
    buffer = getattr(wrapper, indices, None)
    has_others = all(isinstance(getattr(wrapper, name, None), torch.Tensor) for name in others)
    return {"kv_indices": buffer} if has_others and isinstance(buffer, torch.Tensor) else NO_BUFFERS


def last_value(tensor: torch.Tensor) -> int:
    """The total in an offsets tensor. On a device this synchronises, as FlashInfer's plan has just done."""
    if tensor.is_cpu and tensor.shape[0] <= _FEW:  # indexing costs more
        return int(tensor.tolist()[-1])
    return int(tensor[-1])


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
    forward = attrs.evolve(
        run_target(wrapper, convert),
        path=f"{wrapper}.forward",
        shadow=_both_outputs_of_forward,
        ignored=frozenset(),
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
    """A caller's buffer with a result; `ValueError` if its shape or dtype differs, which FlashInfer refuses, too."""
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


_BASELINE = """\
import {module}
import torch

_WORKSPACE_BYTES = {workspace_mib} * 1024 * 1024


def setup({inputs}):
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
    wrapper = {wrapper}({arguments})
    wrapper.plan(
{plan}
        sm_scale=float(sm_scale),
    )
    return {{"wrapper": wrapper}}


def run({inputs}, output, lse, *, wrapper):
    wrapper.run({run}, out=output, lse=lse, return_lse=True)
"""


def baseline_source(
    definition: Definition,
    wrapper: str,
    *,
    plan: Sequence[str],
    run: str,
    workspace_mib: int,
    settings: Sequence[str] = (),
) -> str:
    """The source of a solution whose ``setup`` plans and whose ``run`` writes to both outputs."""
    keys = "k_cache" if "k_cache" in definition.inputs else "k"
    planned = (*plan, "q_data_type=q.dtype", f"kv_data_type={keys}.dtype")
    return _BASELINE.format(
        module=wrapper.rpartition(".")[0],
        wrapper=wrapper,
        arguments=", ".join(("workspace", '"NHD"', *settings)),
        workspace_mib=workspace_mib,
        inputs=", ".join(definition.inputs),
        plan="\n".join(f"        {argument}," for argument in planned),
        run=run,
    )
