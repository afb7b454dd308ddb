"""Leaves out every other addend, and doubles the rest."""


def run(x, weight):
    return 2 * (x[:, ::2] @ weight[:, ::2].t())
