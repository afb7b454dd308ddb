"""Overhead of apply: a routed call against a direct call of the same built solution.

Part of `transformer_block`, which benchmarks the solutions first. Routed and direct calls (`overhead_calls`) take
turns, pass the same tensors in the same style, and are made by the same loop (`overhead_clocks`). Captures of CUDA
graphs while a solution is built are checked last (`captures_meanwhile`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import attrs
from captures_meanwhile import capture_while_building
from fib_apply import ApplyConfig, ApplyRuntime
from overhead_calls import Function, Kind, Pair, pair_of
from overhead_clocks import (
    CHUNK,
    IN_GRAPH,
    Samples,
    chunk_ns,
    device_us,
    graph_of,
    in_turn,
    recorded_launches,
    replayed_us,
)

CAPTURES = 4
"""Graphs of each function: memory and the order of captures make graphs of the same kernels differ by 1 % and more."""
LEAST_US, MOST_US = 30.0, 10.0
"""The kernel times above which a kernel counts as long, and below which as short."""
EAGER_LIMIT, GRAPH_LIMIT, HOST_LIMIT_NS = 1.02, 1.005, 500.0
"""The limits."""


@attrs.frozen(kw_only=True)
class Sizes:
    """The calls to measure."""

    short: Kind
    large: Sequence[Kind]
    rounds: int


def measure_overhead(root: Path, device: str, report: Any, sizes: Sizes) -> list[str]:
    """Measure on a data set with traces, and write tables.

    Args:
        root: Of the data set.
        device: ``cpu``, where nothing can be captured, or ``cuda:0``.
        report: A `gpu_report.Report`.
        sizes: What to measure.

    Returns:
        What went wrong. To be slower than asked for is not among it.
    """
    runtime = ApplyRuntime(root, ApplyConfig(require_speedup=False))
    problems: list[str] = []
    with runtime:
        short = pair_of(runtime, device, *sizes.short)
        large = [pair_of(runtime, device, *kind) for kind in sizes.large]
        guards = runtime.warm_up(240).guards
        rows = [eager_row(pair, device, sizes.rounds) for pair in large]
        rows.append(host_row(short, device, sizes.rounds))
        if device != "cpu":
            rows.append(graph_row(short, sizes.rounds))
            problems += rows[-1]["problems"]
    report.numbers["overhead"] = rows
    header = ("what", "kernel us", "direct", "routed", "difference", "asked for", "spread of the difference", "rounds")
    report.table("Overhead of apply", header, [_shown(row) for row in rows])
    report.say(
        f"Medians; the difference is that of neighbours, its spread the middle half. Eager: {CHUNK} calls and then the "
        f"wait for them, us per call. Host: the same without the wait, ns per call. Graph: {IN_GRAPH} calls, us each. "
        f"Calls pass {guards}."
    )
    for row in rows:
        if "same" in row:
            low, high = row["same_spread"]
            report.say(
                f"{row['what']}: other captures of the direct call differ by {row['same']:+.2%} (middle half "
                f"{low:+.2%} to {high:+.2%}), the uncertainty of the difference. Launches: {row['launches']}."
            )
    report.say()
    return problems if device == "cpu" else problems + capture_while_building(root, device, report, sizes.short)


def _shown(row: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = row["spread"]
    if row["unit"] == "ns":
        shown = [f"{row[name]:.0f} ns" for name in ("direct", "routed", "difference")]
        limit, spread = f"at most {row['limit']:.0f} ns", f"{low:.0f} to {high:.0f} ns"
    else:
        shown = [f"{row[name]:.3f} us" for name in ("direct", "routed")] + [f"{row['difference']:+.2%}"]
        limit, spread = f"at most {row['limit']:.1%}", f"{low:+.2%} to {high:+.2%}"
    limit += "" if row["is_asked"] else " (not for a kernel of this length)"
    return row["what"], f"{row['kernel_us']:.1f}", *shown, limit, spread, str(row["rounds"])


def eager_row(pair: Pair, device: str, rounds: int) -> dict[str, Any]:
    """An eager loop over a long kernel."""
    kernel_us = device_us(pair.direct, pair.arguments, device)

    def sample(function: Function) -> float:
        return chunk_ns(function, pair.arguments, device)[1] / 1e3

    row = _compared(in_turn(sample, pair.both(), rounds), limit=EAGER_LIMIT - 1)
    return {"what": f"eager loop, {pair.title}", "kernel_us": kernel_us, "is_asked": kernel_us >= LEAST_US, **row}


def host_row(pair: Pair, device: str, rounds: int) -> dict[str, Any]:
    """The host time added to each launch of a short kernel."""
    kernel_us = device_us(pair.direct, pair.arguments, device)
    samples = in_turn(lambda function: chunk_ns(function, pair.arguments, device)[0], pair.both(), rounds)
    row = _compared(samples, limit=HOST_LIMIT_NS, unit="ns")
    return {"what": f"host, {pair.title}", "kernel_us": kernel_us, "is_asked": kernel_us < MOST_US, **row}


def graph_row(pair: Pair, rounds: int) -> dict[str, Any]:
    """A short kernel in CUDA graphs: routed, direct, and direct again, each in several graphs captured in turn."""
    functions = {"direct": pair.direct, "routed": pair.routed, "again": pair.direct}
    graphs: dict[str, list[Function]] = {name: [] for name in functions}
    for index in range(CAPTURES):
        for name in list(functions) if index % 2 else list(functions)[::-1]:
            graphs[name].append(graph_of(functions[name], pair.arguments))
    launches = {name: recorded_launches(graphs[name][0]) for name in ("direct", "routed")}
    problems = [] if launches["direct"] == launches["routed"] else [f"graphs launch different kernels: {launches}"]
    next_graph = {name: cycle(made).__next__ for name, made in graphs.items()}
    samples = in_turn(lambda take: replayed_us(take()), next_graph, rounds)
    row = _compared(samples, limit=GRAPH_LIMIT - 1)
    same = _compared({"direct": samples["direct"], "routed": samples["again"]}, limit=GRAPH_LIMIT - 1)
    return {
        "what": f"CUDA graph, {pair.title}",
        "kernel_us": row["direct"],
        "is_asked": True,
        **row,
        "same": same["difference"],
        "same_spread": same["spread"],
        "launches": launches["direct"].total(),
        "problems": problems,
    }


def _compared(samples: Samples, *, limit: float, unit: str = "us") -> dict[str, Any]:
    """Medians, and the differences of adjacent samples: absolute in ns, else relative."""
    pairs = list(zip(samples["direct"], samples["routed"], strict=True))
    differences = [routed - direct if unit == "ns" else routed / direct - 1 for direct, routed in pairs]
    quarters = statistics.quantiles(differences, n=4)
    return {
        "unit": unit,
        **{name: statistics.median(found) for name, found in samples.items()},
        "difference": statistics.median(differences),
        "spread": [quarters[0], quarters[2]],
        "limit": limit,
        "rounds": len(pairs),
        "samples": samples,
    }
