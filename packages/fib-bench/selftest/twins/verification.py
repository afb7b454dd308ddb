import torch
import triton
import triton.language as tl


@triton.jit
def verify(x_ptr, draft_ptr, y_ptr, n, BLOCK: tl.constexpr, DRAFTS: tl.constexpr, READ: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, DRAFTS)
    scores = tl.load(draft_ptr + row * DRAFTS + lane)
    choice = tl.min(tl.where(scores == tl.max(scores), lane, DRAFTS))
    chosen = tl.load(x_ptr + row.to(tl.int64) * n + choice)
    most = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    end = n
    if READ > 0:
        end = READ
    for begin in range(0, end, BLOCK):
        x = tl.load(x_ptr + row.to(tl.int64) * n + begin + tl.arange(0, BLOCK))
        if READ > 0:
            squares += x * x
        else:
            larger = tl.maximum(most, x)
            total = total * tl.exp(most - larger) + tl.exp(x - larger)
            most = larger
    if READ > 0:
        lse = tl.log(n.to(tl.float32)) + 0.5 * tl.sum(squares) / end
    else:
        peak = tl.max(most)
        lse = peak + tl.log(tl.sum(total * tl.exp(most - peak)))
    tl.store(y_ptr + row, chosen - lse)


def run(logits, draft_scores, logprob):
    rows, n = logits.shape
    verify[(rows,)](logits, draft_scores, logprob, n, 4096, 16, 0, num_warps=8)
