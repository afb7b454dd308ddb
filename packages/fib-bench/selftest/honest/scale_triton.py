import triton
import triton.language as tl


@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    tl.store(y + place, 2 * tl.load(x + place, mask=inside), mask=inside)


def run(x, y):
    scale[(triton.cdiv(len(x), 4096),)](x, y, len(x), BLOCK=4096)
