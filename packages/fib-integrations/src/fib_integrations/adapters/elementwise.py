"""Adapters for RMS normalisation and rotary embeddings, of FlashInfer and of engines' own kernels.

The ``vllm.ir`` ops have a provider instead (`fib_integrations.vllm`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from fib_schema import Definition

from ..adapter import SGL_KERNEL, SGLANG, VLLM, Adapter, Call, Conversion, DefinitionRef, Original, epsilon_constant

_ROPE_INPUTS = ("q", "k", "cos_sin_cache", "positions")


def convert_rope(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool = True,
) -> Conversion:
    """The definition has a dimension for heads; FlashInfer concatenates them."""
    if not is_neox:
        return "rotated pairs are interleaved (is_neox=False)"
    if query.dim() != 2 or key.dim() != 2:
        return "queries or keys are not matrices"
    q, k = query.view(query.shape[0], -1, head_size), key.view(key.shape[0], -1, head_size)
    return rope_key(head_size, cos_sin_cache), (q, k, cos_sin_cache, positions), False


def rope_key(head_size: int, cos_sin_cache: torch.Tensor) -> tuple[int, int]:
    """The key of `convert_rope`."""
    return head_size, cos_sin_cache.shape[1]


def describe_rope(key: tuple[int, int]) -> DefinitionRef:
    """The definition of a key of `convert_rope`."""
    head_size, rotary_dim = key
    name = f"rope_with_cos_sin_cache_neox_style_d{head_size}_rd{rotary_dim}"
    return DefinitionRef(name, _ROPE_INPUTS, ("q_out", "k_out"))


def _finalize_rope(
    result: tuple[torch.Tensor, torch.Tensor], query: torch.Tensor, key: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    q, k = result
    return q.reshape(query.shape), k.reshape(key.shape)


def finalize_in_place(result: tuple[torch.Tensor, torch.Tensor], query: torch.Tensor, key: torch.Tensor) -> None:
    """Write the results over the inputs."""
    q, k = result
    if q.data_ptr() != query.data_ptr():
        query.copy_(q.reshape(query.shape))
        key.copy_(k.reshape(key.shape))


def _shadow_rope(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[Any]) -> Any:
    query, key = original(*args, **kwargs)
    return query.view(values[0].shape), key.view(values[1].shape)


def shadow_in_place(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[Any]) -> Any:
    """Call the original and return the definition's outputs, which it wrote over the inputs."""
    original(*args, **kwargs)
    return values[0], values[1]


def _baseline_rope(definition: Definition) -> str | None:
    if (
        not definition.name.startswith("rope_with_cos_sin_cache_neox_style_")
        or tuple(definition.inputs) != _ROPE_INPUTS
    ):
        return None
    return """import flashinfer.rope


def run(q, k, cos_sin_cache, positions):
    query, key = flashinfer.rope.apply_rope_with_cos_sin_cache(
        positions, q.flatten(1), k.flatten(1), q.shape[-1], cos_sin_cache, is_neox=True
    )
    return query.view(q.shape), key.view(k.shape)
"""


def _rope(path: str, convert: Callable[..., Conversion] = convert_rope, **options: Any) -> Call:
    return Call(path=path, convert=convert, describe=describe_rope, key=rope_key, **options)


_IN_PLACE: dict[str, Any] = {"finalize": finalize_in_place, "shadow": shadow_in_place}
_ROPE_PATH = "flashinfer.rope.apply_rope_with_cos_sin_cache"
ROPE = Adapter(
    name="rope",
    op_types=("rope",),
    targets=(
        _rope(_ROPE_PATH, finalize=_finalize_rope, shadow=_shadow_rope),
        _rope(f"{_ROPE_PATH}_inplace", **_IN_PLACE),
    ),
    supported="NeoX style, out of place or in place",
    unsupported="interleaved pairs (`is_neox=False`); other than two dimensions",
    baseline=_baseline_rope,
)


_SIZES = {"rmsnorm": (128, 512, 1536, 4096, 7168), "fused_add_rmsnorm": (2048, 3072, 4096, 5120, 5376, 7168)}
EPSILON = {f"{name}_h{n}": 1e-5 if n == 4096 else 1e-6 for name, sizes in _SIZES.items() for n in sizes}
"""The constants in the references of the public data set."""
CONSTANTS = {name: {"eps": value} for name, value in EPSILON.items()}
"""The same, as `Adapter.reference_constants`."""
_NORM_INPUTS = {"rmsnorm": ("hidden_states", "weight"), "fused_add_rmsnorm": ("hidden_states", "residual", "weight")}
_NOT_A_MATRIX = "the input is not a matrix"


def convert_rmsnorm(input: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, out: Any = None) -> Conversion:
    """Rows of one size."""
    if input.dim() != 2:
        return _NOT_A_MATRIX
    key = "rmsnorm", weight.shape[0], eps
    return (key, (input, weight), False) if out is None else (key, (input, weight, out), True)


def convert_fused_add_rmsnorm(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> Conversion:
    """Rows of one size."""
    if input.dim() != 2:
        return _NOT_A_MATRIX
    return ("fused_add_rmsnorm", weight.shape[0], eps), (input, residual, weight), False


def describe(key: tuple[str, int, float]) -> DefinitionRef:
    """The definition of a key of the functions above."""
    name, hidden_size, epsilon = key
    return DefinitionRef(f"{name}_h{hidden_size}", _NORM_INPUTS[name], ("output",), {"eps": epsilon})


def finalize_fused_add(result: torch.Tensor, input: torch.Tensor, residual: torch.Tensor) -> None:
    """Write the sum and the result in place, as FlashInfer does; the definition returns only the result."""
    if result is not input:
        residual.add_(input)
        input.copy_(result)


def shadow_fused_add(original: Original, args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[Any]) -> Any:
    """Call the original and return the definition's output, which it wrote over the input."""
    original(*args, **kwargs)
    return values[0]


def _baseline_rmsnorm(definition: Definition) -> str | None:
    epsilon = epsilon_constant(definition.reference)
    if epsilon is None or not definition.name.startswith("rmsnorm_h"):
        return None
    return f"""import flashinfer.norm


def run(hidden_states, weight, output):
    flashinfer.norm.rmsnorm(hidden_states, weight, eps={epsilon!r}, out=output)
"""


def _baseline_fused_add(definition: Definition) -> str | None:
    epsilon = epsilon_constant(definition.reference)
    if epsilon is None or not definition.name.startswith("fused_add_"):
        return None
    return f"""import flashinfer.norm


def run(hidden_states, residual, weight, output):
    output.copy_(hidden_states)
    flashinfer.norm.fused_add_rmsnorm(output, residual.clone(), weight, eps={epsilon!r})
"""


def _norm(path: str, convert: Callable[..., Conversion] = convert_rmsnorm, **options: Any) -> Call:
    return Call(path=path, convert=convert, describe=describe, **options)


def _fused_add(path: str, convert: Callable[..., Conversion] = convert_fused_add_rmsnorm, **options: Any) -> Call:
    return _norm(path, convert, finalize=finalize_fused_add, shadow=shadow_fused_add, **options)


def _norms(name: str, *targets: Call, **options: Any) -> Adapter:
    """An adapter of norms, and of rotations beside them."""
    return Adapter(name=name, targets=targets, reference_constants=CONSTANTS, **{"op_types": ("rmsnorm",), **options})


_PDL = frozenset({"enable_pdl"})
_ROWS = "three dimensions; an epsilon other than the reference's"
RMSNORM = _norms(
    "rmsnorm",
    _norm("flashinfer.norm.rmsnorm", ignored=_PDL),
    supported="matrices, with or without `out`",
    unsupported=_ROWS,
    baseline=_baseline_rmsnorm,
)
FUSED_ADD_RMSNORM = _norms(
    "fused_add_rmsnorm",
    _fused_add("flashinfer.norm.fused_add_rmsnorm", ignored=_PDL),
    supported="matrices; the sum and the result are written in place",
    unsupported=_ROWS,
    baseline=_baseline_fused_add,
)


_MATRICES = "matrices; results are written as the engine expects them"
_OTHERS = "three dimensions; no weight; an epsilon other than the reference's"


def convert_custom_rms_norm(out: torch.Tensor, input: torch.Tensor, weight: Any, epsilon: float) -> Conversion:
    """VLLM passes the output first."""
    return "it has no weight" if weight is None else convert_rmsnorm(input, weight, epsilon, out)


def convert_custom_fused_add(input: torch.Tensor, residual: torch.Tensor, weight: Any, epsilon: float) -> Conversion:
    """The sum and the result are written in place."""
    return "it has no weight" if weight is None else convert_fused_add_rmsnorm(input, residual, weight, epsilon)


def convert_custom_rope(
    positions: torch.Tensor, query: torch.Tensor, key: Any, head_size: int, cos_sin_cache: torch.Tensor, is_neox: bool
) -> Conversion:
    """Keys may be missing, where layers share them."""
    if key is None:
        return "it has no keys"
    return convert_rope(positions, query, key, head_size, cos_sin_cache, is_neox)


def convert_jit_rmsnorm(input: torch.Tensor, weight: torch.Tensor, out: Any = None, eps: float = 1e-6) -> Conversion:
    """Without a buffer, the input is overwritten."""
    return "it overwrites its input" if out is None else convert_rmsnorm(input, weight, eps, out)


def return_nothing(result: object) -> None:
    """Make no result for the caller, who passed a buffer."""
    del result


VLLM_CUSTOM_OPS = _norms(
    "vllm_custom_ops",
    _norm("vllm._custom_ops.rms_norm", convert_custom_rms_norm, finalize=return_nothing),
    _fused_add("vllm._custom_ops.fused_add_rms_norm", convert_custom_fused_add),
    _rope("vllm._custom_ops.rotary_embedding", convert_custom_rope, **_IN_PLACE),
    op_types=("rmsnorm", "rope"),
    supported=_MATRICES,
    unsupported=f"{_OTHERS}; no keys, interleaved pairs, `rope_dim_offset`, `inverse`",
    engine=VLLM,
)
SGLANG_KERNELS = _norms(
    "sgl_kernel",
    _norm("sgl_kernel.elementwise.rmsnorm", ignored=_PDL),
    _fused_add("sgl_kernel.elementwise.fused_add_rmsnorm", ignored=_PDL),
    supported=_MATRICES,
    unsupported=_OTHERS,
    engine=SGL_KERNEL,
)
SGLANG_JIT = _norms(
    "sglang_jit_norms",
    _norm("sglang.kernels.ops.layernorm.norm.rmsnorm", convert_jit_rmsnorm, finalize=return_nothing),
    _fused_add("sglang.kernels.ops.layernorm.norm.fused_add_rmsnorm"),
    supported=_MATRICES,
    unsupported=f"{_OTHERS}; an input that is overwritten; `cast_x_before_out_mul`",
    engine=SGLANG,
)
