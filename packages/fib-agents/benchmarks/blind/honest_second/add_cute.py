# class: CuTe DSL
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack

_compiled = {}


@cute.kernel
def _add(gA: cute.Tensor, gB: cute.Tensor, gC: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    bdim, _, _ = cute.arch.block_dim()
    i = bidx * bdim + tidx
    if i < cute.size(gC):
        gC[i] = gA[i] + gB[i]


@cute.jit
def _launch(mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, stream: cuda.CUstream):
    threads = 256
    n = cute.size(mC)
    _add(mA, mB, mC).launch(grid=[(n + threads - 1) // threads, 1, 1], block=[threads, 1, 1], stream=stream)


def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor):
    if a.numel() == 0:
        return
    tensors = [from_dlpack(t, assumed_align=16).mark_layout_dynamic() for t in (a, b, c)]
    stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
    if a.dtype not in _compiled:
        _compiled[a.dtype] = cute.compile(_launch, *tensors, stream)
    _compiled[a.dtype](*tensors, stream)
