"""The class whose method captures CUDA graphs."""


class GPUModelRunner:
    """Captures graphs."""

    def capture_model(self, engine):
        """Let an engine make the calls that it captures."""
        engine.capture()
