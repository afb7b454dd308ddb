"""What this harness withstands on this machine: tricks that must be caught, habits that must not.

``adversaries/`` holds the tricks, ``honest/`` solutions that do what honest ones do, each with an
``index.toml`` that says what must come out; ``references/`` the definitions that both implement. All of
them go the ordinary way, through a `Benchmark` and its judge.
"""

from __future__ import annotations

from .cases import Case, choose, load_cases
from .run import Outcome, SelfTest, run_selftest

__all__ = ["Case", "Outcome", "SelfTest", "choose", "load_cases", "run_selftest"]
