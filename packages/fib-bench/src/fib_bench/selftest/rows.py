"""Rows of the exploit list. Each row is one way to cheat; the self-test has exploits of all of them."""

from __future__ import annotations

from collections.abc import Mapping

ROW_NAMES: Mapping[int, str] = {
    1: "side streams",
    2: "threads and processes that work after the return",
    3: "lazy tensors",
    4: "patched clocks and checks",
    5: "outputs cached by address, identity or shape",
    6: "outputs cached by a fingerprint of the inputs",
    7: "all inputs computed in the first call",
    8: "one code path when checked, another when timed",
    9: "uninitialised memory that holds the reference",
    10: "overwritten inputs",
    11: "constants, copies of inputs, skipped work",
    12: "expected outputs searched in memory",
    13: "forged replies and exits",
    14: "data kept in caches beyond the flush",
    15: "slow warm-up, precomputed outputs",
    16: "replays of stale graphs",
    17: "lower precision",
    18: "calls of the reference or a library, decoy kernels",
    19: "failed launches without an error",
    20: "impossible latencies",
    21: "files, network, sources of the harness",
    22: "hangs, crashes, exhausted resources",
    23: "outputs computed in setup()",
    24: "code that runs inside the harness's own steps",
    25: "work before or after the timed region",
    26: "replaced events, timers and driver functions",
    27: "overlap of the calls of one pass",
    28: "work skipped where nothing is verified",
    29: "a worker that is taken over",
    30: "latencies reported too short, within the tolerance of audits",
    31: "plans kept although the integer inputs changed",
    32: "exact when checked, cheap when timed",
    33: "errors within statistical allowances",
    34: "a reference that is slowed down",
    35: "outputs that compute when they are read",
    36: "state that outlives the worker",
}
"""Titles of the rows by number."""
