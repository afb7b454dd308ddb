import torch


def greedy_recorded(batch_size, vocab_size):
    return {"logits": torch.randn(batch_size, vocab_size)}


def linear_sparse(n, k, **_):
    """One block of eight is used, and the others are zero."""
    blocks = (torch.rand(n // 32, k // 128).argsort(1) < k // 1024).float()
    weight = torch.randn(n, k) * 2.8 / k**0.5 * blocks.repeat_interleave(32, 0).repeat_interleave(128, 1)
    return {"weight": weight.bfloat16()}
