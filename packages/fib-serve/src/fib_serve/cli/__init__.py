"""The command ``fib-serve``."""
