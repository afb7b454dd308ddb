def run(probs):
    return probs.argmax(-1)
