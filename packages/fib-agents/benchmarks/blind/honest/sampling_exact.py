# class: sampling from all candidates
import torch


def run(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    values, order = probs.float().sort(dim=-1, descending=True, stable=True)
    total = values.cumsum(-1)
    values.masked_fill_(total - values >= top_p[:, None], 0.0)
    noise = torch.empty_like(values).exponential_()
    choice = (values / noise).argmax(-1, keepdim=True)
    return order.gather(-1, choice).squeeze(-1).to(torch.int32)
