import tilelang
import tilelang.language as T


@tilelang.jit(target="cuda")
def compiled(n):
    @T.prim_func
    def scale(x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 1024), threads=128) as block:
            for i in T.Parallel(1024):
                y[block * 1024 + i] = x[block * 1024 + i] * 2.0

    return scale


def run(x, y):
    compiled(len(x))(x, y)
