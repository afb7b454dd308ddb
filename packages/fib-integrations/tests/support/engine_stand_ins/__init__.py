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


def _attention(a: dict[str, Any]) -> Any:
    """The attention of each request by torch's own function; rows that belong to none stay as they are."""
    result = torch.empty_like(a["q"]) if a["out"] is None else a["out"]
    offsets, size = a["cu_seqlens_q"].tolist(), a["k"].shape[1]
    for row, keys in enumerate(a["seqused_k"].tolist()):
        rows = slice(offsets[row], offsets[row + 1])
        places = torch.tensor([a["block_table"][row, i // size] * size + i % size for i in range(keys)]).long()
        q, k, v = a["q"][rows], *(a[name].flatten(0, 1)[places] for name in "kv")
        mask = torch.ones(len(q), keys, dtype=torch.bool).tril(keys - len(q))
        wide = (x.float().transpose(0, 1) for x in (q, k, v))
        sdpa = torch.nn.functional.scaled_dot_product_attention
        result[rows] = sdpa(*wide, mask, scale=a["softmax_scale"], enable_gqa=True).transpose(0, 1).to(result.dtype)
    return (result, None) if a["return_softmax_lse"] else result


def _experts(a: dict[str, Any]) -> None:
    """All experts for all tokens, of which the weights of the routing choose."""
    x, w1, w2 = (a[name].float() for name in ("hidden_states", "w1", "w2"))
    gate, up = torch.einsum("th,egh->etg", x, w1).tensor_split(2, dim=2)
    each = torch.einsum("eti,ehi->eth", gate * gate.sigmoid() * up, w2)
    chosen = torch.nn.functional.one_hot(a["topk_ids"].long(), len(w1)) * a["topk_weights"][..., None]
    a["output"].copy_(torch.einsum("et,eth->th", chosen.sum(1).T, each))


def default_unquantized_gemm(layer: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    """A function that torch.compile can trace."""
    return torch.nn.functional.linear(x, weight, bias)


LAYERS = "vllm.model_executor.layers"
_BEHAVIOUR = {
    "vllm.vllm_flash_attn.flash_attn_interface.flash_attn_varlen_func": _attention,
    f"{LAYERS}.fused_moe.experts.triton_moe.TritonExperts.apply": _experts,
    f"{LAYERS}.utils.default_unquantized_gemm": default_unquantized_gemm,
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
    if name == _BEHAVIOUR[path].__name__:
        return _BEHAVIOUR[path]
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
            module, _, owner = module.rpartition(".") if module.rpartition(".")[2][0].isupper() else (module, "", "")
            parts = module.split(".")
            for end in range(1, len(parts) + 1):
                package = ".".join(parts[:end])
                made.setdefault(package, ModuleType(package)).__dict__.setdefault("__path__", [])
            function = _function(path, changed.get(name, parameters))
            setattr(made[module], owner or name, type(owner, (), {name: function}) if owner else function)
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
