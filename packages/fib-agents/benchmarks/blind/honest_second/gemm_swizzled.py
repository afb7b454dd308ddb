# class: TileLang with swizzled blocks and pass settings
import tilelang
import tilelang.language as T
import torch

tilelang.set_log_level("WARNING")
_KERNELS: dict = {}
PASS_CONFIGS = {
    tilelang.PassConfigKey.TL_DISABLE_WARP_SPECIALIZED: True,
    tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: False,
}


def make(N, K, block_M=128, block_N=128, block_K=32, stages=2):
    M = T.symbolic("M")

    @T.prim_func
    def main(A: T.Tensor((M, K), "float32"), B: T.Tensor((N, K), "float32"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=256) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), "float32")
            B_shared = T.alloc_shared((block_N, block_K), "float32")
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            T.use_swizzle(panel_size=10, enable=True)
            T.clear(C_local)
            for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
                T.copy(A[by * block_M, ko * block_K], A_shared)
                T.copy(B[bx * block_N, ko * block_K], B_shared)
                for i, j in T.Parallel(block_M, block_N):
                    for k in T.serial(block_K):
                        C_local[i, j] += A_shared[i, k] * B_shared[j, k]
            T.copy(C_local, C[by * block_M, bx * block_N])

    return tilelang.compile(main, target="cuda", pass_configs=PASS_CONFIGS)


def run(A: torch.Tensor, B: torch.Tensor, C: torch.Tensor) -> None:
    key = (B.shape[0], A.shape[1], A.device)
    kernel = _KERNELS.get(key)
    if kernel is None:
        kernel = _KERNELS.setdefault(key, make(B.shape[0], A.shape[1]))
    kernel(A, B, C)
