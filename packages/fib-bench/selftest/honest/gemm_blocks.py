"""Splits the sum, and adds the parts up in another order."""


def run(x, weight):
    parts = [a @ b.t() for a, b in zip(x.split(64, dim=1), weight.split(64, dim=1), strict=True)]
    return sum(reversed(parts))
