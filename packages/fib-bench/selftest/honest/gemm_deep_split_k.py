"""Triton: splits the sum over programs, which add their parts up atomically in float32."""

import triton
import triton.language as tl


@triton.jit
def kernel(
    x, weight, y, M, N, K, PART: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, PART, BLOCK_K):
        place = tl.program_id(2) * PART + start + tl.arange(0, BLOCK_K)
        a = tl.load(x + rows[:, None] * K + place[None, :], mask=(rows[:, None] < M) & (place[None, :] < K), other=0.0)
        b = tl.load(
            weight + columns[None, :] * K + place[:, None],
            mask=(columns[None, :] < N) & (place[:, None] < K),
            other=0.0,
        )
        total += tl.dot(a, b, input_precision="ieee")
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.atomic_add(y + rows[:, None] * N + columns[None, :], total, mask=inside)


def run(x, weight, y):
    (m, k), n = x.shape, len(weight)
    y.zero_()
    grid = triton.cdiv(m, 32), triton.cdiv(n, 32), triton.cdiv(k, 512)
    kernel[grid](x, weight, y, m, n, k, PART=512, BLOCK_M=32, BLOCK_N=32, BLOCK_K=32)
