"""Solutions and what they are made of."""

from __future__ import annotations

from fib_schema import BuildSpec, Solution, SourceFile, SupportedBindings, SupportedLanguages

__all__ = ["BuildSpec", "Solution", "SourceFile", "SupportedBindings", "SupportedLanguages"]
