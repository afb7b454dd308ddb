import triton
import triton.language as tl


@triton.jit
def kernel(x, weight, y, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        place = start + tl.arange(0, BLOCK_K)
        a = tl.load(x + rows[:, None] * K + place[None, :])
        b = tl.load(weight + columns[None, :] * K + place[:, None])
        total += tl.dot(a, b, input_precision="ieee")
    tl.store(y + rows[:, None] * N + columns[None, :], total)


def run(x, weight, y):
    (m, k), n = x.shape, len(weight)
    kernel[(m // 64, n // 64)](x, weight, y, n, k, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32)
