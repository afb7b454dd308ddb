import triton
import triton.language as tl


@triton.jit
def rmsnorm_rows(x, weight, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    inside = offsets < columns
    values = tl.load(x + row * columns + offsets, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values) / columns + 1e-6)
    weights = tl.load(weight + offsets, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * columns + offsets, (values * scale * weights).to(tl.bfloat16), mask=inside)


def run(hidden_states, weight, output):
    rows, columns = hidden_states.shape
    rmsnorm_rows[(rows,)](hidden_states, weight, output, columns, BLOCK=triton.next_power_of_2(columns))
