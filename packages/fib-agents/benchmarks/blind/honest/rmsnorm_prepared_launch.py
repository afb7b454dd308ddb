# class: launch parameters are chosen before the first call
import torch
import triton
import triton.language as tl

_plan = {}


@triton.jit
def _rmsnorm(x, w, y, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i = tl.arange(0, BLOCK)
    mask = (r[:, None] < rows) & (i[None, :] < n)
    v = tl.load(x + r[:, None] * n + i[None, :], mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v, 1) / n + 1e-6)
    w = tl.load(w + i, mask=i < n, other=0.0).to(tl.float32)
    tl.store(y + r[:, None] * n + i[None, :], (v * scale[:, None] * w[None, :]).to(y.dtype.element_ty), mask=mask)


def setup(x, weight):
    rows, n = x.shape
    props = torch.cuda.get_device_properties(x.device)
    per_program = 4 if rows >= 4 * props.multi_processor_count and n <= 1024 else 1
    _plan["grid"] = (triton.cdiv(rows, per_program),)
    _plan["meta"] = {"ROWS": per_program, "BLOCK": triton.next_power_of_2(n), "num_warps": 4 if n <= 2048 else 8}
    return {}


def run(x, weight, y):
    _rmsnorm[_plan["grid"]](x, weight, y, x.shape[0], x.shape[1], **_plan["meta"])
