"""Gated delta rule, value-returning: decode, decode of several tokens (MTP), and prefill of ragged sequences.

A program keeps some rows of one head's state in registers and applies the tokens of a sequence in order; rows of a
state are independent of each other. The kind of op follows from the inputs: queries with three dimensions are a
prefill, integer inputs name the states of an MTP. An MTP returns its pool of states as it is; its optional buffer
for intermediate states is no output and is not written.
"""

import torch
import triton
import triton.language as tl

from .shared.kernels import softplus

ROWS = 32


@triton.jit
def recur(
    q, k, v, state, state_indices, a_log, a, dt_bias, b, offsets, output, new_state, scale, length, states,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    sequence, head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    if offsets is not None:
        first, stop = tl.load(offsets + sequence), tl.load(offsets + sequence + 1)
    else:
        first, stop = sequence * length, (sequence + 1) * length
    key_head = head // (HEADS // KEY_HEADS)
    rows, columns = part * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM)
    inside = rows[:, None] * DIM + columns[None, :]
    slot = sequence
    if state_indices is not None:
        slot = tl.load(state_indices + sequence).to(tl.int64)
        slot = tl.where(slot < 0, slot + states, slot)
    kept = tl.zeros((ROWS, DIM), tl.float32)
    if state is not None:
        limit = tl.where(stop > first, DIM, 0)  # a sequence without tokens ends with zeros
        there = state + (slot * HEADS + head) * DIM * DIM + inside
        kept = tl.load(there, mask=rows[:, None] < limit, other=0.0)
    rate = tl.exp(tl.load(a_log + head).to(tl.float32))
    bias = tl.load(dt_bias + head).to(tl.float32)
    for token in range(first, stop):
        gate = token * HEADS + head
        decay = tl.exp(-rate * softplus(tl.load(a + gate).to(tl.float32) + bias))
        beta = 1.0 / (1.0 + tl.exp(-tl.load(b + gate).to(tl.float32)))
        place = (token * KEY_HEADS + key_head) * DIM + columns
        key = tl.load(k + place).to(tl.float32)[None, :]
        query = tl.load(q + place).to(tl.float32)[None, :]
        value = tl.load(v + gate * DIM + rows).to(tl.float32)
        kept = kept * decay
        old = tl.sum(kept * key, 1)
        new = beta * value + (1.0 - beta) * old
        kept = kept - key * old[:, None] + key * new[:, None]
        tl.store(output + gate * DIM + rows, (scale * tl.sum(kept * query, 1)).to(output.dtype.element_ty))
    if new_state is not None:
        tl.store(new_state + (sequence * HEADS + head) * DIM * DIM + inside, kept)


def run(q, k, v, state, *rest):
    indices = offsets = new_state = None
    length = 1
    if q.dim() == 3:
        a_log, a, dt_bias, b, offsets, scale = rest
        sequences = len(offsets) - 1
    elif rest[0].dtype == torch.int32:
        indices, a_log, a, dt_bias, b, scale, *_ = rest
        sequences, length = q.shape[:2]
    else:
        a_log, a, dt_bias, b, scale = rest
        sequences = len(q)
    key_heads, (heads, dim) = k.shape[-2], v.shape[-2:]
    output = torch.empty_like(v)
    if indices is None:
        new_state = torch.empty((sequences, heads, dim, dim), dtype=torch.float32, device=q.device)
    recur[sequences, heads, triton.cdiv(dim, ROWS)](
        q, k, v, state, indices, a_log, a, dt_bias, b, offsets, output, new_state,
        float(scale or dim**-0.5), length, 0 if state is None else len(state),
        KEY_HEADS=key_heads, HEADS=heads, DIM=dim, ROWS=ROWS, num_warps=4,
    )  # fmt: skip
    return output, state.clone() if new_state is None else new_state
