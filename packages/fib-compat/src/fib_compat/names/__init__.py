"""Implementations of documented names that no FIB package has. `fib_compat.table` states the name of each."""
