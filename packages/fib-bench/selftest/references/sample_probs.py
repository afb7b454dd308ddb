import torch


def run(probs: "float32[batch_size, vocab_size=131072]") -> "samples: int64[batch_size]":
    return torch.multinomial(probs, 1).squeeze(1)
