"""Returns a number for a tensor without dimensions."""


def run(x):
    return float(x.sum())
