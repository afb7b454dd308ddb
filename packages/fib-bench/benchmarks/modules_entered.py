"""Count of modules that one evaluation enters: modules of FIB in which `fib-bench run` calls a function.

A profile hook in the driver and in the judge process sees each call of a Python function, but for those while a module
is imported. A *move* is a call whose caller is in another module of FIB; requests to workers make most of them, so that
their number follows that of timed passes. Workers are not counted: they are other processes.

usage: python modules_entered.py [--device cpu] [--list]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fib_schema import (
    AxisConst,
    AxisVar,
    BuildSpec,
    Definition,
    RandomInput,
    Solution,
    SourceFile,
    TensorSpec,
    Trace,
    TraceSet,
    Workload,
)

NAME = "add_elements"
HOOK = """
import inspect, json, os, sys, threading
words = " ".join(sys.orig_argv)
process = "judge" if "judge_process" in words else "driver" if "fib_bench.cli.main" in words else None
if process is not None:
    PACKAGES, modules, moves = ("fib_schema", "fib_compile", "fib_bench"), set(), [0]

    def of_fib(frame):
        return frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in PACKAGES

    def observe(frame, event, argument):
        if event != "call" or not of_fib(frame) or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return
        name, caller, above = frame.f_globals["__name__"], None, frame.f_back
        while above is not None:
            caller = above if caller is None and of_fib(above) else caller
            if above.f_code.co_filename == "<frozen importlib._bootstrap>":
                return
            above = above.f_back
        modules.add(name)
        moves[0] += caller is not None and caller.f_globals["__name__"] not in (name, "__main__")

    def write():
        sys.setprofile(None)
        text = json.dumps({"modules": sorted(modules), "moves": moves[0]})
        with open(os.path.join(os.environ["MODULES_ENTERED"], process + ".json"), "w") as file:
            file.write(text)

    def leave(status, leave=os._exit, owner=os.getpid()):
        if os.getpid() == owner:
            write()
        leave(status)

    import atexit
    atexit.register(write)
    os._exit = leave
    os.register_at_fork(after_in_child=lambda: (sys.setprofile(None), threading.setprofile(None)))
    threading.setprofile(observe)
    sys.setprofile(observe)
"""


def data_set(folder: Path, device: str) -> None:
    """Write a data set with one definition, one solution and one workload."""
    spec = TensorSpec(("m", "n"), "float32")
    reference = "def run(x, y):\n    return x + y\n"
    axes = {"m": AxisVar(), "n": AxisConst(256)}
    build = BuildSpec("python", ("cpu",) if device == "cpu" else ("cuda",), "main.py::run")
    source = SourceFile("main.py", "import torch\n\ndef run(x, y, z):\n    torch.add(x, y, out=z)\n")
    made = TraceSet(folder)
    made.add_definitions([Definition(NAME, "elementwise", axes, {"x": spec, "y": spec}, {"z": spec}, reference)])
    made.add_solutions([Solution("plain", NAME, "fib", build, (source,))])
    made.add_traces([Trace(NAME, Workload({"m": 512}, {"x": RandomInput(), "y": RandomInput()}, "rows-512"))])


def counted(folder: Path, device: str) -> dict[str, dict[str, object]]:
    """The modules and moves of the driver and of the judge in one run."""
    data_set(folder / "data", device)
    (folder / "hook").mkdir()
    (folder / "hook/sitecustomize.py").write_text(HOOK)
    paths = os.pathsep.join((str(folder / "hook"), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": paths, "MODULES_ENTERED": str(folder)}
    words = ["run", "--dataset", str(folder / "data"), "--devices", device]
    subprocess.run([sys.executable, "-m", "fib_bench.cli.main", *words], env=environment, check=True)
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in ("driver", "judge")}


def main() -> None:
    """Print a line for each process, and the modules of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--list", action="store_true", help="print the names of the modules")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = counted(Path(folder), options.device)
    both: set[str] = set()
    for name, entered in found.items():
        modules = entered["modules"]
        assert isinstance(modules, list)
        both.update(modules)
        print(f"{name}: {len(modules)} modules, {entered['moves']} moves")
    print(f"together: {len(both)} modules")
    if options.list:
        print(*(f"  {module}" for module in sorted(both)), sep="\n")


if __name__ == "__main__":
    main()
