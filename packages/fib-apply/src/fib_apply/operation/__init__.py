"""Operation in a serving process: metrics, reloads, and what is ready before CUDA graphs are captured."""
