# class: TileLang
import functools

import tilelang
import tilelang.language as T


@functools.cache
def _kernel(N, K):
    M = T.dynamic("m")

    @tilelang.jit
    def build():
        @T.prim_func
        def gemm(A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float16")):
            with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 128), threads=128) as (bx, by):
                a = T.alloc_shared((128, 32), "float16")
                b = T.alloc_shared((128, 32), "float16")
                c = T.alloc_fragment((128, 128), "float")
                T.clear(c)
                for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
                    T.copy(A[by * 128, k * 32], a)
                    T.copy(B[bx * 128, k * 32], b)
                    T.gemm(a, b, c, transpose_B=True)
                T.copy(c, C[by * 128, bx * 128])

        return gemm

    return build()


def run(A, B, C):
    _kernel(B.shape[0], A.shape[1])(A, B, C)
