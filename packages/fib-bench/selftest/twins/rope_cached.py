import torch
import triton
import triton.language as tl


@triton.jit
def rotate(x_ptr, cache_ptr, p_ptr, y_ptr, table_ptr, tokens, ROWS: tl.constexpr, KNOWN: tl.constexpr):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    i = tl.arange(0, 64)[None, :]
    ok = row < tokens
    p = tl.load(p_ptr + row, mask=ok, other=0).to(tl.int64)
    first = tl.load(x_ptr + row * 128 + i, mask=ok & (i >= 0))
    second = tl.load(x_ptr + row * 128 + 64 + i, mask=ok & (i >= 0))
    if KNOWN:
        high = p // 512 * 128
        low = (512 + p % 512) * 128
        ch = tl.load(table_ptr + high + i)
        sh = tl.load(table_ptr + high + 64 + i)
        cl = tl.load(table_ptr + low + i)
        sl = tl.load(table_ptr + low + 64 + i)
        c = ch * cl - sh * sl
        s = sh * cl + ch * sl
    else:
        c = tl.load(cache_ptr + p * 128 + i)
        s = tl.load(cache_ptr + p * 128 + 64 + i)
    tl.store(y_ptr + row * 128 + i, first * c - second * s, mask=ok & (i >= 0))
    tl.store(y_ptr + row * 128 + 64 + i, second * c + first * s, mask=ok & (i >= 0))


kept = {}


def run(x, cos_sin_cache, positions, y):
    if not kept:
        kept["table"] = torch.cat(
            [
                cos_sin_cache[0::512],
                torch.zeros(512 - len(cos_sin_cache[0::512]), 128, device=x.device),
                cos_sin_cache[:512],
            ]
        ).contiguous()
    rotate[(triton.cdiv(len(x), 16),)](x, cos_sin_cache, positions, y, kept["table"], len(x), 16, False, num_warps=4)
