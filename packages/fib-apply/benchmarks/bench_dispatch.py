"""Cost of routing a call on the CPU, in nanoseconds, beside the plain call and two floors.

The floors are written by hand for the very definition: one with the same guards as plain Python and a
dictionary, and one with torch's own guards and a dictionary. All are measured interleaved in one process, in processor
time; a number is the least of many rounds, less the plain call's. Rows of the Python route are measured before the
native module is loaded, the others after. The first call of a size is the median over many sizes.

usage: python bench_dispatch.py [--rounds 60] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from fib_apply import apply, disable_apply, enable_apply, runtime
from fib_apply.routing.guards import compile_python_guard
from fib_apply.routing.native.module import prepare_native
from fib_compile.device import hardware_from_device
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

_CALLS = 2_000
_ROWS = (8, 10, 11, 12)
"""Sizes that are recorded for two inputs."""
LIMITS_NS = {
    "hit, two inputs, one axis": 150.0,
    "hit, two inputs, alternating sizes": 250.0,
    "hit, six inputs, four axes": 250.0,
    "miss, two inputs, one axis": 150.0,
    "hit, three tensors with an output": 250.0,
    "hit, three CUDA tensors with an output": 400.0,
    "first call of a size, two inputs": 20_000.0,
    "Python route: hit, two inputs, one axis": 1_500.0,
    "Python route: hit, two inputs, alternating sizes": 1_500.0,
    "Python route: hit, six inputs, four axes": 3_000.0,
    "Python route: miss, two inputs, one axis": 1_500.0,
    "unknown definition": 60.0,
    "disabled": 25.0,
}
"""Limits of the added time, in nanoseconds."""
_COUNTING_NS, _OF_THE_FLOOR = 80.0, 1.3
_NEW_SIZES = range(100, 1100)


@attrs.frozen
class Subject:
    """A definition, a function that only makes an output, and the arguments of calls."""

    definition: Definition
    function: Callable[..., Any]
    args: tuple[torch.Tensor, ...]
    others: tuple[torch.Tensor, ...]
    """Of sizes that are not recorded."""
    device: str = "cpu"


def small() -> Subject:
    axes = {"M": AxisVar(), "N": AxisConst(64), "K": AxisConst(32), "one": AxisConst(1)}
    inputs = {"A": TensorSpec(("M", "K"), "float32"), "B": TensorSpec(("N", "K"), "float32")}
    definition = _definition("two", axes, inputs, ("one",))

    def function(A: Any, B: Any) -> Any:
        return torch.empty(1)

    return Subject(
        definition, function, (torch.zeros(8, 32), torch.zeros(64, 32)), (torch.zeros(9, 32), torch.zeros(64, 32))
    )


def large() -> Subject:
    axes = {name: AxisVar() for name in ("b", "p", "t", "i")} | {
        "h": AxisConst(8),
        "d": AxisConst(16),
        "one": AxisConst(1),
    }
    shapes = {
        "q": ("b", "h", "d"),
        "k": ("p", "h", "d"),
        "v": ("p", "h", "d"),
        "x": ("t", "d"),
        "w": ("d",),
        "s": ("i",),
    }
    definition = _definition("six", axes, {n: TensorSpec(s, "float32") for n, s in shapes.items()}, ("one",))

    def function(q: Any, k: Any, v: Any, x: Any, w: Any, s: Any) -> Any:
        return torch.empty(1)

    return Subject(definition, function, _zeros(shapes, b=4), _zeros(shapes, b=5))


def into(device: str) -> Subject:
    """Two inputs and an output; no kernel is launched, so that nothing but the host is timed."""
    axes = {"M": AxisVar(), "N": AxisConst(64)}
    inputs = {"x": TensorSpec(("M", "N"), "float32"), "w": TensorSpec(("N",), "float32")}
    definition = _definition(f"three_{device}", axes, inputs, ("M", "N"))

    def function(x: Any, w: Any, out: Any) -> None:
        return None

    args = (torch.zeros(8, 64, device=device), torch.zeros(64, device=device), torch.zeros(8, 64, device=device))
    return Subject(definition, function, args, (), device)


def _zeros(shapes: Mapping[str, tuple[str, ...]], b: int) -> tuple[torch.Tensor, ...]:
    sizes = {"b": b, "p": 6, "t": 7, "i": 9, "h": 8, "d": 16}
    return tuple(torch.zeros([sizes[axis] for axis in shape]) for shape in shapes.values())


def _definition(name: str, axes: Any, inputs: Any, output: tuple[str, ...]) -> Definition:
    reference = f"def run({', '.join(inputs)}):\n    pass\n"
    return Definition(name, "bench", axes, inputs, {"out": TensorSpec(output, "float32")}, reference)


def data_set(folder: Path, subjects: list[Subject]) -> TraceSet:
    """Each with a solution that does as little as the function, measured at the sizes of its arguments."""
    found = TraceSet.from_path(folder)
    for subject in subjects:
        d = subject.definition
        source = f"import torch\ndef run({', '.join(d.inputs)}):\n    return torch.empty(1)\n"
        has_output = len(subject.args) > len(d.inputs)
        if has_output:
            source = f"def run({', '.join((*d.inputs, *d.outputs))}):\n    return None\n"
        hardware = hardware_from_device("cuda:0" if subject.device == "cuda" else subject.device)
        spec = BuildSpec("python", (hardware,), "main.py::run", destination_passing_style=has_output)
        solution = Solution(f"least_{d.name}", d.name, "bench", spec, (SourceFile("main.py", source),))
        evaluation = Evaluation(
            EvaluationStatus.PASSED,
            Environment(hardware),
            "2026-01-01T00:00:00Z",
            correctness=Correctness(),
            performance=Performance(0.1, 1.0, 10.0, {"timing": {"graph_safe": True}}),
        )
        found.add_definitions([d])
        found.add_solutions([solution])
        axes = d.get_axes_values_from_inputs(subject.args[: len(d.inputs)])
        for sizes in [axes | {"M": rows} for rows in _ROWS] if d.name == "two" else [axes]:
            inputs = {n: RandomInput() for n in d.inputs}
            workload = Workload(sizes, inputs, f"w-{d.name}-{'-'.join(map(str, sizes.values()))}")
            found.add_traces([Trace(d.name, workload), Trace(d.name, workload, solution.name, evaluation)])
    return found


def _in_turns(subject: Subject) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Arguments of calls of the sizes that are recorded for two inputs."""
    _, b = subject.args
    return tuple((torch.zeros(rows, 32), b) for rows in _ROWS)


def floor_in_python(subject: Subject) -> Callable[..., Any]:
    """Guards as plain Python, written for the definition, and a dictionary."""
    Tensor, float32, cpu, kernel = torch.Tensor, torch.float32, torch.device("cpu"), subject.function
    grad = torch.is_grad_enabled
    if subject.definition.name == "two":
        table = {8: kernel}

        def two(A: Any, B: Any) -> Any:
            if (
                type(A) is Tensor and type(B) is Tensor
                and A.dtype is float32 and B.dtype is float32
                and A.device == cpu and B.device == cpu
                and A.is_contiguous() and B.is_contiguous()
                and not ((A.requires_grad or B.requires_grad) and grad())
            ):  # fmt: skip
                a, b = A.shape, B.shape
                if len(a) == 2 and a[1] == 32 and b == (64, 32):
                    found = table.get(a[0])
                    if found is not None:
                        return found(A, B)
            return kernel(A, B)

        return two
    table_of_four = {(4, 6, 7, 9): kernel}

    def six(q: Any, k: Any, v: Any, x: Any, w: Any, s: Any) -> Any:
        for t in (q, k, v, x, w, s):
            if (
                type(t) is not Tensor or t.dtype is not float32 or t.device != cpu
                or not t.is_contiguous() or (t.requires_grad and grad())
            ):  # fmt: skip
                return kernel(q, k, v, x, w, s)
        a, b, c, e = q.shape, k.shape, x.shape, s.shape
        if (
            len(a) == 3 and a[1] == 8 and a[2] == 16 and len(b) == 3 and b[1] == 8 and b[2] == 16
            and v.shape == b and len(c) == 2 and c[1] == 16 and w.shape == (16,) and len(e) == 1
        ):  # fmt: skip
            found = table_of_four.get((a[0], b[0], c[0], e[0]))
            if found is not None:
                return found(q, k, v, x, w, s)
        return kernel(q, k, v, x, w, s)

    return six


def floor_in_torch(subject: Subject) -> Callable[..., Any]:
    """Guards of torch's own and a dictionary, written for the definition."""
    entry = compile_python_guard(subject.args), subject.function
    kernel = subject.function
    if subject.definition.name == "two":
        table = {subject.args[0].shape: entry}.get

        def two(A: Any, B: Any) -> Any:
            found = table(A.shape)
            if found is not None and found[0](A, B):
                return found[1](A, B)
            return kernel(A, B)

        return two
    q, k, _, x, _, s = subject.args
    table_of_four = {(q.shape, k.shape, x.shape, s.shape): entry}.get

    def six(q: Any, k: Any, v: Any, x: Any, w: Any, s: Any) -> Any:
        found = table_of_four((q.shape, k.shape, x.shape, s.shape))
        if found is not None and found[0](q, k, v, x, w, s):
            return found[1](q, k, v, x, w, s)
        return kernel(q, k, v, x, w, s)

    return six


def least_ns(subjects: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]], rounds: int) -> dict[str, float]:
    """Nanoseconds of a call of each, the minimum of interleaved rounds; the loop's own cost is in all of them."""
    found = dict.fromkeys(subjects, float("inf"))
    for _ in range(rounds):
        for name, (function, args) in subjects.items():
            found[name] = min(found[name], _round_ns(function, args))
    return found


def _round_ns(function: Callable[..., Any], args: tuple[Any, ...]) -> float:
    calls = range(_CALLS)
    if isinstance(args[0], tuple):
        (a, b), (c, d), (e, f), (g, h) = args
        begin = time.process_time_ns()
        for _ in range(_CALLS // 4):
            function(a, b)
            function(c, d)
            function(e, f)
            function(g, h)
    elif len(args) == 2:
        a, b = args
        begin = time.process_time_ns()
        for _ in calls:
            function(a, b)
    elif len(args) == 3:
        a, b, c = args
        begin = time.process_time_ns()
        for _ in calls:
            function(a, b, c)
    else:
        q, k, v, x, w, s = args
        begin = time.process_time_ns()
        for _ in calls:
            function(q, k, v, x, w, s)
    return (time.process_time_ns() - begin) / _CALLS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    os.environ["FIB_APPLY_NATIVE"] = "0"  # until the Python route is measured
    two, six = small(), large()
    threes = [into(device) for device in ("cpu", "cuda") if device == "cpu" or torch.cuda.is_available()]
    with tempfile.TemporaryDirectory() as folder:
        found = data_set(Path(folder), [two, six, *threes])
        routed = {s.definition.name: apply(s.definition.name)(s.function) for s in (two, six)}
        routed_threes = [apply(s.definition.name)(s.function) for s in threes]
        unknown = apply("unknown")(two.function)
        off = apply("two")(two.function)
        rows: dict[str, float] = {}
        plain = {"plain two": (two.function, two.args), "plain six": (six.function, six.args)}
        floors = {
            f"{kind} {s.definition.name}": (make(s), s.args)
            for s in (two, six)
            for kind, make in (("floor in Python", floor_in_python), ("floor by torch", floor_in_torch))
        }
        calls = {
            "hit, two inputs, one axis": (routed["two"], two.args),
            "hit, six inputs, four axes": (routed["six"], six.args),
            "hit, two inputs, alternating sizes": (routed["two"], _in_turns(two)),
            "miss, two inputs, one axis": (routed["two"], two.others),
        }
        with enable_apply(found):
            _warm_up(routed, two, six)
            python = {f"Python route: {name}": call for name, call in calls.items()}
            rows |= least_ns({**plain, **python}, options.rounds)
            del os.environ["FIB_APPLY_NATIVE"]
            if problem := prepare_native():
                print(f"native guards: {problem}", file=sys.stderr)
            runtime.rebind_call_sites()
            _warm_up(routed, two, six)
            rows |= least_ns({**plain, **floors, **calls, "unknown definition": (unknown, two.args)}, options.rounds)
            for three, function in zip(threes, routed_threes, strict=True):
                for _ in range(3):
                    function(*three.args)
                kind = "" if three.device == "cpu" else "CUDA "
                pair = {"routed": (function, three.args), "plain": (three.function, three.args)}
                least = least_ns(pair, options.rounds)
                rows[f"plain three {kind}".strip()] = least["plain"]
                rows[f"hit, three {kind}tensors with an output"] = least["routed"]
            new = [(torch.empty(rows, 32), two.args[1]) for rows in _NEW_SIZES]
            rows["first call of a size, two inputs"] = statistics.median(_once_ns(routed["two"], args) for args in new)
        with enable_apply(found, stats=True):
            routed["two"](*two.args)
            rows |= least_ns({"hit, counted": (routed["two"], two.args)}, options.rounds)
        disable_apply()
        rows |= least_ns({"disabled": (off, two.args), "plain again": (two.function, two.args)}, options.rounds)
    sys.exit(report(rows, options.json))


def _warm_up(routed: Mapping[str, Callable[..., Any]], two: Subject, six: Subject) -> None:
    for _ in range(3):
        routed["six"](*six.args)
        for pair in _in_turns(two):
            routed["two"](*pair)


def _once_ns(function: Callable[..., Any], args: tuple[Any, ...]) -> int:
    begin = time.process_time_ns()
    function(*args)
    return time.process_time_ns() - begin


def _size_of(name: str) -> str:
    """The name of the plain call that a row is compared with."""
    sizes = ("three CUDA", "three", "six")
    return next((size for size in sizes if size in name), "two")


def report(rows: Mapping[str, float], target: Path | None) -> int:
    base = {"two": min(rows["plain two"], rows["plain again"]), "six": rows["plain six"]}
    base |= {name.removeprefix("plain "): ns for name, ns in rows.items() if name.startswith("plain three")}
    added = {name: ns - base[_size_of(name)] for name, ns in rows.items()}
    print(
        f"torch {torch.__version__}, Python {sys.version.split()[0]}; "
        f"plain calls {base['two']:.0f} and {base['six']:.0f} ns"
    )
    failures = 0
    print("| call | added, ns | at most | of the Python floor | of torch's floor |\n| --- | --- | --- | --- | --- |")
    for name, limit in {**LIMITS_NS, "hit, counted": added["hit, two inputs, one axis"] + _COUNTING_NS}.items():
        if name not in added:
            print(f"| {name} | not measured: no CUDA device | {limit:.0f} | |")
            continue
        floors = [f"{kind} {_size_of(name)}" for kind in ("floor in Python", "floor by torch")]
        is_hit = "hit, " in name and "counted" not in name and floors[0] in added
        ratios = [added[name] / added[floor] for floor in floors if is_hit]
        failures += added[name] > limit or (is_hit and ratios[0] > _OF_THE_FLOOR)
        shown = " | ".join(f"{ratio:.2f}" for ratio in ratios) if is_hit else " | "
        print(f"| {name} | {added[name]:.0f} | {limit:.0f} | {shown} |")
    for name in ("floor in Python two", "floor in Python six", "floor by torch two", "floor by torch six"):
        print(f"| {name} | {added[name]:.0f} | | | |")
    if target is not None:
        target.write_text(json.dumps({"rows_ns": dict(rows), "added_ns": added}, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    main()
