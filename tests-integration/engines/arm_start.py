"""Start-up time that routing adds with a warm cache: a table of 200 definitions is opened, its solutions are loaded.

usage: arm_start.py set OUT         OUT/start/arms/routed: copies of the definitions of that arm, for `fib-apply warm`
       arm_start.py measure OUT     OUT/start.json: the longest of several processes that have imported the engine

What is timed is what a process of `vllm_arms.py` does before it makes its engine: adapters are installed, routing is
enabled, and all solutions are ready.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

import attrs
from arm_turns import write_whole

DEFINITIONS = 200
_PROCESSES = 5


def write_set(out: Path) -> None:
    """Write the data set if it is not there."""
    from fib_schema import TraceSet

    folder = out / "start" / "arms" / "routed"
    if folder.exists():
        return
    partial = folder.with_name(".routed")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    source, target = TraceSet.from_path(out / "arms" / "routed"), TraceSet.from_path(partial)
    for number, name in enumerate(islice(cycle(source.definition_names()), DEFINITIONS)):
        made = attrs.evolve(source.get_definition(name), name=f"{name}_{number:03}")
        solutions = [
            attrs.evolve(s, name=f"{s.name}_{number:03}", definition=made.name) for s in source.solutions[name]
        ]
        traces = [
            attrs.evolve(t, definition=made.name, solution=f"{t.solution}_{number:03}") for t in source.traces[name]
        ]
        target.add_definitions([made])
        target.add_solutions(solutions)
        target.add_traces(traces)
    partial.rename(folder)


def measure(out: Path) -> None:
    """Measure several processes, one after another."""
    command = [sys.executable, __file__, "once", str(out)]
    found = [json.loads(subprocess.check_output(command, text=True).splitlines()[-1]) for _ in range(_PROCESSES)]
    seconds = [one["seconds"] for one in found]
    record = {"definitions": DEFINITIONS, "seconds": max(seconds), "all": seconds, "ready": found[-1]["ready"]}
    write_whole(out / "start.json", json.dumps(record))


def once(out: Path) -> None:
    """Print the seconds of this process, and how many solutions were ready."""
    import flashinfer
    import torch
    import vllm
    from vllm_arms import switch_on

    _ = torch, flashinfer, vllm.LLM, vllm.SamplingParams  # imported at the first access
    said: list[str] = []
    begin = time.perf_counter()
    switch_on("routed", out / "start", said.append)
    seconds = time.perf_counter() - begin
    print(f"\n{json.dumps({'seconds': seconds, 'ready': said[0]})}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("set", "measure", "once"))
    parser.add_argument("out", type=Path)
    options = parser.parse_args(arguments)
    {"set": write_set, "measure": measure, "once": once}[options.command](options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
