"""Decision between an opaque operator and the user's function, for a call whose kernels are not inlined."""

from __future__ import annotations

import attrs

from ..compiled_times import CompiledTimes
from ..config import ApplyConfig
from ..opaque_cost import OpaqueCost
from ..selection.rankings import Candidate


@attrs.frozen
class OpaqueDecision:
    """Whether a graph should hold an opaque operator."""

    is_worth_it: bool
    reason: str
    """The times and costs that were compared; empty if none were."""


def decide_opaque(
    candidate: Candidate, device: str, config: ApplyConfig, cost: OpaqueCost, times: CompiledTimes | None = None
) -> OpaqueDecision:
    """Decide by what was measured in compiled graphs, else by traces.

    The operator calls the function uncompiled wherever its solution may not be called, so a solution that may not be
    captured makes a captured graph slower than plain compiled code.

    Args:
        candidate: The solution that serves the call.
        device: Of the call.
        config: The settings of the definition.
        cost: Of an opaque operator on this machine.
        times: Of the solution as an opaque operator; None if there are none.
    """
    if (problem := capture_problem(candidate, device)) is not None:
        return OpaqueDecision(False, problem)
    if not config.require_speedup:
        return OpaqueDecision(True, "")
    if times is not None:
        is_worth_it = times.is_worth_it(cost, is_captured=config.captures_compiled)
        return OpaqueDecision(is_worth_it, f"{times}; {cost}")
    if candidate.fallback_ms is None:
        return OpaqueDecision(True, "")
    saved_us = (candidate.fallback_ms - candidate.latency_ms) * 1e3
    least_us = cost.least_saving_us(is_captured=config.captures_compiled)
    where = "in a CUDA graph" if config.captures_compiled else "in any graph"
    text = f"{candidate.solution} saves {saved_us:.1f} us by its traces, needed are {least_us:.0f} us {where}: {cost}"
    return OpaqueDecision(saved_us > least_us, text)


def capture_problem(candidate: Candidate, device: str) -> str | None:
    """Reason why a graph that may be captured must not call a solution; None if it may."""
    is_safe = candidate.may_capture or not device.startswith("cuda")
    return None if is_safe else not_graph_safe(candidate.solution)


def not_graph_safe(solution: str) -> str:
    """Message for a solution of which no trace says that it may be captured."""
    return f"the traces of {solution} do not state graph_safe, and the graph may be captured"
