"""What `tools/dev.py` runs: the standard library only, and no work at import."""
