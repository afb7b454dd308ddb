"""Policies: which calls are kept, and which of their inputs are stored."""
