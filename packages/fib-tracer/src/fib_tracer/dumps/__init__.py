"""FlashInfer's own dumps: found, read safely, made workloads."""
