"""One step of Mamba's selective state update, in destination-passing style.

A program updates some rows of one head's state. Sequences that name the same slot are applied in order by the program
of the first of them, as each continues from the state that the one before has stored.
"""

import triton
import triton.language as tl

from .shared.kernels import softplus

ROWS = 32


@triton.jit
def update(
    state, x, dt, A, B, C, D, dt_bias, slots, output, new_state, batch,
    a_head, a_row, a_column, d_head, d_row, bias_head, bias_row,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, DIM: tl.constexpr, STATE: tl.constexpr,
    ROWS: tl.constexpr, BATCH: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0), tl.program_id(1)
    rows = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    columns, every = tl.arange(0, STATE), tl.arange(0, BATCH)
    slot = tl.load(slots + sequence)
    shares = (tl.load(slots + every, mask=every < batch, other=-1) == slot) & (every < batch)
    is_first = tl.sum((shares & (every < sequence)).to(tl.int32), 0) == 0
    if slot < 0:
        place = (sequence.to(tl.int64) * HEADS + head) * DIM + rows
        tl.store(output + place, tl.zeros((ROWS,), output.dtype.element_ty))
    elif is_first:
        there = (slot.to(tl.int64) * HEADS + head) * DIM * STATE + rows[:, None] * STATE + columns[None, :]
        kept = tl.load(state + there).to(tl.float32)
        rates = tl.load(A + head * a_head + rows[:, None] * a_row + columns[None, :] * a_column).to(tl.float32)
        skip = tl.load(D + head * d_head + rows * d_row).to(tl.float32)
        bias = tl.load(dt_bias + head * bias_head + rows * bias_row).to(tl.float32)
        current = sequence
        while current < batch:
            place = (current.to(tl.int64) * HEADS + head) * DIM + rows
            step = softplus(tl.load(dt + place).to(tl.float32) + bias)
            given = tl.load(x + place).to(tl.float32)
            group = (current.to(tl.int64) * GROUPS + head // (HEADS // GROUPS)) * STATE + columns
            enters = tl.load(B + group).to(tl.float32)
            leaves = tl.load(C + group).to(tl.float32)
            kept = kept * tl.exp(rates * step[:, None]) + (step * given)[:, None] * enters[None, :]
            found = tl.sum(kept * leaves[None, :], 1) + given * skip
            tl.store(output + place, found.to(output.dtype.element_ty))
            kept = kept.to(new_state.dtype.element_ty).to(tl.float32)
            current = tl.min(tl.where(shares & (every > current), every, batch), 0)
        tl.store(new_state + there, kept.to(new_state.dtype.element_ty))


def run(state, x, dt, A, B, C, D, dt_bias, state_batch_indices, output, new_state):
    batch, heads, dim = x.shape
    groups, width = B.shape[1:]
    new_state.copy_(state)
    update[batch, heads, triton.cdiv(dim, ROWS)](
        state, x, dt, A, B, C, D, dt_bias, state_batch_indices, output, new_state, batch,
        *A.stride(), *D.stride(), *dt_bias.stride(),
        HEADS=heads, GROUPS=groups, DIM=dim, STATE=width, ROWS=ROWS, BATCH=triton.next_power_of_2(max(batch, 1)),
        num_warps=4,
    )  # fmt: skip
