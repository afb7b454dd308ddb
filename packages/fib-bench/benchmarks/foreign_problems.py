"""Counts how many problems of other benchmarks import and run here, in a table in Markdown with reasons of failures.

    python foreign_problems.py --kernelbench CLONE --gpumode CLONE --sol CLONE > measured/foreign-problems.md

Each problem is imported by a sandboxed process of its own, at reduced sizes: module-level numbers of KernelBench and
sizes of GPU MODE's first test and benchmark are divided. Then the references run as solutions, on the CPU, those of
all sources in turn until the time is up.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import torch
import yaml
from fib_bench import Benchmark, BenchmarkConfig
from fib_bench.benchmark import RunResult
from fib_bench.cli.main import main as fib_bench
from fib_bench.sandbox.model import SandboxPaths, SandboxPolicy
from fib_bench.sandbox.policy import isolate
from fib_compile.registry import reference_solution
from fib_schema import TraceSet

_IMPORT_SECONDS = 120
_BATCH = 8
"""References that one run evaluates, between looks at the clock."""
_NOT_REACHED = "imported, and not reached in the time of the runs"
_NEEDS = {
    "Invalid scaling configuration": "needs a GPU: torch._scaled_mm with block scales",
    "No module named 'aiter'": "needs an AMD GPU: imports aiter",
    "float8_e4m3fnuz": "needs an AMD GPU: float8_e4m3fnuz",
}
"""Exceptions by nature: a part of the message, and what it means."""
_LARGEST = (16, 64, 512)
"""Numbers are divided by powers of two until they are not larger; the larger ones if a problem refuses the smaller."""


_ENDED = "ended by signal"


@attrs.define
class Problem:
    """A problem of another benchmark, and what became of it."""

    source: str
    path: Path
    definition: str = ""
    reason: str = "not tried"
    is_run: bool = False
    is_passed: bool = False
    is_timed: bool = False


def shrunk_number(value: int, largest: int) -> int:
    """A number divided by powers of two until it is not larger, or odd."""
    while value > largest and value % 2 == 0:
        value //= 2
    return value


def shrunk_source(text: str, largest: int) -> str:
    """A source whose module-level numbers are smaller."""
    tree = ast.parse(text)
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            for node in ast.walk(statement.value):
                if isinstance(node, ast.Constant) and type(node.value) is int:
                    node.value = shrunk_number(node.value, largest)
    return ast.unparse(tree)


def shrunk_task(text: str, largest: int) -> str:
    """A task whose cases are smaller, the first of each list."""
    task = yaml.safe_load(text)
    for kind in ("tests", "benchmarks"):
        task[kind] = [
            {key: shrunk_number(value, largest) if type(value) is int else value for key, value in case.items()}
            for case in (task.get(kind) or [])[:1]
        ]
    return yaml.safe_dump(task)


def copy_problem(problem: Problem, folder: Path, largest: int) -> Path:
    """A copy of a problem, with smaller sizes."""
    if problem.source.startswith("KernelBench"):
        target = folder / problem.path.parent.name / problem.path.name
        target.parent.mkdir()
        text = problem.path.read_text()
        target.write_text(shrunk_source(text, largest))
        return target
    target = folder / "parent" / problem.path.name
    shutil.copytree(problem.path, target)
    for file in problem.path.parent.glob("*.py"):  # which tasks import
        shutil.copy(file, target.parent)
    task = target / "task.yml"
    if task.exists():
        task.write_text(shrunk_task(task.read_text(), largest))
    return target


def import_confined(format_name: str, problem: Path, name: str, folder: Path) -> str:
    """Import in a sandboxed child under a name; returns the reason if that fails."""
    log = folder / "log"
    if (child := os.fork()) == 0:
        output = os.open(log, os.O_CREAT | os.O_WRONLY, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(HOME=str(folder), TMPDIR=str(folder), TORCHINDUCTOR_CACHE_DIR=str(folder))
        signal.alarm(_IMPORT_SECONDS)
        isolate(SandboxPaths(SandboxPolicy("cpu"), folder, folder))
        code = 1
        try:
            code = fib_bench(["import", format_name, str(problem), "--dataset", str(folder / "set"), "--name", name])
        finally:
            sys.stdout.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    lines = log.read_text(errors="replace").strip().splitlines()
    ended = "" if os.WIFEXITED(status) else f"{_ENDED} {os.WTERMSIG(status)}: "
    return "" if status == 0 else ended + (lines[-1] if lines else "")


def add(problem: Problem, root: Path) -> None:
    """Import a problem into a data set of all."""
    kind = {"K": "kernelbench", "G": "gpumode", "S": "solexecbench"}[problem.source[0]]
    for largest in _LARGEST:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            copy = copy_problem(problem, folder, largest)
            name = f"{problem.path.parent.name}_{problem.path.stem}"  # two groups of problems share names
            problem.reason = import_confined(kind, copy, name, folder)
            if problem.reason.startswith(_ENDED):
                return  # more would take longer
            if not problem.reason:
                (definition,) = TraceSet.from_path(folder / "set").definition_names()
                problem.definition, problem.reason = definition, _NOT_REACHED
                shutil.copytree(folder / "set", root, dirs_exist_ok=True)
                return


def run(root: Path, problems: Sequence[Problem], timeout_seconds: float, minutes: float) -> None:
    """Run references as solutions until the time is up, and note what became of each."""
    trace_set = TraceSet.from_path(root)
    definitions = map(trace_set.get_definition, trace_set.definition_names())
    trace_set.add_solutions([attrs.evolve(reference_solution(each), name=each.name) for each in definitions])
    waiting, end = in_turn([problem for problem in problems if problem.definition]), time.monotonic() + 60 * minutes
    while waiting and time.monotonic() < end:
        batch, waiting = waiting[:_BATCH], waiting[_BATCH:]
        names = tuple(problem.definition for problem in batch)
        config = BenchmarkConfig(device="cpu", quick=True, timeout_seconds=timeout_seconds, definitions=names)
        result = Benchmark(TraceSet.from_path(root), config.for_data_set(trace_set)).run()
        for problem in batch:
            note_result(problem, result)
            print(problem.path, problem.reason or "ok", file=sys.stderr, flush=True)


def in_turn(problems: Sequence[Problem]) -> list[Problem]:
    """The problems in an order in which each start of the list holds the same part of each source."""
    sources = [problem.source for problem in problems]
    places = [sources[:index].count(source) / sources.count(source) for index, source in enumerate(sources)]
    return [problem for _, _, problem in sorted(zip(places, sources, problems, strict=True), key=lambda row: row[:2])]


def note_result(problem: Problem, result: RunResult) -> None:
    """Note whether the reference of a problem passed and was timed, and why not."""
    evaluations = [trace.evaluation for trace in result.traces if trace.definition == problem.definition]
    found = [evaluation for evaluation in evaluations if evaluation]
    failed = [each for each in found if str(each.status) != "PASSED"]
    skipped = [str(skip.reason) for skip in result.skipped if skip.definition == problem.definition]
    problem.is_passed = bool(found) and not failed and not skipped
    problem.is_timed = problem.is_passed and all(each.performance is not None for each in found)
    problem.reason = next((f"{each.status}: {each.log.splitlines()[-1:]}" for each in failed), "".join(skipped[:1]))
    problem.is_run = True


def kind_of(reason: str) -> str:
    """A reason without names and numbers, by which failures are counted."""
    if known := [meaning for part, meaning in _NEEDS.items() if part in reason]:
        return known[0]
    text = re.sub(r"/\S+", "", reason)
    return re.sub(r"\s+", " ", re.sub(r"\d+", "N", text))[:110].strip(": ").replace("|", "/")


def print_head(arguments: argparse.Namespace) -> None:
    """Print the title and what was run."""
    load = "/".join(f"{value:.0f}" for value in os.getloadavg())
    date, machine = time.strftime("%Y-%m-%d"), f"{os.cpu_count()} cores with a load average of {load}"
    print(
        f"# Problems of other benchmarks\n\n`foreign_problems.py`, {date}, torch {torch.__version__}, CPU, {machine}."
    )
    part = f"one of each {arguments.every} problems" if arguments.every > 1 else "all problems"
    print(f"Reduced sizes; KernelBench: {part}; {arguments.minutes:.0f} minutes of runs. {arguments.note}\n")


def print_table(problems: Sequence[Problem]) -> None:
    """Print the counts by source, and the reasons."""
    print("| source | problems | import | the reference was run | passes | is timed |")
    print("| --- | --- | --- | --- | --- | --- |")
    for source in dict.fromkeys(problem.source for problem in problems):
        own = [problem for problem in problems if problem.source == source]
        counted: Sequence[Callable[[Problem], bool]] = (
            lambda each: bool(each.definition),
            lambda each: each.is_run,
            lambda each: each.is_passed,
            lambda each: each.is_timed,
        )
        counts = " | ".join(str(sum(map(of, own))) for of in counted)
        print(f"| {source} | {len(own)} | {counts} |")
    print("\n| problems | source | reason |\n| --- | --- | --- |")
    failed = Counter((kind_of(problem.reason), problem.source) for problem in problems if problem.reason)
    for (reason, source), count in failed.most_common():
        print(f"| {count} | {source} | {reason} |")


def found_in(arguments: argparse.Namespace) -> list[Problem]:
    """The problems of the clones."""
    found: list[Problem] = []
    if clone := arguments.kernelbench:
        files = sorted(clone.glob("KernelBench/level[123]/*.py"))
        found += [Problem(f"KernelBench {file.parent.name}", file) for file in files[:: arguments.every]]
    if clone := arguments.gpumode:
        files = sorted(clone.glob("problems/*/*/task.yml"))
        found += [Problem("GPU MODE", file.parent) for file in files if "distributed" not in str(file)]
    if clone := arguments.sol:
        files = sorted(clone.glob("examples/*/*/definition.json"))
        found += [Problem("SOL-ExecBench", file.parent) for file in files]
    return [problem for problem in found if arguments.only in str(problem.path)]


def main() -> None:
    """Import, run and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("kernelbench", "gpumode", "sol"):
        parser.add_argument(f"--{name}", type=Path, metavar="CLONE")
    parser.add_argument("--every", type=int, default=1, help="only each nth problem of KernelBench")
    parser.add_argument("--only", default="", help="only problems with this text in their path")
    parser.add_argument("--import-only", action="store_true", help="run no references")
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--minutes", type=float, default=20.0, help="time of the runs of references")
    parser.add_argument("--note", default="", help="what the page says besides, such as commits of the clones")
    arguments = parser.parse_args()
    problems = found_in(arguments)
    torch.nn.functional.mish(torch.empty(1, device="meta"))  # loads modules that each child would load
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for problem in problems:
            add(problem, root)
            print(problem.path, problem.definition or problem.reason, file=sys.stderr, flush=True)
        if not arguments.import_only:
            run(root, problems, arguments.timeout, arguments.minutes)
    print_head(arguments)
    print_table(problems)


if __name__ == "__main__":
    main()
