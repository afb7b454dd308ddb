def run(x: "float32[n]", factor: "float32", bias: "float32[n]") -> "y: float32[n]":
    return x * factor + bias
