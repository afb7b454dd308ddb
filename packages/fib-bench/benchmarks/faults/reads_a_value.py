def run(x):
    return x * (2.0 if x.sum().item() < 1e30 else 3.0)
