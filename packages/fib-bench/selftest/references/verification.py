import torch


def run(
    logits: "float32[rows, vocab_size=65536]", draft_scores: "float32[rows, drafts=16]"
) -> "logprob: float32[rows]":
    choice = draft_scores.argmax(-1, keepdim=True)
    return logits.gather(1, choice).squeeze(1) - torch.logsumexp(logits, -1)
