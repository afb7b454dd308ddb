"""Command line of fib-bench: commands, options, help pages, tables."""
