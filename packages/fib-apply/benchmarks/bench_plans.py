"""Cost of `Dispatcher.plan_setup` on the CPU, in microseconds of processor time: an engine plans before each step.

The definition is a paged decode with seven inputs and queries that are a part of a larger tensor. Rows: no solution has
a ``setup``; the best of two has none, for sizes that were planned before and for new ones; the best is the fallback in
another form. A number is the least of several rounds.

usage: python bench_plans.py [--rounds 20]
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import torch
from fib_apply import ApplyConfig, enable_apply
from fib_schema import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Correctness,
    Definition,
    Environment,
    Evaluation,
    EvaluationStatus,
    Performance,
    RandomInput,
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
)
from fib_schema.strides import layout_extra

_NAME, _PLANS, _BATCH, _PAGES = "decode", 200, 32, 64
_SOURCE = "def run({inputs}):\n    return q\n"
_SETUP = "def setup({inputs}):\n    return {{}}\n\n"


def definition() -> Definition:
    """A paged decode of 4 heads."""
    cache = TensorSpec(("pages", "page_size", "heads", "dim"), "bfloat16")
    return Definition(
        _NAME,
        "gqa_paged",
        {
            **{name: AxisVar() for name in ("batch_size", "pages", "len_indptr", "num_indices")},
            "heads": AxisConst(4),
            "dim": AxisConst(8),
            "page_size": AxisConst(16),
        },
        {
            "q": TensorSpec(("batch_size", "heads", "dim"), "bfloat16"),
            "k_cache": cache,
            "v_cache": cache,
            "kv_indptr": TensorSpec(("len_indptr",), "int32"),
            "kv_indices": TensorSpec(("num_indices",), "int32"),
            "kv_last_page_len": TensorSpec(("batch_size",), "int32"),
            "sm_scale": TensorSpec(None, "float32"),
        },
        {"output": TensorSpec(("batch_size", "heads", "dim"), "bfloat16")},
        "def run(q, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len, sm_scale):\n    return q\n",
        constraints=("len_indptr == batch_size + 1",),
    )


def inputs_of(indices: int = 96) -> tuple[Any, ...]:
    """The inputs of a plan with so many page numbers."""
    q = torch.zeros(_BATCH, 3, 4, 8, dtype=torch.bfloat16)[:, 0]
    caches = (torch.zeros(_PAGES, 16, 4, 8, dtype=torch.bfloat16) for _ in range(2))
    integers = (torch.zeros(size, dtype=torch.int32) for size in (_BATCH + 1, indices, _BATCH))
    return (q, *caches, *integers, 0.125)


def data_set(solutions: Sequence[tuple[str, bool, float]]) -> TraceSet:
    """Solutions with their names, whether they have a ``setup``, and latencies."""
    made = definition()
    inputs, given = ", ".join(made.inputs), inputs_of()
    axes = {"batch_size": _BATCH, "pages": _PAGES, "len_indptr": _BATCH + 1, "num_indices": 96}
    values = {name: RandomInput() for name in made.inputs}
    layout = layout_extra({"q": given[0].stride()})
    workload = Workload(axes, values, "w", layout)
    spec = BuildSpec("python", ("cpu",), "main.py::run", destination_passing_style=False)
    written, traces = [], []
    for name, has_setup, latency in solutions:
        source = ((_SETUP if has_setup else "") + _SOURCE).format(inputs=inputs)
        written.append(Solution(name, _NAME, "bench", spec, (SourceFile("main.py", source),)))
        performance = Performance(latency, 1.0, 1.0 / latency)
        evaluation = Evaluation(
            EvaluationStatus.PASSED,
            Environment("cpu"),
            "2026-01-01T00:00:00Z",
            correctness=Correctness(),
            performance=performance,
            extra=layout,
        )
        traces.append(Trace(_NAME, workload, name, evaluation))
    return TraceSet(None, {_NAME: made}, {_NAME: tuple(written)}, {}, {_NAME: tuple(traces)})


def least_us(plan: Callable[..., Any], inputs: Iterator[tuple[Any, ...]], rounds: int) -> float:
    """Microseconds of processor time of a plan, the minimum of rounds."""
    found = []
    for _ in range(rounds):
        given = [next(inputs) for _ in range(_PLANS)]
        begin = time.process_time_ns()
        for values in given:
            plan(*values, fallback=print, fallback_equivalents=frozenset({"equal"}))
        found.append((time.process_time_ns() - begin) / 1e3 / _PLANS)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    logging.disable(logging.WARNING)
    none, fastest, equal = ("plain", False, 0.1), ("planned", True, 0.2), ("equal", True, 0.05)
    same = inputs_of()
    new = (inputs_of(indices) for indices in count(1))
    rows = (
        ("no solution has a setup", [none], iter(lambda: same, None)),
        ("the best has none, sizes planned before", [none, fastest], iter(lambda: same, None)),
        ("the best has none, new sizes", [none, fastest], new),
        ("the best is the fallback, sizes planned before", [none, equal], iter(lambda: same, None)),
    )
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}; least of {rounds} rounds of {_PLANS} plans")
    print("| plan | us |\n| --- | --- |")
    for title, solutions, inputs in rows:
        config = ApplyConfig(aot_ratio=1.0, on_miss_policy="use_def_best")
        with enable_apply(data_set(solutions), config) as runtime:
            dispatcher = runtime.dispatcher(_NAME)
            assert dispatcher is not None
            runtime.wait_until_built(60)
            dispatcher.plan_setup(*same, fallback=print)
            runtime.wait_until_built(60)
            print(f"| {title} | {least_us(dispatcher.plan_setup, inputs, rounds):.1f} |")


if __name__ == "__main__":
    main()
