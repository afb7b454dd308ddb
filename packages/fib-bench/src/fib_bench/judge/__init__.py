"""The judge: evaluates solutions on one device and decides."""
