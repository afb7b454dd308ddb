"""Mixture of experts with SwiGLU, value-returning: weights in fp8 with block or expert scales, or in float32.

Tokens choose experts by torch operations. Pairs of a token and an expert are sorted by expert on the device, and
programs work on tiles of pairs of one expert. The grid has as many tiles as there can be at most; programs beyond the
last tile end at once. Each pair has a row of its own in the second product, and a third kernel adds the rows of a
token, so results do not depend on the order of execution.
"""

import torch
import triton
import triton.language as tl

SCALE_BLOCK = 128
"""Elements of a quantization block, in each dimension."""
TOP_K = 8
GROUPS = {256: (8, 4)}
"""Groups of experts and how many a token may use, by the number of experts; one group otherwise."""


@triton.jit
def product(a, b, total, INTERPRETED: tl.constexpr):
    if b.dtype != tl.float32:
        a, b = a.to(tl.bfloat16), b.to(tl.bfloat16)  # holds each number of fp8
    else:
        a = a.to(tl.float32)
    if INTERPRETED:  # the interpreter takes the bits of bfloat16 for integers
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total)


@triton.jit
def find_tile(counts, tile, EXPERTS: tl.constexpr, EVERY: tl.constexpr, ROWS: tl.constexpr):
    """The expert of a tile, its first pair among the sorted ones, and the end of its pairs."""
    every = tl.arange(0, EVERY)
    sizes = tl.load(counts + every, mask=every < EXPERTS, other=0)
    tiles = (sizes + ROWS - 1) // ROWS
    is_before = tl.cumsum(tiles, 0) <= tile
    expert = tl.sum((is_before & (every < EXPERTS)).to(tl.int32), 0)
    pairs = tl.sum(tl.where(every < expert, sizes, 0), 0)
    first = pairs + (tile - tl.sum(tl.where(every < expert, tiles, 0), 0)) * ROWS
    return expert, first, pairs + tl.sum(tl.where(every == expert, sizes, 0), 0)


@triton.jit
def first_product(
    x, w, x_scale, w_scale, up_scale, gate_scale, factors, order, counts, inner, tokens,
    TOP_K: tl.constexpr, EXPERTS: tl.constexpr, EVERY: tl.constexpr, HIDDEN: tl.constexpr, INNER: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    expert, first, end = find_tile(counts, tl.program_id(0), EXPERTS, EVERY, ROWS)
    if expert < EXPERTS:
        places = first + tl.arange(0, ROWS)
        valid = places < end
        pairs = tl.load(order + places, mask=valid, other=0)
        token = (pairs // TOP_K).to(tl.int64)
        start = tl.program_id(1) * COLUMNS
        columns, depth = start + tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
        base = expert.to(tl.int64) * 2 * INNER * HIDDEN
        left = x + token[:, None] * HIDDEN + depth[None, :]
        right = w + base + columns[None, :] * HIDDEN + depth[:, None]
        is_column = (columns < INNER)[None, :]
        up = tl.zeros((ROWS, COLUMNS), tl.float32)
        gate = tl.zeros((ROWS, COLUMNS), tl.float32)
        for k in range(0, HIDDEN, DEPTH):
            a = tl.load(left + k, mask=valid[:, None], other=0.0)
            b_up = tl.load(right + k, mask=is_column, other=0.0)
            b_gate = tl.load(right + INNER * HIDDEN + k, mask=is_column, other=0.0)
            if x_scale is not None:
                zeros = tl.zeros((ROWS, COLUMNS), tl.float32)
                block = k // BLOCK
                row_scale = tl.load(x_scale + block * tokens + token, mask=valid, other=0.0)
                there = w_scale + (expert * (2 * INNER // BLOCK) + start // BLOCK) * (HIDDEN // BLOCK) + block
                of_gate = there + (INNER // BLOCK) * (HIDDEN // BLOCK)
                up += product(a, b_up, zeros, INTERPRETED) * (row_scale * tl.load(there))[:, None]
                gate += product(a, b_gate, zeros, INTERPRETED) * (row_scale * tl.load(of_gate))[:, None]
            else:
                up = product(a, b_up, up, INTERPRETED)
                gate = product(a, b_gate, gate, INTERPRETED)
        if factors is not None:  # a factor of the input
            factor = tl.load(factors + pairs, mask=valid, other=0.0)[:, None]
            up, gate = up * factor, gate * factor
        if up_scale is not None:
            up, gate = up * tl.load(up_scale + expert), gate * tl.load(gate_scale + expert)
        found = up * gate / (1.0 + tl.exp(-gate))
        there = inner + places.to(tl.int64)[:, None] * INNER + columns[None, :]
        tl.store(there, found.to(inner.dtype.element_ty), mask=valid[:, None] & is_column)


@triton.jit
def second_product(
    inner, w, w_scale, scale, factors, order, counts, parts,
    EXPERTS: tl.constexpr, EVERY: tl.constexpr, HIDDEN: tl.constexpr, INNER: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    expert, first, end = find_tile(counts, tl.program_id(0), EXPERTS, EVERY, ROWS)
    if expert < EXPERTS:
        places = first + tl.arange(0, ROWS)
        valid = places < end
        start = tl.program_id(1) * COLUMNS
        columns, depth = start + tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
        left = inner + places.to(tl.int64)[:, None] * INNER + depth[None, :]
        right = w + expert.to(tl.int64) * HIDDEN * INNER + columns[None, :] * INNER + depth[:, None]
        is_column = (columns < HIDDEN)[None, :]
        found = tl.zeros((ROWS, COLUMNS), tl.float32)
        for k in range(0, INNER, DEPTH):
            a = tl.load(left + k, mask=valid[:, None], other=0.0)
            b = tl.load(right + k, mask=is_column, other=0.0)
            if w_scale is not None:
                there = (expert * (HIDDEN // BLOCK) + start // BLOCK) * (INNER // BLOCK) + k // BLOCK
                zeros = tl.zeros((ROWS, COLUMNS), tl.float32)
                found += product(a, b, zeros, INTERPRETED) * tl.load(w_scale + there)
            else:
                found = product(a, b, found, INTERPRETED)
        if scale is not None:
            found *= tl.load(scale + expert)
        pairs = tl.load(order + places, mask=valid, other=0)
        if factors is not None:
            found *= tl.load(factors + pairs, mask=valid, other=0.0)[:, None]
        there = parts + pairs.to(tl.int64)[:, None] * HIDDEN + columns[None, :]
        tl.store(there, found, mask=valid[:, None] & is_column)


@triton.jit
def add_rows(
    parts, experts, output, TOP_K: tl.constexpr, EXPERTS: tl.constexpr, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for index in range(TOP_K):
        pair = token * TOP_K + index
        width = tl.where(tl.load(experts + pair) < EXPERTS, HIDDEN, 0)
        total += tl.load(parts + pair * HIDDEN + columns, mask=columns < width, other=0.0)
    tl.store(output + token * HIDDEN + columns, total.to(output.dtype.element_ty), mask=columns < HIDDEN)


# -- routing -----------------------------------------------------------------------------------


def renormalized(logits):
    """The best experts, with softmax over them."""
    best, experts = logits.float().topk(TOP_K, dim=-1)
    return experts, best.softmax(dim=-1)


def single(logits):
    """The best expert, weighted by its sigmoid."""
    weights, experts = logits.float().sigmoid().topk(1, dim=-1)
    return experts, weights


def grouped(logits, bias, factor):
    """The best experts by sigmoid and bias of the best groups, by their two best experts."""
    tokens, count = logits.shape
    scores = 1.0 / (1.0 + torch.exp(-logits.float()))
    biased = scores + bias.float().reshape(-1)
    groups, kept = GROUPS.get(count, (1, 1))
    if kept < groups:
        sums = biased.view(tokens, groups, -1).topk(2, dim=2).values.sum(dim=2)
        is_kept = torch.zeros_like(sums).scatter_(1, sums.topk(kept, dim=1).indices, 1.0)
        is_cut = (is_kept == 0).repeat_interleave(count // groups, dim=1, output_size=count)
        biased = biased.masked_fill(is_cut, torch.finfo(torch.float32).min)
    experts = biased.topk(TOP_K, dim=1).indices
    chosen = scores.gather(1, experts)
    return experts, chosen / (chosen.sum(dim=1, keepdim=True) + 1e-20) * factor


def unpacked(packed):
    """Experts in the high half of each integer, weights as bfloat16 in the low half."""
    weights = (packed & 0xFFFF).to(torch.int16).view(torch.bfloat16).float()
    return (packed >> 16).long(), weights


# -- experts -----------------------------------------------------------------------------------


def apply_experts(x, w1, w2, experts, weights, *, on_input=False, offset=0, blocks=(None,) * 3, scales=(None,) * 3):
    """The sum of the chosen experts' outputs for each token.

    Args:
        x: ``[tokens, hidden]``.
        w1: ``[experts, 2 * inner, hidden]``.
        w2: ``[experts, hidden, inner]``.
        experts: ``[tokens, top_k]``; those outside of w1 are left out.
        weights: ``[tokens, top_k]``.
        on_input: Whether weights are factors of the input, rather than of the output.
        offset: The number of the first expert in w1.
        blocks: Block scales of x, w1 and w2.
        scales: Expert scales of the two halves of the first product, and of the second product.
    """
    (tokens, hidden), (count, _, inner), top_k = x.shape, w2.shape[:1] + w1.shape[1:2] + w2.shape[2:], experts.shape[1]
    local = experts.reshape(-1) - offset
    local = torch.where((local >= 0) & (local < count), local, count)
    order = local.argsort(stable=True)
    counts = torch.zeros(count + 1, dtype=torch.int32, device=x.device)
    counts.scatter_add_(0, local, torch.ones_like(local, dtype=torch.int32))
    weights = weights.float().reshape(-1).contiguous()

    pairs = tokens * top_k
    rows = 64 if pairs > 32 * count else 16
    tiles = pairs // rows + min(pairs, count)
    shape = {"EXPERTS": count, "EVERY": triton.next_power_of_2(count), "HIDDEN": hidden, "INNER": inner}
    shape |= {"BLOCK": SCALE_BLOCK, "ROWS": rows, "COLUMNS": 64, "DEPTH": 32 if w1.dtype == torch.float32 else 128}
    shape |= {"INTERPRETED": not x.is_cuda, "num_warps": 4, "num_stages": 3}
    kept = torch.float32 if w1.dtype == torch.float32 else torch.bfloat16
    middle = torch.empty((pairs, inner), dtype=kept, device=x.device)
    parts = torch.empty((pairs, hidden), dtype=torch.float32, device=x.device)
    output = torch.empty((tokens, hidden), dtype=torch.bfloat16, device=x.device)
    first_product[tiles, triton.cdiv(inner, 64)](
        x, w1, blocks[0], blocks[1], scales[0], scales[1], weights if on_input else None, order, counts, middle, tokens,
        TOP_K=top_k, **shape,
    )  # fmt: skip
    second_product[tiles, triton.cdiv(hidden, 64)](
        middle, w2, blocks[2], scales[2], None if on_input else weights, order, counts, parts, **shape
    )
    add_rows[tokens, triton.cdiv(hidden, 1024)](
        parts, local, output, TOP_K=top_k, EXPERTS=count, HIDDEN=hidden, COLUMNS=1024
    )
    return output


def run(routing, *rest):
    """Tell the variants apart by their inputs; a bias beside a single expert is ignored, as the definitions say."""
    if routing.dtype == torch.int32:
        x, w1, w2 = rest
        return apply_experts(x, w1, w2, *unpacked(routing), on_input=routing.shape[1] == 1)
    if len(rest) == 9:
        bias, x, x_scale, w1, w1_scale, w2, w2_scale, offset, factor = rest
        chosen = grouped(routing, bias, factor)
        return apply_experts(x, w1, w2, *chosen, offset=offset, blocks=(x_scale, w1_scale, w2_scale))
    if rest[0].dtype == torch.bfloat16:
        x, w1, w2, *bias = rest
        chosen = single(routing) if bias else renormalized(routing)
        return apply_experts(x, w1, w2, *chosen, on_input=bool(bias))
    if rest[1].dim() == 2:
        x, x_scale, w1, w1_scale, w2, w2_scale = rest
        return apply_experts(x, w1, w2, *renormalized(routing), blocks=(x_scale, w1_scale, w2_scale))
    x, w1, up_scale, gate_scale, w2, scale, *bias = rest
    chosen = single(routing) if bias else renormalized(routing)
    return apply_experts(x, w1, w2, *chosen, on_input=bool(bias), scales=(up_scale, gate_scale, scale))
