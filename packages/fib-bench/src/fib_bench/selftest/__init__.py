"""Self-test of the harness on this machine: exploits that must be rejected, honest solutions that must pass.

The data lie in the package's folder ``selftest/``, beside ``src/``. ``exploits/`` holds solutions that cheat,
``honest/`` solutions with habits of honest ones, and ``twins/`` the honest solutions that the latency of an exploit is
compared with. The ``index.toml`` of each suite states the expected verdicts; ``references/`` holds the references of
the definitions. All of them are evaluated by a `Benchmark`.
"""

from __future__ import annotations

from .cases import ROW_NAMES, Case, Gain, choose, load_cases
from .run import Outcome, SelfTest, run_selftest

__all__ = ["ROW_NAMES", "Case", "Gain", "Outcome", "SelfTest", "choose", "load_cases", "run_selftest"]
