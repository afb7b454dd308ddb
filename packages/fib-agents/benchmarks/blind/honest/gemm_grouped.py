# class: Triton, grouped tiles with pruned configurations
import torch
import triton
import triton.language as tl


def _prune(configs, named_args, **kwargs):
    M = named_args["M"]
    return [c for c in configs if c.kwargs["BM"] <= max(16, triton.next_power_of_2(M))] or configs[:1]


_CONFIGS = [
    triton.Config({"BM": m, "BN": n, "BK": 64, "GROUP": 8}, num_warps=w, num_stages=s)
    for m, n, w, s in [(16, 64, 4, 5), (64, 128, 4, 4), (128, 128, 8, 3), (128, 256, 8, 3)]
]


@triton.autotune(configs=_CONFIGS, key=["M", "N", "K"], prune_configs_by={"early_config_prune": _prune})
@triton.heuristics({"EVEN_K": lambda args: args["K"] % args["BK"] == 0})
@triton.jit
def _gemm(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, EVEN_K: tl.constexpr
):
    pid = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = pid // (GROUP * tiles_n)
    first = group * GROUP
    size = tl.minimum(tiles_m - first, GROUP)
    rm = (first + pid % size) * BM + tl.arange(0, BM)
    rn = (pid % (GROUP * tiles_n)) // size * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        rk = k * BK + tl.arange(0, BK)
        if EVEN_K:
            x = tl.load(a + rm[:, None] * K + rk[None, :], mask=rm[:, None] < M, other=0.0)
            y = tl.load(b + rn[None, :] * K + rk[:, None], mask=rn[None, :] < N, other=0.0)
        else:
            x = tl.load(a + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
            y = tl.load(b + rn[None, :] * K + rk[:, None], mask=(rn[None, :] < N) & (rk[:, None] < K), other=0.0)
        acc = tl.dot(x, y, acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(c.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))


def run(A, B):
    (M, K), N = A.shape, B.shape[0]
    C = A.new_empty((M, N))
    grid = lambda meta: (triton.cdiv(M, meta["BM"]) * triton.cdiv(N, meta["BN"]),)
    _gemm[grid](A.contiguous(), B.contiguous(), C, M, N, K)
    return C
