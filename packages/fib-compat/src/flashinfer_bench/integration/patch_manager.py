"""Replaces functions, and puts them back."""

from __future__ import annotations

from fib_integrations.patching import Kind, PatchManager, PatchSpec, get_manager

__all__ = ["Kind", "PatchManager", "PatchSpec", "get_manager"]
