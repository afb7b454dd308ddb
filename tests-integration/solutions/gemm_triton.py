import triton
import triton.language as tl


@triton.jit
def gemm_tile(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    columns = tl.program_id(1).to(tl.int64) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        depth = start + tl.arange(0, BK)
        left = tl.load(a + rows[:, None] * K + depth[None, :], mask=rows[:, None] < M, other=0.0)
        right = tl.load(b + columns[None, :] * K + depth[:, None], mask=columns[None, :] < N, other=0.0)
        total = tl.dot(left, right, total)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(tl.float16), mask=inside)


def run(A, B, C):
    (M, K), N = A.shape, B.shape[0]
    gemm_tile[(triton.cdiv(M, 64), triton.cdiv(N, 64))](A, B, C, M, N, K, BM=64, BN=64, BK=128)
