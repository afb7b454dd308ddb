def run(x: "float32[m, k=256]", weight: "float32[n=256, k]") -> "y: float32[m, n]":
    return x @ weight.t()
