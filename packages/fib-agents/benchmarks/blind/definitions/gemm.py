import torch


def run(A: "float32[M, K=4096]", B: "float32[N=4096, K]") -> "C: float32[M, N]":
    return A @ B.T
