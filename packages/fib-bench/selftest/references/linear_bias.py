def run(x: "float32[m, k=4096]", weight: "float32[n=4096, k]", bias: "bfloat16[n]") -> "y: float32[m, n]":
    return x @ weight.t() + bias.float()
