"""Plans of attention wrappers: the inputs that all runs share until the next plan."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import attrs
import torch

from ..adapter import DefinitionRef
from .settings import Settings, compiled_problem, softmax_scale, unsupported_settings

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
    """The plan of a wrapper, with the settings of its next runs, which ``forward`` replaces.

    Args:
        wrapper: Has been planned; it is not kept alive.
        plan: With the scale of its kind as the last input.
        kind: Of the plan.
        sizes: Determine all axes, together with the kind: numbers of requests, pages and queries.
    """

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
        copied.wrapper = _no_wrapper
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


def _no_wrapper() -> None:
    return None


def _has_own_run(wrapper: Any) -> bool:
    return "run" in vars(wrapper) or not hasattr(type(wrapper).run, "__fib_patched__")


def unsupported_plan(wrapper: Any, dtypes: tuple[Any, Any, Any], layouts: tuple[str | None, ...]) -> str | None:
    """Reason that no definition describes the runs of a plan, whatever their settings; None if one may.

    The dtypes are those of queries, of keys and values, and of the output; None stands for that of the queries.
    """
    if getattr(wrapper, "_jit_module", None) is not None:
        return _CUSTOM_KERNEL
    return _unsupported_kind(getattr(wrapper, "_kv_layout", None), dtypes, layouts)


def _unsupported_kind(layout: Any, dtypes: tuple[Any, Any, Any], layouts: tuple[str | None, ...]) -> str | None:
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


_MakeKind: TypeAlias = "Callable[..., PlanKind | str]"


def cached_kind(make: _MakeKind) -> _MakeKind:
    """Call a function once for each kind of plans.

    Its first argument is the layout of the cache; the last two, a soft cap and a scale, may be tensors. It is not
    called for an unknown layout or mixed dtypes, nor for a wrapper with a custom kernel.

    Returns:
        A function that takes the wrapper, a tuple of the dtypes (see `unsupported_plan`) and the other arguments. It
        returns the kind, or the reason why its runs are unsupported.
    """

    def known(layout: Any, dtypes: tuple[Any, Any, Any], *others: Any) -> PlanKind | str:
        return _unsupported_kind(layout, dtypes, ("NHD", "HND")) or make(layout, *others)

    cached = functools.lru_cache(maxsize=256, typed=True)(known)

    def kind(wrapper: Any, *arguments: Any) -> PlanKind | str:
        if getattr(wrapper, "_jit_module", None) is not None:
            return _CUSTOM_KERNEL
        # the value of a tensor may change
        is_plain = type(arguments[-1]) in _SCALES and type(arguments[-2]) in _SCALES
        return (cached if is_plain else known)(getattr(wrapper, "_kv_layout", None), *arguments)

    return kind


def make_plan(
    wrapper: Any,
    name: str,
    names: str,
    rows: int,
    inputs: Sequence[Any],
    keys: int | None = None,
) -> AttentionPlan:
    """The plan of a wrapper's next runs; `name` is that of the definition, `names` those of its inputs."""
    layout = getattr(wrapper, "_kv_layout", None) or "NHD"
    return AttentionPlan(_definition(name, names), rows, tuple(inputs), layout, keys, not is_replayed(wrapper))


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
    """Index tensors of a plan, on the wrapper's device: what the wrapper's kernels read, if it keeps that.

    Args:
        wrapper: Has been planned.
        tensors: Arguments of ``plan``.
        buffers: The wrapper's attributes for them; more are ignored.
        replayed: See `is_replayed`.
    """
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
    """The whole buffer of page numbers that all runs of a wrapper for CUDA graphs read; empty if it has none.

    Args:
        wrapper: Has been planned.
        indices: The attribute of the buffer.
        others: The attributes of the buffers of all other inputs that a plan writes to.
    """
    buffer = getattr(wrapper, indices, None)
    has_others = all(isinstance(getattr(wrapper, name, None), torch.Tensor) for name in others)
    return {"kv_indices": buffer} if has_others and isinstance(buffer, torch.Tensor) else NO_BUFFERS


def last_value(tensor: torch.Tensor) -> int:
    """The total in an offsets tensor. On a device this synchronises, as FlashInfer's plan has just done."""
    if tensor.is_cpu and tensor.shape[0] <= _FEW:  # indexing costs more
        return int(tensor.tolist()[-1])
    return int(tensor[-1])
