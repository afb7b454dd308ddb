"""Asks the device for the greatest value, and subtracts the maximum only where powers could overflow; it cannot be captured."""


def run(x):
    if x.abs().amax().item() > 60.0:
        x = x - x.amax(-1, keepdim=True)
    powers = x.exp()
    return powers / powers.sum(-1, keepdim=True)
