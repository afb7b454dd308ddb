def run(x: "float32[n]") -> "y: float32[]":
    return x.sum()
