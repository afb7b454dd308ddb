def run(logits):
    return logits.argmax(-1)
