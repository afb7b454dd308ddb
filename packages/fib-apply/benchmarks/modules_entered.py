"""Count of modules that routing enters: modules of FIB in which a function is called, per step of an engine.

A profile hook sees each call of a Python function; modules and bodies of classes are none, but functions that they
call count. A first run of all steps with another data set is done before with ``--warm``. The script uses public names
only, so that it can count an older commit.

usage: python modules_entered.py [--warm] [--list]
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

os.environ["FIB_CACHE_PATH"] = tempfile.mkdtemp(prefix="fib-modules-entered-")
os.environ.setdefault("FIB_APPLY_NATIVE", "0")  # whether a compiler is there must not change the counts

import torch
from fib_apply import apply, enable_apply
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

PACKAGES = ("fib_schema", "fib_compile", "fib_apply")


class Entered:
    """The modules entered while it is active, by thread: ``main`` and ``others``."""

    def __init__(self) -> None:
        self.modules: dict[str, set[str]] = {"main": set(), "others": set()}

    def _observe(self, frame: FrameType, event: str, argument: Any) -> None:
        del argument
        name = frame.f_globals.get("__name__", "")
        is_function = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)  # not a module or the body of a class
        if event == "call" and is_function and name.partition(".")[0] in PACKAGES:
            thread = "main" if threading.current_thread() is threading.main_thread() else "others"
            self.modules[thread].add(name)

    def of(self, call: Callable[[], Any]) -> Any:
        """The result of a call, whose modules are added."""
        threading.setprofile(self._observe)
        sys.setprofile(self._observe)
        try:
            return call()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def data_set(name: str) -> str:
    """The folder of a data set with one definition and one solution in Python, which passed with four rows."""
    definition = Definition(
        name,
        "elementwise",
        axes={"m": AxisVar(), "n": AxisConst(8)},
        inputs={"x": TensorSpec(("m", "n"), "float32"), "y": TensorSpec(("m", "n"), "float32")},
        outputs={"z": TensorSpec(("m", "n"), "float32")},
        reference="def run(x, y):\n    return x + y\n",
    )
    spec = BuildSpec("python", ("cpu",), "main.py::run", destination_passing_style=False)
    solution = Solution(
        f"fast_{name}", name, "tester", spec, (SourceFile("main.py", "def run(x, y):\n    return x + y\n"),)
    )
    evaluation = Evaluation(
        EvaluationStatus.PASSED,
        Environment("cpu"),
        "2026-01-01T00:00:00Z",
        correctness=Correctness(),
        performance=Performance(0.1, 1.0, 10.0),
    )
    workload = Workload({"m": 4}, {"x": RandomInput(), "y": RandomInput()}, f"workload_{name}")
    made = TraceSet(tempfile.mkdtemp(prefix="fib-modules-entered-"))
    made.add_definitions([definition])
    made.add_solutions([solution])
    made.add_traces([Trace(name, workload, solution.name, evaluation)])
    return str(made.root)


def steps(name: str) -> dict[str, Entered]:
    """The modules of each step with a data set of its own."""
    folder = data_set(name)
    found = {step: Entered() for step in ("decorating", "enabling", "first call", "hit", "first miss")}
    add = found["decorating"].of(lambda: apply(name)(lambda x, y: x - y))
    runtime = found["enabling"].of(lambda: enable_apply(folder))
    assert runtime.wait_until_built(60)
    four, five = torch.ones(4, 8), torch.ones(5, 8)
    for step in ("first call", "hit"):
        assert torch.equal(found[step].of(lambda: add(four, four)), 2 * four)
    assert torch.equal(found["first miss"].of(lambda: add(five, five)), 0 * five)
    runtime.stop()
    return found


def main() -> None:
    """Print a line for each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--warm", action="store_true", help="run all steps once before")
    parser.add_argument("--list", action="store_true", help="print the names of the modules")
    options = parser.parse_args()
    if options.warm:
        steps("warm_up")
    for step, entered in steps("counted").items():
        main_thread, others = entered.modules["main"], entered.modules["others"]
        print(f"{step}: {len(main_thread)} modules, {len(others)} in other threads")
        if options.list:
            print(*(f"  {module}" for module in sorted(main_thread)), sep="\n")


if __name__ == "__main__":
    main()
