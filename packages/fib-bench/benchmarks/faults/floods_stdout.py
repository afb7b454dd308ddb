def run(x):
    print("x" * 1_000_000)
    return x * 2
