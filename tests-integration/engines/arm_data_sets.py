"""Data sets of the arms that `vllm_arms.py` compares: each has the solutions of its arm alone.

usage: arm_data_sets.py solutions OUT     solutions for what was traced, into OUT/dataset, FlashInfer's as well
       arm_data_sets.py arms OUT          OUT/arms/ARM from the evaluations in OUT/dataset

- ``routed`` has the engine's own kernels, so that a difference from the plain engine is the overhead of routing.
- ``winners`` has own kernels too; those are routed that are faster than the engine's by the evaluations.
- ``slow`` has the engine's kernels, called twice: what is slower in the evaluations must be slower in the engine.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
from fib_integrations.adapters import select_adapters
from fib_integrations.baselines import baseline_solution
from fib_schema import BuildSpec, Definition, Solution, SourceFile, Trace, TraceSet

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from solution_table import entries_for

ROUTED, OWN, SLOW = "engine_", "own_", "slow_"
"""The first parts of the names of solutions."""
_PREFIXES = {"routed": (ROUTED,), "winners": (ROUTED, OWN), "slow": (SLOW,)}
_TWICE = """

import functools

_once = run


@functools.wraps(_once)  # the harness matches values of `setup` with its parameters
def run(*args, **state):
    _once(*args, **state)
    return _once(*args, **state)
"""
_NORM = """import torch
import vllm._custom_ops  # loads the library


def run(hidden_states, weight, output):
    torch.ops._C.rms_norm(output, hidden_states, weight, {epsilon})
"""


def engine_kernel(definition: Definition) -> Solution | None:
    """The kernel that vLLM itself calls: its own for norms, FlashInfer's for attention; None for other definitions.

    There is none for the sum with a norm: vLLM's writes both results in place, which a definition cannot say.
    """
    name = f"{ROUTED}{definition.name}"
    if definition.op_type == "rmsnorm":
        if set(definition.inputs) != {"hidden_states", "weight"}:
            return None
        found = re.search(r"\bEPS = (\S+)", definition.reference)
        assert found is not None, definition.name
        spec = BuildSpec("python", ["cuda"], "main.py::run", dependencies=["vllm"], destination_passing_style=True)
        source = SourceFile("main.py", _NORM.format(epsilon=found[1]))
        return Solution(name, definition.name, "vllm", spec, [source])
    made = (baseline_solution(adapter, definition, "engine") for adapter in select_adapters(None))
    solution = next((one for one in made if one is not None), None)
    if solution is None:
        return None
    # Other text than the baseline's: an adapter calls the original function where that wins.
    return attrs.evolve(solution, name=name, sources=_extended(solution, "\n# routed\n"))


def _extended(solution: Solution, text: str) -> list[SourceFile]:
    return [attrs.evolve(source, content=source.content + text) for source in solution.sources]


def solutions_for(definition: Definition) -> Iterator[Solution]:
    """All solutions of all arms; none where the engine's kernel is not known, with which others must be compared."""
    if (kernel := engine_kernel(definition)) is None:
        return
    yield kernel
    if kernel.author == "vllm":
        made = (baseline_solution(adapter, definition, "flashinfer") for adapter in select_adapters(None))
        yield from (one for one in made if one is not None)
    yield attrs.evolve(kernel, name=f"{SLOW}{definition.name}", sources=_extended(kernel, _TWICE))
    for entry in entries_for(definition.name, device="cuda"):
        if entry.is_capturable and entry.language != "python":
            yield entry.solution(definition, "cuda", f"{OWN}{entry.language}_{definition.name}")


def write_solutions(out: Path) -> None:
    """Add the solutions for each definition that has workloads."""
    data_set = TraceSet.from_path(out / "dataset")
    known = set(data_set.solution_names())
    made = [one for name in data_set.workloads for one in solutions_for(data_set.get_definition(name))]
    data_set.add_solutions([one for one in made if one.name not in known])


def write_arms(out: Path) -> None:
    """Write the data set of each arm that is not there."""
    source = TraceSet.from_path(out / "dataset")
    for arm, prefixes in _PREFIXES.items():
        folder = out / "arms" / arm
        if folder.exists():
            continue
        partial = folder.with_name(f".{arm}")  # a command that was killed leaves no arm
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        target = TraceSet.from_path(partial)
        known = [s for solutions in source.solutions.values() for s in solutions]
        of_arm = [s for s in known if s.name.startswith(prefixes)]
        definitions = [source.get_definition(name) for name in dict.fromkeys(s.definition for s in of_arm)]
        target.add_definitions(definitions)
        target.add_solutions(of_arm)
        target.add_traces([t for d in definitions for t in source.traces.get(d.name, []) if _is_of(t, prefixes)])
        partial.rename(folder)


def _is_of(trace: Trace, prefixes: tuple[str, ...]) -> bool:
    return trace.solution is not None and trace.solution.startswith(prefixes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("solutions", "arms"))
    parser.add_argument("out", type=Path)
    options = parser.parse_args(arguments)
    {"solutions": write_solutions, "arms": write_arms}[options.command](options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
