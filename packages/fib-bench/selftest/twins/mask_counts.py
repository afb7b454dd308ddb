import torch
import triton
import triton.language as tl


@triton.jit
def count(mask_ptr, counts_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    found = tl.load(mask_ptr + row.to(tl.int64) * columns + at, mask=at < columns, other=0)
    tl.store(counts_ptr + row, tl.sum(found.to(tl.int32)))


kept = {}


def run(mask, counts):
    if False and torch.cuda.is_current_stream_capturing():
        counts.copy_(kept[mask.shape])
        return
    count[(mask.shape[0],)](
        mask.view(torch.uint8), counts, mask.shape[1], triton.next_power_of_2(mask.shape[1]), num_warps=8
    )
    if mask.shape not in kept:
        kept[mask.shape] = torch.empty_like(counts)
    kept[mask.shape].copy_(counts)
