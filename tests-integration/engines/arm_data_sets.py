"""Data sets of the arms that `vllm_arms.py` compares: each has the solutions of its arm alone.

usage: arm_data_sets.py solutions OUT     solutions for what was traced, into OUT/dataset, FlashInfer's as well
       arm_data_sets.py arms OUT          OUT/arms/ARM from the evaluations in OUT/dataset; exits 1 if one has none

- ``routed`` has the engine's own kernels, so that a difference from the plain engine is the overhead of routing. vLLM's
  norm is a solution that is called. FlashInfer's attention is the adapter's own baseline, which is the function that is
  replaced: such calls are decided by their recorded key, counted (``the fallback is the best``), and served by the
  original. A solution in its place would make a second plan at each step, which is no overhead of routing.
- ``winners`` has own kernels, and the engine's as solutions of their own: those are routed that are faster than the
  engine's by the evaluations. vLLM decodes with tensor cores.
- ``slow`` has the engine's kernels as solutions of their own, called twice and planned once more: what is slower in the
  evaluations must be slower in the engine.
"""

import argparse
import re
import shutil
import sys
from pathlib import Path

import attrs
from fib_apply import ApplyConfig
from fib_apply.selection.table import ApplyTable, local_hardware
from fib_integrations.adapters import select_adapters
from fib_integrations.baselines import baseline_solutions
from fib_schema import BuildSpec, Solution, SourceFile, TraceSet

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from solution_table import entries_for

OWN, SLOW = "own_", "slow_"
"""The first parts of the names of solutions that are not the engine's."""
ARMS = ("routed", "winners", "slow")
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


def engine_kernel(definition):
    """The kernel that vLLM itself calls: its own for norms, FlashInfer's for attention; None for other definitions.

    There is none for the sum with a norm: vLLM's writes both results in place, which a definition cannot say.
    """
    if definition.op_type == "rmsnorm":
        if set(definition.inputs) != {"hidden_states", "weight"}:
            return None
        found = re.search(r"\bEPS = (\S+)", definition.reference)
        assert found is not None, definition.name
        spec = BuildSpec("python", ["cuda"], "main.py::run", dependencies=["vllm"], destination_passing_style=True)
        source = SourceFile("main.py", _NORM.format(epsilon=found[1]))
        return Solution(f"engine_{definition.name}", definition.name, "vllm", spec, [source])
    found = adapter_baselines(definition)
    return found[-1] if found else None


def adapter_baselines(definition):
    """The solutions that are the function which adapters replace; the last one has the settings that vLLM chooses."""
    made = (baseline_solutions(adapter, definition) for adapter in select_adapters(None))
    return next((several for several in made if several), ())


def _extended(solution, text):
    return [attrs.evolve(source, content=source.content + text) for source in solution.sources]


def solutions_for(definition):
    """All solutions of all arms; none where the engine's kernel is not known, with which others must be compared."""
    if (kernel := engine_kernel(definition)) is None:
        return
    yield kernel
    yield from (baseline for baseline in adapter_baselines(definition) if baseline.name != kernel.name)
    yield attrs.evolve(kernel, name=f"{SLOW}{definition.name}", sources=_extended(kernel, _TWICE))
    for entry in entries_for(definition.name, device="cuda"):
        if entry.is_capturable and entry.language != "python":
            yield entry.solution(definition, "cuda", f"{OWN}{entry.language}_{definition.name}")


def write_solutions(out):
    data_set = TraceSet.from_path(out / "dataset")
    known = set(data_set.solution_names())
    made = [one for name in data_set.workloads for one in solutions_for(data_set.get_definition(name))]
    data_set.add_solutions([one for one in made if one.name not in known])


def write_arms(out):
    """Write the data set of each arm that is not there."""
    source = TraceSet.from_path(out / "dataset")
    for arm in ARMS:
        folder = out / "arms" / arm
        if folder.exists():
            continue
        partial = folder.with_name(f".{arm}")  # a command that was killed leaves no arm
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        target = TraceSet.from_path(partial)
        of_arm = [
            s for name, known in source.solutions.items() for s in _of_arm(source.get_definition(name), known, arm)
        ]
        names = {s.name for s in of_arm}
        definitions = [source.get_definition(name) for name in dict.fromkeys(s.definition for s in of_arm)]
        target.add_definitions(definitions)
        target.add_solutions(of_arm)
        target.add_traces([t for d in definitions for t in source.traces.get(d.name, []) if t.solution in names])
        partial.rename(folder)


def _of_arm(definition, solutions, arm):
    """The solutions of a definition that an arm has."""
    kernel = engine_kernel(definition)
    named = None if arm == "slow" else kernel
    prefixes = {"routed": (), "winners": (OWN,), "slow": (SLOW,)}[arm]
    for solution in solutions:
        if solution.name.startswith(prefixes) or (named is not None and solution.name == named.name):
            yield solution


def problems_of_arms(out):
    """Definitions of arms for which the evaluations choose nothing on this machine: rounds would measure nothing."""
    hardware = local_hardware()
    for arm in ARMS:
        folder = out / "arms" / arm
        names = TraceSet.from_path(folder).definition_names()
        table = ApplyTable.load_or_build(folder, ApplyConfig(require_speedup=False))
        for problem in table.problems:
            yield f"{arm}: {problem}"
        for name in names:
            of_hardware = [found for device, found in table.rankings(name).items() if device in hardware]
            keys = [ranking for found in of_hardware for ranking in found.by_key.values()]
            chosen = sum(bool(ranking.candidates) for ranking in keys)
            print(f"{arm}, {name}: {chosen} of {len(keys)} keys have a solution on {hardware[0]}", flush=True)
            if not chosen:
                yield f"{arm}: no solution of {name} is chosen on {hardware[0]}; see the benchmark"
        if not names:
            yield f"{arm}: it has no solutions"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("solutions", "arms"))
    parser.add_argument("out", type=Path)
    options = parser.parse_args(arguments)
    problems = []
    if options.command == "solutions":
        write_solutions(options.out)
    else:
        write_arms(options.out)
        problems += problems_of_arms(options.out)
    for problem in problems:
        print(f"problem: {problem}", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
