"""Returns a transposed view of what it added up along the other axis."""


def run(x):
    return x.t().contiguous().cumsum(0).t()
