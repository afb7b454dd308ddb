"""vLLM's fast plans: recorded plans of CUDA-graph wrappers stay valid when vLLM replans without the ``plan`` method.

vLLM calls ``plan`` of a decode wrapper once. Later plans write to the wrapper's buffers and make a new plan of
FlashInfer's kernels, so the runs would be refused as those of an unknown plan. Here a run renews the recorded plan if
the last plan differs in nothing but the contents of these buffers. Runs of a wrapper for CUDA graphs are served by
solutions without ``setup`` that read all integers from the buffers.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .attention import AttentionPlan, DecodeSettings, WrapperPlan, is_replayed
from .import_hooks import when_imported

if TYPE_CHECKING:
    from .recorded_plans import RecordedPlan

_MODULE, _FUNCTION = "vllm.v1.attention.backends.flashinfer", "fast_plan_decode"
_OFFSETS, _LAST = "indptr_cpu", "last_page_len_cpu"
_VALUES = frozenset({_OFFSETS, _LAST, "indices", "seq_lens_cpu"})
"""Parameters whose contents may differ from plan to plan."""
_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype})
_MARK = "__fib_renews__"
_logger = logging.getLogger(__name__)


class _FastPlan:
    """The last plan of a wrapper that bypassed ``plan``; a run that needs it brings the recorded plan up to date.

    Most plans are followed by a replay instead of a run, so little is done here for each of them.

    Args:
        record: Of the wrapper's last call of ``plan``.
        given: The arguments of that plan, by name.
        parameters: Names of all arguments.
    """

    __slots__ = ("_args", "_current", "_kwargs", "_parameters", "_settings", "_shared", "state", "value")

    def __init__(self, record: RecordedPlan, given: Mapping[str, Any], parameters: Sequence[str]) -> None:
        self.value, self.state = record.value, record.state
        self._current, self._shared, self._parameters = record.value.current, _shared(given), parameters
        self._settings = _settings_of(record.owner())

    def note(self, state: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Keep the arguments of a plan that led to a state."""
        self.state, self._args, self._kwargs = state, args, kwargs

    def renew(self, record: RecordedPlan, wrapper: Any, state: Any) -> bool:
        """Renew a recorded plan if the arguments of a later one allow it; whether they do."""
        value = record.value
        if state is not self.state or value is not self.value or value.current is not self._current:
            return False
        given = _named(self._parameters, self._args, self._kwargs)
        if self._shared is None or _shared(given) != self._shared or _settings_of(wrapper) != self._settings:
            return False
        offsets = given[_OFFSETS]
        if not isinstance(offsets, torch.Tensor) or offsets.device.type != "cpu":
            return False  # reading it would wait for the device
        total = int(offsets[-1])
        if not _has_buffers_of(wrapper, value, total):
            return False
        renewed = value.with_indices(total)
        if renewed is value:
            record.state = state
        else:
            record.replace(renewed, state)
            record.renewal, self.value, self._current = self.renew, renewed, renewed.current
        return True


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
    planned: weakref.WeakKeyDictionary[Any, _FastPlan] = weakref.WeakKeyDictionary()

    @functools.wraps(original)
    def fast_plan_decode(*args: Any, **kwargs: Any) -> Any:
        wrapper = args[0] if args else kwargs.get(parameters[0])
        patched = getattr(getattr(type(wrapper), "plan", None), "__fib_patched__", None)
        if patched is None or not is_replayed(wrapper):  # for other wrappers, `plan` is called each time
            return original(*args, **kwargs)
        plans, attribute = patched.plans, patched.state_attribute
        record, last = plans.by_id.get(id(wrapper)), planned.get(wrapper)
        value, before = getattr(record, "value", None), getattr(wrapper, attribute, None)
        result = original(*args, **kwargs)
        record, state = plans.by_id.get(id(wrapper)), getattr(wrapper, attribute, None)
        if record is None:
            return result
        if record.value is not value:  # `plan` was called
            if isinstance(record.value, WrapperPlan) and not record.value.is_routable:
                last = planned[wrapper] = _FastPlan(record, _named(parameters, args, kwargs), parameters)
                record.renewal = last.renew
        elif state is before:
            plans.invalidate(wrapper)  # runs could not tell this plan from the last one
        elif last is not None and value is last.value and (before is record.state or before is last.state):
            last.note(state, args, kwargs)
        return result

    setattr(fast_plan_decode, _MARK, True)
    return fast_plan_decode


def _named(parameters: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a plan after the wrapper, by name."""
    given = {**dict(zip(parameters, args, strict=False)), **kwargs}
    given.pop(parameters[0], None)
    return given


def _shared(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The arguments that later plans must share; None if they cannot be compared."""
    if not {_OFFSETS, _LAST} <= given.keys():
        return None
    found = {name: value for name, value in given.items() if name not in _VALUES}
    found |= {f"len({name})": len(given[name]) for name in (_OFFSETS, _LAST)}
    return found if _PLAIN.issuperset(map(type, found.values())) else None


def _settings_of(wrapper: Any) -> list[Any]:
    """The settings that a wrapper's next run reads."""
    return [getattr(wrapper, f"_{name}", None) for name in DecodeSettings._fields]


def _has_buffers_of(wrapper: Any, value: WrapperPlan, total: int) -> bool:
    """Whether all tensors of a plan are buffers of its wrapper, with room for so many page numbers."""
    buffer = value.buffers.get("kv_indices")
    if buffer is None or not 0 <= total <= len(buffer) or not isinstance(value.current, AttentionPlan):
        return False
    places = {kept.data_ptr() for kept in vars(wrapper).values() if isinstance(kept, torch.Tensor)}
    tensors = (one for one in (*value.current.inputs, buffer) if isinstance(one, torch.Tensor))
    return all(tensor.data_ptr() in places for tensor in tensors)
