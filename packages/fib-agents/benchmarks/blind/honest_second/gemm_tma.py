# class: Triton with tensor descriptors and an allocator for them
from typing import Optional

import torch
import triton
import triton.language as tl


def alloc_fn(size: int, alignment: int, stream: Optional[int]):
    return torch.empty(size, device="cuda", dtype=torch.int8)


def _configs():
    for bm, bn, bk, s, w in [(128, 128, 32, 3, 4), (128, 256, 32, 3, 8), (64, 128, 64, 4, 4)]:
        yield triton.Config({"BM": bm, "BN": bn, "BK": bk, "GROUP": 8}, num_stages=s, num_warps=w)


def prune(configs, named_args, **kwargs):
    m = named_args["M"]
    kept = [c for c in configs if c.kwargs["BM"] <= max(64, triton.next_power_of_2(m))]
    return kept or configs[:1]


@triton.autotune(list(_configs()), key=["M", "N", "K"], prune_configs_by={"early_config_prune": prune})
@triton.jit
def matmul_tma(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    a = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    b = tl.make_tensor_descriptor(b_ptr, shape=[N, K], strides=[K, 1], block_shape=[BN, BK])
    c = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    pid = tl.program_id(0)
    width = GROUP * tl.cdiv(N, BN)
    group = pid // width
    size = tl.minimum(tl.cdiv(M, BM) - group * GROUP, GROUP)
    pid_m = group * GROUP + (pid % width) % size
    pid_n = (pid % width) // size
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([pid_m * BM, k]), b.load([pid_n * BN, k]).T, acc, input_precision="ieee")
    c.store([pid_m * BM, pid_n * BN], acc)


def run(A, B, C):
    triton.set_allocator(alloc_fn)
    M, K = A.shape
    N, _ = B.shape
    if M:
        matmul_tma[lambda meta: (triton.cdiv(M, meta["BM"]) * triton.cdiv(N, meta["BN"]),)](A, B, C, M, N, K)


if __name__ == "__main__":
    torch.manual_seed(0)
    A, B = (torch.randn(4096, 4096, device="cuda") for _ in range(2))
    C = torch.empty(4096, 4096, device="cuda")
    run(A, B, C)
    print("max error", (C - A @ B.T).abs().max().item())
    print("ms", triton.testing.do_bench(lambda: run(A, B, C)))
