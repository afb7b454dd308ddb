"""Flags of traces that `fib_schema.trace_facts` does not interpret. The judge writes them to ``extra["flags"]``."""

from __future__ import annotations

SYNTHESIZED = "synthesized inputs"
"""Blobs of the workload were missing, and valid values were made in their place; ``extra`` names the inputs."""
UNSEALED = "unsealed"
"""The worker was not sealed while it was timed: the solution failed in a sealed one."""
UNVERIFIED = "unverified: reference failed"
"""The reference failed on inputs of timed calls, which were compared with known answers only."""
FIXED_INPUTS = "fixed_inputs"
"""Nothing about the inputs differed between timed calls."""
