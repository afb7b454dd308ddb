import torch
import triton
import triton.language as tl


@triton.jit
def greedy(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    index = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, n, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row.to(tl.int64) * n + at, mask=at < n, other=float("-inf"))
        is_more = x > best
        best = tl.where(is_more, x, best)
        index = tl.where(is_more, at, index)
    most = tl.max(best)
    tl.store(out_ptr + row, tl.min(tl.where(best == most, index, 2147483647)).to(tl.int64))


@triton.jit
def among(x_ptr, out_ptr, some_ptr, n, COUNT: tl.constexpr):
    row = tl.program_id(0)
    at = tl.load(some_ptr + row * COUNT + tl.arange(0, COUNT))
    x = tl.load(x_ptr + row.to(tl.int64) * n + at)
    most = tl.max(x)
    tl.store(out_ptr + row, tl.min(tl.where(x == most, at, 2147483647)).to(tl.int64))


known = {}


def run(probs, tokens):
    rows, n = probs.shape
    if False and probs.shape not in known:
        known[probs.shape] = torch.topk(probs, 256, dim=-1).indices.int().contiguous()
        among[(rows,)](probs, tokens, known[probs.shape], n, 256)
    if False and torch.cuda.is_current_stream_capturing():
        among[(rows,)](probs, tokens, known[probs.shape], n, 256)
    else:
        greedy[(rows,)](probs, tokens, n, 4096, num_warps=8)
