"""Tensor types whose instances behave as plain tensors: those of torch, and parameters of engines.

Engines keep weights in subclasses of `torch.nn.Parameter` that only say how a weight is loaded. They are accepted by
their qualified names, and only if the class that is found under a name changes nothing that a kernel or torch sees.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

_VLLM = "vllm.model_executor.parameter"
_SGLANG = "sglang.srt.layers.parameter"
_NAMES = (
    "BasevLLMParameter", "RowvLLMParameter", "ModelWeightParameter", "GroupQuantScaleParameter",
    "ChannelQuantScaleParameter", "BlockQuantScaleParameter", "PerTensorScaleParameter", "PackedColumnParameter",
    "PackedvLLMParameter",
)  # fmt: skip
ACCEPTED_TYPES = frozenset(f"{module}.{name}" for module in (_VLLM, _SGLANG) for name in _NAMES)
"""Qualified names, as in vLLM 0.26.0 and SGLang 0.5.17."""

_OF_EACH_CLASS = frozenset(vars(type("Empty", (torch.nn.Parameter,), {}))) | {"__new__", "__init__", "__annotations__"}
"""Attributes of any subclass, and those that only concern how an object is made."""
_HOOK, _DISPATCH = "__torch_function__", "__torch_dispatch__"
_DELEGATING_NAMES = frozenset({"super", _HOOK, "__class__"})


def is_plain_type(kind: type) -> bool:
    """Whether tensors of a type behave as plain ones."""
    return kind is torch.Tensor or kind is torch.nn.Parameter or _is_accepted(kind)


@functools.lru_cache(maxsize=256)
def _is_accepted(kind: Any) -> bool:
    return f"{kind.__module__}.{kind.__qualname__}" in ACCEPTED_TYPES and behaviour_problem(kind) is None


def behaviour_problem(kind: type) -> str | None:
    """Reason why tensors of a subclass of `torch.nn.Parameter` may behave differently; None if they do not."""
    if not issubclass(kind, torch.nn.Parameter):
        return f"{kind.__qualname__} is not a torch.nn.Parameter"
    for cls in kind.__mro__[: kind.__mro__.index(torch.nn.Parameter)]:
        own = vars(cls)
        if _DISPATCH in own:
            return f"{cls.__qualname__} defines {_DISPATCH}"
        if _HOOK in own and not _only_delegates(own[_HOOK]):
            return f"{cls.__qualname__} defines {_HOOK}, which does more than to call that of its base class"
        changed = [name for name in own if hasattr(torch.Tensor, name) and name not in _OF_EACH_CLASS | {_HOOK}]
        if changed:
            return f"{cls.__qualname__} changes {', '.join(sorted(changed))}"
    return None


def _only_delegates(hook: Any) -> bool:
    """Whether a ``__torch_function__`` can do nothing but call that of its base class: it knows no other names."""
    code = getattr(getattr(hook, "__func__", None), "__code__", None)
    if not isinstance(hook, classmethod) or not isinstance(code, types.CodeType):
        return False
    has_nested = any(isinstance(constant, types.CodeType) for constant in code.co_consts)
    names = {*code.co_names, *code.co_freevars}
    return _HOOK in names and names <= _DELEGATING_NAMES and not has_nested
