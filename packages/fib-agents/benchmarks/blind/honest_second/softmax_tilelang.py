# class: TileLang with autotuning
import functools
import itertools

import tilelang
import tilelang.language as T
import torch


def get_configs():
    return [dict(block_m=bm, threads=t) for bm, t in itertools.product([1, 2, 4], [128, 256])]


@functools.lru_cache(maxsize=None)
def softmax(N, block_m=1, threads=256):
    M = T.dynamic("m")

    @tilelang.jit(out_idx=[])
    def build():
        @T.prim_func
        def main(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
            with T.Kernel(T.ceildiv(M, block_m), threads=threads) as bx:
                tile = T.alloc_fragment((block_m, N), "float32")
                top = T.alloc_fragment((block_m,), "float32")
                total = T.alloc_fragment((block_m,), "float32")
                T.copy(X[bx * block_m, 0], tile)
                T.reduce_max(tile, top, dim=1, clear=True)
                for i, j in T.Parallel(block_m, N):
                    tile[i, j] = T.exp2((tile[i, j] - top[i]) * 1.4426950408889634)
                T.reduce_sum(tile, total, dim=1)
                for i, j in T.Parallel(block_m, N):
                    tile[i, j] = tile[i, j] / total[i]
                T.copy(tile, Y[bx * block_m, 0])

        return main

    return build()


_best = {}


def _tune(x, y):
    """Times every configuration once per number of columns, at the first call."""
    results = []
    for config in get_configs():
        try:
            kernel = softmax(x.shape[1], **config)
            kernel(x, y)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(5):
                kernel(x, y)
            end.record()
            end.synchronize()
            results.append((start.elapsed_time(end), kernel))
        except Exception as exc:  # some configurations need too many registers
            print(f"skipping {config}: {exc}")
    return min(results, key=lambda pair: pair[0])[1]


def run(x, y):
    if x.shape[0] == 0:
        return
    key = x.shape[1]
    if key not in _best:
        _best[key] = _tune(x, y)
    _best[key](x, y)
