# class: integers are read anew at each call
import torch
import triton
import triton.language as tl


@triton.jit
def _gather(pages, indptr, indices, out, width, page_size, BLOCK: tl.constexpr):
    request, slot = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(indptr + request), tl.load(indptr + request + 1)
    page = slot // page_size
    if begin + page < end:
        source = tl.load(indices + begin + page).to(tl.int64) * page_size + slot % page_size
        target = begin.to(tl.int64) * page_size + slot
        i = tl.arange(0, BLOCK)
        tl.store(out + target * width + i, tl.load(pages + source * width + i, mask=i < width), mask=i < width)


def run(pages, indptr, indices):
    count, page_size, width = pages.shape
    lengths = (indptr[1:] - indptr[:-1]).cpu()
    out = torch.empty((int(lengths.sum()) * page_size, width), device=pages.device, dtype=pages.dtype)
    longest = int(lengths.max()) * page_size if lengths.numel() else 0
    if longest:
        _gather[(lengths.numel(), longest)](
            pages, indptr, indices, out, width, page_size, BLOCK=triton.next_power_of_2(width)
        )
    return out
