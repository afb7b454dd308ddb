# class: sampling from all candidates
import torch


def run(probs: torch.Tensor, top_k: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator(device=probs.device).manual_seed(int(seed))
    values, order = probs.float().sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(values.shape[-1], device=probs.device)
    values.masked_fill_(rank[None] >= top_k[:, None], 0.0)
    noise = torch.empty_like(values).exponential_(generator=generator)
    choice = (values / noise).argmax(-1, keepdim=True)
    return order.gather(-1, choice).squeeze(-1).to(torch.int32)
