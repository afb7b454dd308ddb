import torch


def run(logits, draft_scores):
    choice = draft_scores.argmax(-1, keepdim=True)
    return logits.gather(1, choice).squeeze(1) - torch.logsumexp(logits, -1)
