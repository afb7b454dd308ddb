# class: views, aliases and addresses that are only checked for alignment
import torch
import triton
import triton.language as tl


@triton.jit
def _add(a, b, c, n, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if ALIGNED:
        i = tl.max_contiguous(tl.multiple_of(i, BLOCK), BLOCK)
    tl.store(c + i, tl.load(a + i, mask=i < n) + tl.load(b + i, mask=i < n), mask=i < n)


def run(a, b, c):
    n = a.numel()
    aligned = all(t.data_ptr() % 16 == 0 for t in (a, b, c))
    flat = (t.view(-1) if t.is_contiguous() else t.reshape(-1) for t in (a, b))
    target = c if c.is_contiguous() else torch.empty_like(c, memory_format=torch.contiguous_format)
    _add[(triton.cdiv(n, 2048),)](*flat, target, n, BLOCK=2048, ALIGNED=aligned)
    if target is not c:
        c.copy_(target)
