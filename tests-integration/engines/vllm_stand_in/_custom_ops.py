import torch
from engine_stand_ins import normalized

_library = torch.library.Library("_C", "FRAGMENT")
_library.define("rms_norm(Tensor(a!) out, Tensor input, Tensor weight, float epsilon) -> ()")


def rms_norm(out, input, weight, epsilon):
    out.copy_(normalized(input, weight, epsilon))


_library.impl("rms_norm", rms_norm, "CPU")
