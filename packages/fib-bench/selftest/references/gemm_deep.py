def run(x: "float32[m, k=16384]", weight: "float32[n=32, k]") -> "y: float32[m, n]":
    return x @ weight.t()
