import torch
import triton
import triton.language as tl


@triton.jit
def add_request(
    indptr_ptr,
    x_ptr,
    y_ptr,
    keys_ptr,
    kept_ptr,
    n,
    ends,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
    SLOTS: tl.constexpr,
    MEMO: tl.constexpr,
):
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    slot = 0
    key = 0
    hit = 0
    if MEMO:
        lane = tl.arange(0, 512)
        words = tl.load(indptr_ptr + lane) * (lane * 40503 + 12345)
        key = (tl.sum(words * (lane * lane + 7)) & 0x3FFFFFFF) | 1
        slot = (key // 2) % SLOTS
        hit = (tl.load(keys_ptr + slot * tl.num_programs(0) + block) == key).to(tl.int32)
    if hit == 1:
        low = tl.load(kept_ptr + slot.to(tl.int64) * n + at, mask=at < n).to(tl.int32)
        tl.store(y_ptr + at, x + low.to(tl.float32), mask=at < n)
    else:
        low = tl.zeros([BLOCK], tl.int32)
        high = tl.zeros([BLOCK], tl.int32) + ends
        for _ in range(STEPS):
            middle = (low + high) // 2
            is_right = tl.load(indptr_ptr + middle) <= at
            is_open = high - low > 1
            low = tl.where(is_open & is_right, middle, low)
            high = tl.where(is_open & (is_right == 0), middle, high)
        tl.store(y_ptr + at, x + low.to(tl.float32), mask=at < n)
        if MEMO:
            tl.store(kept_ptr + slot.to(tl.int64) * n + at, low.to(tl.int16), mask=at < n)
            tl.store(keys_ptr + slot * tl.num_programs(0) + block, key)


memo = {}


def run(qo_indptr, x, y):
    n, ends = x.numel(), qo_indptr.numel()
    if n not in memo:
        memo[n] = (
            torch.zeros(128 * 4096, dtype=torch.int32, device=x.device),
            torch.zeros(128 * n, dtype=torch.int16, device=x.device),
        )
    keys, kept = memo[n]
    add_request[(triton.cdiv(n, 512),)](
        qo_indptr, x, y, keys, kept, n, ends, ends.bit_length(), 512, 128, False, num_warps=4
    )
