import tilelang
import tilelang.language as T
from tilelang.language.kernel import Kernel


@tilelang.jit(target="c")
def compiled(n):
    @T.prim_func
    def scale(x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32")):
        with Kernel(1) as _:
            for i in T.serial(n):
                y[i] = x[i] * T.float32(2)

    return scale


def run(x, y):
    compiled(len(x))(x, y)
