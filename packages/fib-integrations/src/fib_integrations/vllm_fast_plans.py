"""vLLM's fast plans: recorded plans of CUDA-graph wrappers stay valid when vLLM replans without the ``plan`` method.

vLLM calls ``plan`` of a decode wrapper once. Later plans write to the wrapper's buffers and make a new plan of
FlashInfer's kernels, so the runs would be refused as those of an unknown plan. Here the recorded plan is renewed if a
later plan differs in nothing but the contents of these buffers. Its runs are those of a wrapper for CUDA graphs: they
are served by solutions without ``setup`` that read all integers from the buffers.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .attention import AttentionPlan, WrapperPlan, is_replayed
from .import_hooks import when_imported

if TYPE_CHECKING:
    from .patched_function import PatchedFunction, RecordedPlan

_MODULE, _FUNCTION = "vllm.v1.attention.backends.flashinfer", "fast_plan_decode"
_OFFSETS, _LAST = "indptr_cpu", "last_page_len_cpu"
_VALUES = frozenset({_OFFSETS, _LAST, "indices", "seq_lens_cpu"})
"""Parameters whose contents may differ from plan to plan."""
_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype})
_MARK = "__fib_renews__"
_logger = logging.getLogger(__name__)


class _Planned(NamedTuple):
    """A plan that was recorded, its runs' settings and the arguments that later plans must share."""

    record: RecordedPlan
    current: Any
    shared: Mapping[str, Any] | None


def renew_when_imported() -> None:
    """Wrap vLLM's function that plans when its module is imported, or now if it is."""
    when_imported(_MODULE, _wrap_imported)


def _wrap_imported() -> None:
    module = sys.modules.get(_MODULE)
    original = getattr(module, _FUNCTION, None)
    if original is None:
        _logger.warning("%s has no %s: decodes in CUDA graphs may not be routed", _MODULE, _FUNCTION)
        return
    if hasattr(original, _MARK):
        return
    parameters = list(inspect.signature(original).parameters)
    if not {_OFFSETS, _LAST} <= set(parameters[1:]):
        _logger.warning("%s has other parameters: decodes in CUDA graphs may not be routed", _FUNCTION)
        return
    setattr(module, _FUNCTION, _renewing(original, parameters))


def _renewing(original: Callable[..., Any], parameters: Sequence[str]) -> Callable[..., Any]:
    planned: weakref.WeakKeyDictionary[Any, _Planned] = weakref.WeakKeyDictionary()

    @functools.wraps(original)
    def fast_plan_decode(*args: Any, **kwargs: Any) -> Any:
        if args and not is_replayed(args[0]):  # `plan` is called in any case
            return original(*args, **kwargs)
        given = {**dict(zip(parameters, args, strict=False)), **kwargs}
        wrapper = given.pop(parameters[0], None)
        patched = getattr(getattr(type(wrapper), "plan", None), "__fib_patched__", None)
        if patched is None:
            return original(*args, **kwargs)
        before, is_known = _record_of(wrapper, patched)
        result = original(*args, **kwargs)
        record, _ = _record_of(wrapper, patched)
        if record is None or not isinstance(record.value, WrapperPlan) or record.value.is_routable:
            return result
        if record is not before:  # `plan` was called
            planned[wrapper] = _Planned(record, record.value.current, _shared(given))
        elif is_known and wrapper in planned and planned[wrapper].record is record:
            planned[wrapper] = _renewed(planned[wrapper], wrapper, patched, given)
        return result

    setattr(fast_plan_decode, _MARK, True)
    return fast_plan_decode


def _record_of(wrapper: Any, patched: PatchedFunction) -> tuple[RecordedPlan | None, bool]:
    """The recorded plan of a wrapper, and whether it is the wrapper's present plan."""
    record = patched.plans.by_id.get(id(wrapper))
    return record, record is not None and record.state is getattr(wrapper, patched.state_attribute, None)


def _shared(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The arguments that later plans must share; None if they cannot be compared."""
    found = {name: value for name, value in given.items() if name not in _VALUES}
    found |= {f"len({name})": len(given[name]) for name in (_OFFSETS, _LAST)}
    return found if _PLAIN.issuperset(map(type, found.values())) else None


def _renewed(planned: _Planned, wrapper: Any, patched: PatchedFunction, given: Mapping[str, Any]) -> _Planned:
    """Renew a recorded plan if the arguments of a later one allow it."""
    value, offsets = planned.record.value, given[_OFFSETS]
    if planned.shared is None or _shared(given) != planned.shared or value.current is not planned.current:
        return planned
    if not isinstance(offsets, torch.Tensor) or offsets.device.type != "cpu":
        return planned  # reading it would wait for the device
    total = int(offsets[-1])
    if not _has_buffers_of(wrapper, value, total):
        return planned
    renewed, state = value.with_indices(total), getattr(wrapper, patched.state_attribute, None)
    if renewed is value:
        planned.record.state = state
        return planned
    patched.plans.record(wrapper, renewed, state)
    return _Planned(patched.plans.by_id[id(wrapper)], renewed.current, planned.shared)


def _has_buffers_of(wrapper: Any, value: WrapperPlan, total: int) -> bool:
    """Whether all tensors of a plan are buffers of its wrapper, with room for so many page numbers."""
    buffer = value.buffers.get("kv_indices")
    if buffer is None or not 0 <= total <= len(buffer) or not isinstance(value.current, AttentionPlan):
        return False
    places = {kept.data_ptr() for kept in vars(wrapper).values() if isinstance(kept, torch.Tensor)}
    tensors = (one for one in (*value.current.inputs, buffer) if isinstance(one, torch.Tensor))
    return all(tensor.data_ptr() in places for tensor in tensors)
