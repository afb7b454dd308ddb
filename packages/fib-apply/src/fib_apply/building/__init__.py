"""Brings solutions into this process: compiled, tried out in a child process, loaded in one background thread."""
