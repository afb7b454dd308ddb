"""Triton: tries several configurations once for each shape."""

import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, num_warps=warps, num_stages=stages)
    for m, n, k, warps, stages in ((64, 64, 32, 4, 2), (64, 32, 32, 4, 3), (32, 64, 32, 2, 3), (32, 32, 64, 2, 2))
]


@triton.autotune(configs=CONFIGS, key=["M", "N", "K"])
@triton.jit
def kernel(x, weight, y, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        place = start + tl.arange(0, BLOCK_K)
        a = tl.load(x + rows[:, None] * K + place[None, :], mask=(rows[:, None] < M) & (place[None, :] < K), other=0.0)
        b = tl.load(
            weight + columns[None, :] * K + place[:, None],
            mask=(columns[None, :] < N) & (place[:, None] < K),
            other=0.0,
        )
        total += tl.dot(a, b, input_precision="ieee")
    tl.store(y + rows[:, None] * N + columns[None, :], total, mask=(rows[:, None] < M) & (columns[None, :] < N))


def run(x, weight, y):
    (m, k), n = x.shape, len(weight)
    kernel[lambda meta: (triton.cdiv(m, meta["BLOCK_M"]), triton.cdiv(n, meta["BLOCK_N"]))](x, weight, y, m, n, k)
