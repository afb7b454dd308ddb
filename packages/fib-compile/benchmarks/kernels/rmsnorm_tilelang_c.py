import tilelang
import tilelang.language as T  # noqa: N812 - as its users write it
from tilelang.language.kernel import Kernel


@tilelang.jit(target="c")
def compiled(rows, columns):
    @T.prim_func
    def rmsnorm(
        x: T.Tensor((rows, columns), "float32"),
        weight: T.Tensor((columns,), "float32"),
        y: T.Tensor((rows, columns), "float32"),
    ):
        with Kernel(1) as _:
            for i in T.serial(rows):
                y[i, 0] = T.float32(0)
                for j in T.serial(columns):
                    y[i, 0] += x[i, j] * x[i, j]
                y[i, 0] = T.float32(1) / T.sqrt(y[i, 0] / T.float32(columns) + T.float32(1e-6))
                for j in T.serial(columns):
                    k = columns - 1 - j  # the first element, which holds the scale, is the last to be overwritten
                    y[i, k] = x[i, k] * y[i, 0] * weight[k]

    return rmsnorm


def run(x, weight, y):
    compiled(*x.shape)(x, weight, y)
