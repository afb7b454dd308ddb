import torch


def run(probs: "float32[rows, vocabulary=128256]", top_p: "float32[rows]") -> "token: int32[rows]":
    values, order = probs.sort(dim=-1, descending=True)
    values = values.masked_fill(values.cumsum(-1) - values >= top_p[:, None], 0.0)
    return order.gather(-1, torch.multinomial(values, 1)).squeeze(-1).to(torch.int32)
