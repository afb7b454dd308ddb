"""Flags of traces that reports interpret. The judge writes them to ``evaluation.extra["flags"]``."""

from __future__ import annotations

CPU_TIMING = "unranked: cpu timing"
"""The worker itself read the clock, on the CPU; such a latency ranks nobody unless a report includes it."""
INTERPRETED = "interpreted"
"""A Triton kernel ran in the interpreter: outputs were checked, the latency has no meaning."""
TRUSTED = "trusted"
"""The solution ran inside the judge's process, without isolation and audits."""

UNSEALED = "unsealed"
"""The worker was not sealed while it was timed: the solution failed in a sealed one."""
UNVERIFIED = "unverified: reference failed"
"""The reference failed on inputs of timed calls, which were compared with known answers only."""
