"""A small server whose functions are routed, and the disturbances that `serving_chaos.py` subjects it to."""
