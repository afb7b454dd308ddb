import triton
import triton.language as tl


@triton.jit
def kernel(x, weight, y, columns, BLOCK: tl.constexpr):
    row, place = tl.program_id(0), tl.arange(0, BLOCK)
    inside = place < columns
    values = tl.load(x + row * columns + place, mask=inside, other=0.0)
    scale = tl.rsqrt(tl.sum(values * values) / columns + 1e-6)
    tl.store(y + row * columns + place, values * scale * tl.load(weight + place, mask=inside, other=0.0), mask=inside)


def run(x, weight, y):
    kernel[(len(x),)](x, weight, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
