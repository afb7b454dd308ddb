def run(x: "bfloat16[n]") -> "y: bfloat16[n]":
    return -x
