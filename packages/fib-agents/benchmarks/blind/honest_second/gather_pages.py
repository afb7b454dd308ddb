# class: Triton with eviction policies
import torch
import triton
import triton.language as tl


@triton.jit
def gather_kernel(
    pages_ptr,
    indices_ptr,
    out_ptr,
    page_count,
    PAGE_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    slot = tl.program_id(0)
    page = tl.load(indices_ptr + slot, eviction_policy="evict_last").to(tl.int64)
    tl.device_assert(page < page_count, "page out of range")
    offs = tl.arange(0, PAGE_SIZE * WIDTH)
    values = tl.load(pages_ptr + page * (PAGE_SIZE * WIDTH) + offs, eviction_policy="evict_first")
    tl.store(out_ptr + slot.to(tl.int64) * (PAGE_SIZE * WIDTH) + offs, values)


def run(pages, indptr, indices, out):
    used = indices.shape[0]
    if used == 0:
        return out
    assert out.shape[0] == used * pages.shape[1], f"{out.shape=} {used=}"
    gather_kernel[(used,)](
        pages, indices, out, pages.shape[0], PAGE_SIZE=pages.shape[1], WIDTH=pages.shape[2], num_warps=4
    )


def benchmark():
    import subprocess
    import time

    print(subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv"], capture_output=True, text=True).stdout)
    pages = torch.randn(4096, 16, 128, device="cuda", dtype=torch.bfloat16)
    indices = torch.randperm(4096, device="cuda", dtype=torch.int32)
    out = torch.empty(4096 * 16, 128, device="cuda", dtype=torch.bfloat16)
    run(pages, None, indices, out)
    torch.cuda.synchronize()
    begin = time.time()
    for _ in range(100):
        run(pages, None, indices, out)
    torch.cuda.synchronize()
    print(f"{(time.time() - begin) * 10:.3f} ms")


if __name__ == "__main__":
    benchmark()
