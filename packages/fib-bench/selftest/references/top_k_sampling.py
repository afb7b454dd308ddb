import torch


def run(probs: "float32[batch_size, vocab_size=32768]", top_k: "int32[batch_size]") -> "samples: int64[batch_size]":
    samples = torch.empty(len(probs), dtype=torch.int64, device=probs.device)
    for index, row in enumerate(probs):
        places = torch.argsort(row, descending=True)[: int(top_k[index])]
        filtered = torch.zeros_like(row)
        filtered[places] = row[places]
        samples[index] = torch.multinomial(filtered / filtered.sum(), 1)[0]
    return samples
