"""Tries its variants in the first calls, and keeps the fastest."""

import time

import torch


def fused(x, weight):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)


def plain(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def by_norm(x, weight):
    return x * (x.norm(dim=-1, keepdim=True).square() / x.shape[-1] + 1e-6).rsqrt() * weight


VARIANTS, taken = (fused, plain, by_norm), []


def run(x, weight):
    if len(taken) == len(VARIANTS):
        return VARIANTS[taken.index(min(taken))](x, weight)
    before = time.perf_counter()
    y = VARIANTS[len(taken)](x, weight)
    if x.is_cuda and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()
    taken.append(time.perf_counter() - before)
    return y
