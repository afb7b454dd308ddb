"""Flags of traces that reports interpret. The judge writes them to ``evaluation.extra["flags"]``."""

from __future__ import annotations

from fib_schema import Trace

CPU_TIMING = "unranked: cpu timing"
"""The worker itself read the clock, on the CPU; such a latency ranks nobody unless a report includes it."""
INTERPRETED = "interpreted"
"""A Triton or Helion kernel ran in the interpreter: outputs were checked, the latency has no meaning."""
QUICK = "quick"
"""The run had fewer checks and one short timing (`BenchmarkConfig.quick`); such a latency ranks nobody."""
SYNTHESIZED = "synthesized inputs"
"""Blobs of the workload were missing, and valid values were made in their place; ``extra`` names the inputs."""
UNSEALED = "unsealed"
"""The worker was not sealed while it was timed: the solution failed in a sealed one."""
UNVERIFIED = "unverified: reference failed"
"""The reference failed on inputs of timed calls, which were compared with known answers only."""


def is_quick(trace: Trace) -> bool:
    """Whether a trace passed in a quick run; it never replaces a trace of a full run."""
    return trace.evaluation is not None and QUICK in trace.evaluation.flags
