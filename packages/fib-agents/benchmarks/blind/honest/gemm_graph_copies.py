# class: a CUDA graph on copies of the inputs
import torch


class _GraphedGemm:
    """One graph for each shape. Inputs are copied in and results are copied out at each call."""

    def __init__(self, A, B):
        self.A, self.B = torch.empty_like(A), torch.empty_like(B)
        self.A.copy_(A)
        self.B.copy_(B)
        warm = torch.cuda.Stream()
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):
            for _ in range(2):
                self.A @ self.B.T
        torch.cuda.current_stream().wait_stream(warm)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.C = self.A @ self.B.T

    def __call__(self, A, B, C):
        self.A.copy_(A, non_blocking=True)
        self.B.copy_(B, non_blocking=True)
        self.graph.replay()
        C.copy_(self.C, non_blocking=True)


_graphs = {}


def run(A, B, C):
    if torch.cuda.is_current_stream_capturing():
        torch.mm(A, B.t(), out=C)
        return
    key = (A.shape, B.shape, A.dtype, A.device)
    if key not in _graphs:
        _graphs[key] = _GraphedGemm(A, B)
    _graphs[key](A, B, C)
