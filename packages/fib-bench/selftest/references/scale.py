def run(x: "float32[n]") -> "y: float32[n]":
    return x * 2
