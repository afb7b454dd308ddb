import triton
import triton.language as tl


@triton.jit
def gemm_tile(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        depth = start + tl.arange(0, BK)
        left = tl.load(
            a + rows[:, None] * K + depth[None, :], mask=(rows[:, None] < M) & (depth[None, :] < K), other=0.0
        )
        right = tl.load(
            b + columns[None, :] * K + depth[:, None], mask=(columns[None, :] < N) & (depth[:, None] < K), other=0.0
        )
        total = tl.dot(left, right, total, input_precision="ieee")
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + rows[:, None] * N + columns[None, :], total, mask=inside)


def run(A, B, C):
    (M, K), N = A.shape, B.shape[0]
    grid = (triton.cdiv(M, 64), triton.cdiv(N, 64))
    gemm_tile[grid](A, B, C, M, N, K, BM=64, BN=64, BK=64)
