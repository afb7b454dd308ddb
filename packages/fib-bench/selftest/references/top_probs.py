def run(probs: "float32[batch_size, vocab_size=131072]") -> "tokens: int64[batch_size]":
    return probs.argmax(-1)
