"""Passes of handshakes: the native code around every timed call."""
