"""Tensor types whose instances behave as plain tensors: those of torch, and parameters of engines.

Engines keep weights in subclasses of `torch.nn.Parameter` that only say how a weight is loaded. They are accepted by
their qualified names, and only if the class that is found under a name changes nothing that a kernel or torch sees.
"""

from __future__ import annotations

import functools
import inspect
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


class _Delegating(torch.nn.Parameter):
    """The hooks that are accepted: each calls that of its base class, and returns the result."""

    @classmethod
    def with_missing_keywords(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs is None:
            kwargs = {}
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]

    @classmethod
    def with_empty_keywords(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, {} if kwargs is None else kwargs)  # type: ignore[no-untyped-call]

    @classmethod
    def with_any_keywords(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]

    @classmethod
    def with_same_keywords(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


def is_plain_type(kind: type) -> bool:
    """Whether tensors of a type behave as plain ones."""
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return True
    return _is_accepted(kind, getattr(getattr(kind, _HOOK, None), "__func__", None))


@functools.lru_cache(maxsize=256)
def _is_accepted(kind: Any, hook: Any) -> bool:
    """The answer for a class while it has this hook; another one is looked at again."""
    del hook
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
    """Whether a ``__torch_function__`` is one of those of `_Delegating`, by its code."""
    return isinstance(hook, classmethod) and _shape_of(hook) in _KNOWN_HOOKS


def _shape_of(hook: Any) -> tuple[Any, ...] | None:
    """Everything that decides the effect of a function's code, without names of parameters; None for other objects."""
    function = hook.__func__
    code = getattr(function, "__code__", None)
    if not isinstance(function, types.FunctionType) or not isinstance(code, types.CodeType):
        return None
    names = tuple(name for name in code.co_names if name != "super") if "super" not in function.__globals__ else ()
    flags = code.co_flags & ~inspect.CO_NESTED
    return code.co_code, code.co_consts, names, code.co_freevars, code.co_argcount, flags, function.__defaults__


_KNOWN_HOOKS = frozenset(_shape_of(hook) for hook in vars(_Delegating).values() if isinstance(hook, classmethod))
