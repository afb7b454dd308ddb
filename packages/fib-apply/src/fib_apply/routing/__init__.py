"""Routing: what a call goes through; the docstring of `fib_apply` has the order."""
