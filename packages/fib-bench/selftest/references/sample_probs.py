import torch


def run(probs):
    return torch.multinomial(probs, 1).squeeze(1)
