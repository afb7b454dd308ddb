"""The adapters for FlashInfer, which are values today: see `fib_integrations.Adapter`."""
