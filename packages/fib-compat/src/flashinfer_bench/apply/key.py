"""Keys: what two calls share that one solution serves."""

from __future__ import annotations

from fib_apply import (
    ApplyKey,
    ApplyKeyBuilder,
    ApplyKeyFactory,
    AxesOnlyKeyBuilder,
    GEMMKeyBuilder,
    GQAKeyBuilder,
    MLAKeyBuilder,
)

__all__ = [
    "ApplyKey",
    "ApplyKeyBuilder",
    "ApplyKeyFactory",
    "AxesOnlyKeyBuilder",
    "GEMMKeyBuilder",
    "GQAKeyBuilder",
    "MLAKeyBuilder",
]
