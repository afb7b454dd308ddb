"""Connects libraries with apply and tracing."""
