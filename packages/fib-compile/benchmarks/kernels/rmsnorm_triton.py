import triton
import triton.language as tl


@triton.jit
def rmsnorm(x, weight, y, columns: tl.constexpr):
    row = tl.program_id(0)
    place = tl.arange(0, columns)
    values = tl.load(x + row * columns + place)
    scale = 1 / tl.sqrt(tl.sum(values * values) / columns + 1e-6)
    tl.store(y + row * columns + place, values * scale * tl.load(weight + place))


def run(x, weight, y):
    rmsnorm[(x.shape[0],)](x, weight, y, x.shape[1])
