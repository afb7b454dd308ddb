def run(x: "bfloat16[m, k=4096]", weight: "bfloat16[n=4096, k]") -> "y: bfloat16[m, n]":
    return x @ weight.t()
