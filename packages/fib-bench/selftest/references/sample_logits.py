import torch


def run(logits: "float32[batch_size, vocab_size=65536]") -> "samples: int64[batch_size]":
    return torch.multinomial(torch.softmax(logits, -1), 1).squeeze(1)
