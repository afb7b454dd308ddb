def run(logits: "float32[batch_size, vocab_size=65536]") -> "tokens: int64[batch_size]":
    return logits.argmax(-1)
