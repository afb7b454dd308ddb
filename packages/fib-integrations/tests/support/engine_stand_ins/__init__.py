"""Stand-ins for vLLM and SGLang on the CPU: modules with their recorded signatures that compute in torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

FILES = tuple(sorted(Path(__file__).parent.glob("*.json")))


def recorded() -> dict[str, dict[str, Any]]:
    """By distribution: the version, and the parameters of functions by path."""
    found = [json.loads(file.read_text()) for file in FILES]
    return {one["distribution"]: one for one in found}


def normalized(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """An RMS norm."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(x.dtype) * weight


def _rms_norm(a: dict[str, Any]) -> Any:
    result = normalized(a["input"], a["weight"], a.get("eps", a.get("epsilon")))
    return result if a["out"] is None else a["out"].copy_(result)


def _in_place(a: dict[str, Any]) -> None:
    a["residual"].add_(a["input"])
    a["input"].copy_(normalized(a["residual"], a["weight"], a.get("eps", a.get("epsilon"))))


def _rotary(a: dict[str, Any]) -> None:
    for name in ("query", "key"):
        a[name].neg_()  # another result than that of a solution


_BEHAVIOUR = {
    "vllm._custom_ops.rms_norm": lambda a: (_rms_norm(a), None)[1],
    "vllm._custom_ops.fused_add_rms_norm": _in_place,
    "vllm._custom_ops.rotary_embedding": _rotary,
    "sgl_kernel.elementwise.rmsnorm": _rms_norm,
    "sgl_kernel.elementwise.fused_add_rmsnorm": _in_place,
    "sglang.kernels.ops.layernorm.norm.rmsnorm": lambda a: (_rms_norm(a), None)[1],
    "sglang.kernels.ops.layernorm.norm.fused_add_rmsnorm": _in_place,
}


def _function(path: str, parameters: str) -> Any:
    name = path.rpartition(".")[2]
    scope = {"behaviour": _BEHAVIOUR[path]}
    exec(f"def {name}({parameters}):\n    return behaviour(locals())\n", scope)
    return scope[name]


@contextmanager
def modules(**changed: str) -> Iterator[dict[str, ModuleType]]:
    """Make the modules of the recorded functions importable, some with other parameters."""
    made: dict[str, ModuleType] = {}
    for record in recorded().values():
        for path, parameters in record["parameters"].items():
            module, _, name = path.rpartition(".")
            if path not in _BEHAVIOUR:
                continue
            parts = module.split(".")
            for end in range(1, len(parts) + 1):
                package = ".".join(parts[:end])
                made.setdefault(package, ModuleType(package)).__dict__.setdefault("__path__", [])
            setattr(made[module], name, _function(path, changed.get(name, parameters)))
    before = {name: sys.modules.get(name) for name in made}
    sys.modules.update(made)
    try:
        yield made
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


class IrOp:
    """An op with providers, as vLLM's: `impls` by name, and a list of those that may serve calls."""

    def __init__(self, native: Any, *, allow_inplace: bool) -> None:
        self.name, self.allow_inplace = native.__name__, allow_inplace
        self.schema = torch.library.infer_schema(native, mutates_args=[])
        self.impls: dict[str, Impl] = {}
        self.impls["native"] = Impl("native", native, None, False)
        self._priority_impls: list[Impl] = []

    def get_priority(self) -> list[str]:
        return [one.provider for one in self._priority_impls]

    def set_default(self, priority: list[str]) -> None:
        self._priority_impls = [self.impls[name] for name in priority]

    @contextmanager
    def set_priority(self, priority: list[str]) -> Iterator[None]:
        before = self._priority_impls
        self.set_default(priority)
        yield
        self._priority_impls = before

    def register_impl(self, provider: str, *, supported: bool = True, supports_args: Any = None, inplace: bool = False):
        assert provider not in self.impls
        assert self.allow_inplace or not inplace

        def register(function: Any) -> Impl:
            if torch.library.infer_schema(function, mutates_args=[]) != self.schema:
                raise ValueError(f"{provider} has another schema than {self.name}")
            made = self.impls[provider] = Impl(provider, function, supports_args, inplace)
            return made

        return register

    def dispatch(self, *args: Any) -> Impl:
        return next(one for one in (*self._priority_impls, self.impls["native"]) if one.supports_args(*args))

    def __call__(self, *args: Any) -> Any:
        """The functional overload: an implementation in place gets copies of the activations."""
        found = self.dispatch(*args)
        copied = [x.clone() if place < 1 + self.allow_inplace else x for place, x in enumerate(args)]
        return found.impl_fn(*(copied if found.inplace else args))

    def maybe_inplace(self, *args: Any) -> Any:
        return self.dispatch(*args).impl_fn(*args)


class Impl:
    def __init__(self, provider: str, impl_fn: Any, supports: Any, inplace: bool) -> None:
        self.provider, self.impl_fn, self.inplace = provider, impl_fn, inplace
        self.supports_args = supports or (lambda *args: True)


def ir_ops() -> ModuleType:
    """A module like ``vllm.ir.ops``, whose ops also have an implementation ``vllm_c``."""
    Tensor = torch.Tensor

    def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
        return normalized(x, torch.ones(x.shape[-1]) if weight is None else weight, epsilon)

    def fused_add_rms_norm(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        total = x + x_residual
        return rms_norm(total, weight, epsilon), total

    scope = {"Tensor": torch.Tensor}
    module = ModuleType("vllm.ir.ops")
    for native, allow_inplace in ((rms_norm, False), (fused_add_rms_norm, True)):
        native.__annotations__ = {n: eval(a, scope) for n, a in native.__annotations__.items()}
        op = IrOp(native, allow_inplace=allow_inplace)
        setattr(module, op.name, op)
    return module
