import torch


def run(x, factor, bias, chunks=4, *, dtype=torch.float64):
    parts = zip(x.chunk(chunks), bias.chunk(chunks), strict=True)
    return torch.cat([(part.to(dtype) * factor + shift).to(x.dtype) for part, shift in parts])
