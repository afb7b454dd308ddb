"""Plans of attention wrappers: the inputs that all runs share until the next plan."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs
import torch

from ..adapter import DefinitionRef
from .settings import Settings, softmax_scale, unsupported_settings

_OUTPUTS = ("output", "lse")
_NO_BUFFERS: Mapping[str, torch.Tensor] = MappingProxyType({})
_SCALES = frozenset({float, int, type(None)})
_MAX_SETTINGS = 64
"""Settings of one plan that are remembered; layers with scales of their own alternate between as many."""
_lse_buffers: weakref.WeakKeyDictionary[Any, list[torch.Tensor]] = weakref.WeakKeyDictionary()
"""The `AttentionPlan.lse_buffers` of each wrapper. Its runs follow each other."""


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
    """A buffer for a log-sum-exp that the caller does not want. All plans of a wrapper share it; nobody reads it."""


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
            self.current = "its softmax scale is not a number"
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
        plan = self._plan
        inputs = (*plan.inputs, softmax_scale(sm_scale, self._head_dim))
        others = plan.layout, plan.keys, plan.is_routable, plan.buffers, plan.lse_buffers
        return AttentionPlan(plan.definition, plan.rows, inputs, *others)  # faster than `attrs.evolve`


def _no_wrapper() -> None:
    return None


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
        _definition(name, names),
        rows,
        tuple(inputs),
        layout=getattr(wrapper, "_kv_layout", None) or "NHD",
        keys=keys,
        is_routable=not is_replayed(wrapper),
        buffers=buffers,
        lse_buffers=_lse_buffers_of(wrapper),
    )


def _lse_buffers_of(wrapper: Any) -> list[torch.Tensor]:
    try:
        return _lse_buffers.setdefault(wrapper, [])
    except TypeError:  # it has no hash
        return []


@functools.lru_cache(maxsize=256)
def _definition(name: str, names: str) -> DefinitionRef:
    """The definition with these inputs; engines plan at each step."""
    return DefinitionRef(name, tuple(names.split()), _OUTPUTS)


def is_replayed(wrapper: Any) -> bool:
    """Whether a CUDA graph may replay a wrapper's runs after later plans."""
    return bool(getattr(wrapper, "_use_cuda_graph", False))


def on_device(wrapper: Any, tensor: torch.Tensor, buffer: str) -> torch.Tensor:
    """An index tensor of a plan, on the wrapper's device: what the wrapper's kernels read, if it keeps that.

    Args:
        wrapper: Has been planned.
        tensor: The argument of ``plan``.
        buffer: The wrapper's attribute for it.
    """
    kept = getattr(wrapper, buffer, None)
    if is_replayed(wrapper) and isinstance(kept, torch.Tensor):
        return kept[: len(tensor)]
    device = getattr(wrapper, "device", None)
    if device is None or tensor.device == device:
        return tensor
    if isinstance(kept, torch.Tensor) and kept.device == device and kept.shape == tensor.shape:
        return kept  # the copy that `plan` has made
    return tensor.to(device, non_blocking=True)


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
