"""Import of what FlashInfer dumps: definitions, and calls, which become workloads."""
