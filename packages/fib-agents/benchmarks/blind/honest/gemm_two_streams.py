# class: two streams that join before the return
import torch

_side: dict[torch.device, torch.cuda.Stream] = {}


def run(A, B):
    if A.device not in _side:
        _side[A.device] = torch.cuda.Stream(A.device)
    side, main = _side[A.device], torch.cuda.current_stream(A.device)
    C = torch.empty((A.shape[0], B.shape[0]), device=A.device, dtype=A.dtype)
    half = A.shape[0] // 2
    side.wait_stream(main)
    with torch.cuda.stream(side):
        torch.mm(A[half:], B.t(), out=C[half:])
    torch.mm(A[:half], B.t(), out=C[:half])
    main.wait_stream(side)
    C.record_stream(side)
    return C
