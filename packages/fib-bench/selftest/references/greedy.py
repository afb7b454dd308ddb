def run(logits: "float32[batch_size, vocab_size=32768]") -> "tokens: int64[batch_size]":
    return logits.argmax(-1)
