import helion
import helion.language as hl
import torch


# A solution states its configuration: without one, the first call searches for it, which takes minutes.
@helion.kernel(config=helion.Config(block_sizes=[1]))
def rmsnorm(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for row in hl.tile(x.shape[0]):
        values = x[row, :]
        scale = torch.rsqrt(torch.mean(values * values, dim=-1) + 1e-6)
        y[row, :] = values * scale[:, None] * weight[:]
    return y


def run(x, weight, y):
    rmsnorm(x, weight, y)
