def run(x: "bfloat16[m, k=256]", weight: "bfloat16[n=256, k]") -> "y: bfloat16[m, n]":
    return x @ weight.t()
