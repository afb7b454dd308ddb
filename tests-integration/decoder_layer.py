"""One decode step of a layer of Llama-3.1-8B in bfloat16, with a paged cache.

Parts that have a definition are functions decorated with `fib_apply.apply`. Each serves itself, in plain torch, where
no solution does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs
import torch
from fib_apply import apply
from fib_schema import Definition
from torch.nn.functional import linear, rms_norm, silu

Function: TypeAlias = Callable[..., Any]
Definitions: TypeAlias = Mapping[str, Definition]
"""By part: ``input_norm``, ``qkv``, ``attention``, ``o``, ``post_norm`` and ``down``."""

EPS = 1e-5
PAGES = 16
"""The average number of pages per sequence."""


def make_norm(name: str) -> Function:
    """RMS normalisation."""

    @apply(name)
    def norm(hidden_states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_states, weight.shape, weight, eps=EPS)

    return norm


def make_fused_norm(name: str) -> Function:
    """RMS normalisation of hidden states plus residual."""

    @apply(name)
    def fused_norm(hidden_states: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_states + residual, weight.shape, weight, eps=EPS)

    return fused_norm


def make_gemm(name: str) -> Function:
    """A linear layer."""

    @apply(name)
    def gemm(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        return linear(A, B)

    return gemm


def make_attention(name: str, most_pages: int) -> Function:
    """Attention of one query per sequence to its pages.

    Args:
        name: The definition.
        most_pages: Of any sequence. The fallback pads all to it: a CUDA graph cannot ask the device.
    """

    @apply(name)
    def attention(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        kv_last_page_len: torch.Tensor,
        sm_scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        at = kv_indptr[:-1, None] + torch.arange(most_pages, device=q.device)
        pages = kv_indices[at.clamp(max=kv_indices.shape[0] - 1)]
        keys, values = k_cache[pages].flatten(1, 2), v_cache[pages].flatten(1, 2)
        lengths = (kv_indptr.diff() - 1) * k_cache.shape[1] + kv_last_page_len
        is_outside = torch.arange(keys.shape[1], device=q.device) >= lengths[:, None]
        return attend(q, keys, values, is_outside, sm_scale)

    return attention


def attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, is_outside: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to padded keys; also returns the log-sum-exp to base 2."""
    queries = q.unflatten(1, (keys.shape[2], -1))
    logits = torch.einsum("bkgd,bskd->bkgs", queries, keys).float() * scale
    logits = logits.masked_fill(is_outside[:, None, None], -math.inf)
    weights = logits.softmax(-1).to(values.dtype)
    output = torch.einsum("bkgs,bskd->bkgd", weights, values).reshape(q.shape)
    return output, (logits.logsumexp(-1) * math.log2(math.e)).flatten(1)


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, NeoX style.

    Shapes:
        x: [batch, heads, dim]
        angles: [batch, 1, dim / 2]
    """
    first, second = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


@attrs.frozen(kw_only=True)
class Tensors:
    """The arguments of the block."""

    hidden: torch.Tensor
    residual: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    kv_last_page_len: torch.Tensor

    def all(self) -> tuple[torch.Tensor, ...]:
        """All tensors, in the order of the block's parameters."""
        return attrs.astuple(self, recurse=False)

    def written(self) -> tuple[torch.Tensor, ...]:
        """The keys and values that the block writes."""
        slots = self._slots()
        return self.k_cache[slots], self.v_cache[slots]

    def clear(self) -> None:
        """Set the written keys and values to zero, to detect a block that does not write them."""
        slots = self._slots()
        self.k_cache[slots], self.v_cache[slots] = 0, 0

    def _slots(self) -> tuple[torch.Tensor, torch.Tensor]:
        return _last_slots(self.kv_indptr, self.kv_indices, self.kv_last_page_len)


def _last_slots(
    kv_indptr: torch.Tensor, kv_indices: torch.Tensor, kv_last_page_len: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return kv_indices[kv_indptr[1:] - 1].long(), kv_last_page_len.long() - 1


def make_block(definitions: Definitions, weights: Mapping[str, torch.Tensor]) -> Function:
    """A decoder layer; it takes one hidden state per sequence, and a cache with room for one more token."""
    names = {part: definition.name for part, definition in definitions.items()}
    input_norm, post_norm = make_norm(names["input_norm"]), make_fused_norm(names["post_norm"])
    qkv, o, down = (make_gemm(names[part]) for part in ("qkv", "o", "down"))
    attention = make_attention(names["attention"], PAGES + PAGES // 2)
    sizes = definitions["attention"].const_axes
    heads, kv_heads, dim = (sizes[axis] for axis in ("num_qo_heads", "num_kv_heads", "head_dim"))
    page, scale = sizes["page_size"], 1 / math.sqrt(dim)

    def attended(x: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, *index: torch.Tensor) -> torch.Tensor:
        kv_indptr, _, kv_last_page_len = index
        position = (kv_indptr.diff() - 1) * page + kv_last_page_len - 1
        angles = position[:, None, None] * weights["frequencies"]
        q, k, v = qkv(x, weights["qkv"]).unflatten(1, (-1, dim)).split((heads, kv_heads, kv_heads), 1)
        slots = _last_slots(*index)
        k_cache[slots], v_cache[slots] = rotated(k, angles), v
        output, _ = attention(rotated(q, angles), k_cache, v_cache, *index, scale)
        return o(output.flatten(1), weights["o"])

    def block(hidden: torch.Tensor, residual: torch.Tensor, *cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        residual = residual + hidden
        x = attended(input_norm(residual, weights["input_norm"]), *cache)
        normal = post_norm(x, residual, weights["post_norm"])
        gate, up = linear(normal, weights["gate_up"]).chunk(2, -1)
        return down(silu(gate) * up, weights["down"]), residual + x

    return block


def make_weights(definitions: Definitions, device: str) -> dict[str, torch.Tensor]:
    """Random weights that keep activations at a magnitude of about one."""
    sizes = {part: definition.const_axes for part, definition in definitions.items()}
    generator = torch.Generator(device).manual_seed(0)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        found = torch.randn(rows, columns, device=device, generator=generator, dtype=torch.float32)
        return (found / math.sqrt(columns)).to(torch.bfloat16)

    hidden, inner = sizes["input_norm"]["hidden_size"], sizes["down"]["K"]
    made = {part: matrix(sizes[part]["N"], sizes[part]["K"]) for part in ("qkv", "o", "down")}
    made["gate_up"] = matrix(2 * inner, hidden)
    made |= {part: 1 + 0.1 * matrix(1, hidden)[0] for part in ("input_norm", "post_norm")}
    half = sizes["attention"]["head_dim"] // 2
    made["frequencies"] = 500000.0 ** (-torch.arange(half, device=device) / half)
    return made


def make_tensors(definitions: Definitions, device: str, batch: int) -> Tensors:
    """Random tensors; sequences have 0.5 or 1.5 times the average number of pages."""
    hidden, sizes = definitions["input_norm"].const_axes["hidden_size"], definitions["attention"].const_axes
    generator = torch.Generator(device).manual_seed(batch)
    page, heads, dim = (sizes[axis] for axis in ("page_size", "num_kv_heads", "head_dim"))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, generator=generator, dtype=torch.bfloat16)

    return Tensors(
        hidden=normal(batch, hidden),
        residual=normal(batch, hidden),
        k_cache=normal(batch * PAGES, page, heads, dim),
        v_cache=normal(batch * PAGES, page, heads, dim),
        kv_indptr=make_offsets(batch).to(device),
        kv_indices=torch.randperm(batch * PAGES, device=device, generator=generator, dtype=torch.int32),
        kv_last_page_len=torch.randint(1, page + 1, (batch,), device=device, generator=generator, dtype=torch.int32),
    )


def make_offsets(batch: int) -> torch.Tensor:
    """Offsets of the sequences' pages."""
    counts = [PAGES + (PAGES // 2 if index % 2 else -PAGES // 2) for index in range(batch)]
    if batch % 2:
        counts[-1] = PAGES
    return torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
