import torch
import triton
import triton.language as tl


@triton.jit
def place_all(
    ids_ptr,
    place_ptr,
    counts_ptr,
    keys_ptr,
    kept_ptr,
    kept_counts_ptr,
    n,
    E: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    SLOTS: tl.constexpr,
    MEMO: tl.constexpr,
):
    e = tl.program_id(0)
    slot = 0
    key = 0
    hit = 0
    if MEMO:
        lane = tl.arange(0, 512)
        words = tl.load(ids_ptr + lane) * (lane * 40503 + 12345)
        key = (tl.sum(words * (lane * lane + 7)) & 0x3FFFFFFF) | 1
        slot = (key // 2) % SLOTS
        hit = (tl.load(keys_ptr + slot * E + e) == key).to(tl.int32)
    if hit == 1:
        at = e * CHUNK + tl.arange(0, CHUNK)
        tl.store(place_ptr + at, tl.load(kept_ptr + slot.to(tl.int64) * n + at, mask=at < n), mask=at < n)
        tl.store(counts_ptr + e, tl.load(kept_counts_ptr + slot * E + e))
    else:
        base = 0
        for begin in range(0, n, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            ids = tl.load(ids_ptr + at, mask=at < n, other=1000000)
            base += tl.sum((ids < e).to(tl.int32))
        first = base
        for begin in range(0, n, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            ids = tl.load(ids_ptr + at, mask=at < n, other=1000000)
            mine = (ids == e).to(tl.int32)
            rank = base + tl.cumsum(mine, 0) - 1
            tl.store(place_ptr + at, rank, mask=mine == 1)
            if MEMO:
                tl.store(kept_ptr + slot.to(tl.int64) * n + at, rank, mask=mine == 1)
            base += tl.sum(mine)
        tl.store(counts_ptr + e, base - first)
        if MEMO:
            tl.store(kept_counts_ptr + slot * E + e, base - first)
            tl.store(keys_ptr + slot * E + e, key)


memo = {}


def run(topk_ids, place, counts):
    n = topk_ids.numel()
    if n not in memo:
        zeros = lambda size: torch.zeros(size, dtype=torch.int32, device=topk_ids.device)
        memo[n] = zeros(256 * 64), zeros(256 * n), zeros(256 * 64)
    keys, kept, kept_counts = memo[n]
    place_all[(64,)](
        topk_ids,
        place,
        counts,
        keys,
        kept,
        kept_counts,
        n,
        64,
        2048,
        triton.next_power_of_2(triton.cdiv(n, 64)),
        256,
        False,
        num_warps=8,
    )
