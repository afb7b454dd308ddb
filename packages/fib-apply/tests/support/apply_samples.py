"""Definitions, solutions, traces and data sets of the tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fib_schema import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Correctness,
    Definition,
    Environment,
    Evaluation,
    Performance,
    RandomInput,
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
)


def new_definition(name: str) -> Definition:
    """A definition with one variable axis."""
    return Definition(
        name,
        "elementwise",
        {"M": AxisVar(), "N": AxisConst(value=4)},
        {"x": TensorSpec(["M", "N"], "float32")},
        {"y": TensorSpec(["M", "N"], "float32")},
        "def run(x):\n    return 2 * x\n",
    )


SCALE = new_definition("scale")
THREE = "def run(x, y):\n    y.copy_(3 * x)\n"
"""The source of a solution of `SCALE` whose result tells it apart."""


def new_solution(
    name: str,
    language: str = "python",
    content: str = "x",
    author: str = "ada",
    definition: str = "scale",
    *,
    passing: bool = True,
) -> Solution:
    """A solution; `passing` says whether outputs are passed to it."""
    binding = "torch" if language in {"cpp", "cuda"} else None
    spec = BuildSpec(language, ["cpu"], "main.py::run", binding=binding, destination_passing_style=passing)
    return Solution(name, definition, author, spec, [SourceFile("main.py", content)])


def new_trace(
    solution: str,
    latency: float = 1.0,
    *,
    m: int = 1,
    uuid: str | None = None,
    status: str = "PASSED",
    hardware: str = "cpu",
    timestamp: str = "2026-01-01T00:00:00",
    timing: Any = None,
    tolerance: Mapping[str, Any] | None = None,
    errors: tuple[float, float] = (0.0, 0.0),
    extra: Mapping[str, Any] | None = None,
    definition: str = "scale",
    reference: float = 1000.0,
    performance: Mapping[str, Any] | None = None,
    axes: Mapping[str, int] | None = None,
    inputs: Iterable[str] = ("x",),
) -> Trace:
    """An evaluation; `errors` are the absolute and the relative one, `performance` is its `extra`."""
    passed = status == "PASSED"
    extra_fields = performance if timing is None else {"timing": timing, **(performance or {})}
    evaluation = Evaluation(
        status,
        Environment(hardware),
        timestamp,
        correctness=Correctness(errors[1], errors[0], tolerance) if passed else None,
        performance=Performance(latency, reference, 2.0, extra_fields) if passed else None,
        extra=extra,
    )
    sizes = {"M": m} if axes is None else axes
    name = uuid or "-".join(["w" + str(m)] if axes is None else map(str, ("w", *axes.values())))
    return Trace(definition, Workload(sizes, dict.fromkeys(inputs, RandomInput()), name), solution, evaluation)


def data_set(*traces: Trace, solutions: Iterable[Solution] = (), definition: Definition = SCALE) -> TraceSet:
    """A data set of one definition in memory."""
    name = definition.name
    return TraceSet(None, {name: definition}, {name: tuple(solutions)}, {}, {name: traces})


def write_set(
    root: Path, *traces: Trace, solutions: Iterable[Solution] = (), definitions: Sequence[Definition] = (SCALE,)
) -> TraceSet:
    """A data set on the disk."""
    root.mkdir(exist_ok=True)
    made = TraceSet.from_path(root)
    made.add_definitions(definitions)
    made.add_solutions(solutions)
    made.add_traces(traces)
    return made
