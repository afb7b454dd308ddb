"""What the GPU benchmarks share: running solutions in a data set of their own, and tables."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from fib_bench import Benchmark, BenchmarkConfig
from fib_bench.benchmark import RunResult
from fib_bench.events import Evaluated, Event, Observer
from fib_compile.device import hardware_from_device
from fib_schema import BuildSpec, Definition, Solution, SourceFile, Trace, TraceSet, Workload

SOLUTIONS = Path(__file__).parents[3] / "tests-integration" / "solutions"
FAULTS = Path(__file__).parent / "faults"
Chosen = Mapping[str, tuple[Definition, Sequence[Workload]]]


@attrs.define
class Report:
    """Tables for people, numbers for programs."""

    out: Path
    lines: list[str] = attrs.field(factory=list)
    numbers: dict[str, Any] = attrs.field(factory=dict)

    def say(self, text: str = "") -> None:
        """Print a line and keep it."""
        print(text)
        self.lines.append(text)

    def table(self, title: str, header: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
        """Print a table in Markdown."""
        self.say(f"## {title}")
        self.say()
        self.say("| " + " | ".join(header) + " |")
        self.say("|" + " --- |" * len(header))
        for row in rows:
            self.say("| " + " | ".join(map(str, row)) + " |")
        self.say()

    def save(self) -> None:
        """Write both to the output folder."""
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "report.md").write_text("\n".join(self.lines) + "\n")
        (self.out / "numbers.json").write_text(json.dumps(self.numbers, indent=1))


@attrs.frozen(kw_only=True)
class Bench:
    """What a section works with."""

    data_set: TraceSet
    report: Report
    device: str
    runs: int
    most: int | None
    """At most so many workloads of each definition."""
    few: int
    """The same for attention, whose references are slow."""
    only: Sequence[str] | None = None
    """Words that choose cases of the self-test; None means all."""

    def collect(self, pattern: str, most: int | None = None) -> dict[str, tuple[Definition, list[Workload]]]:
        """The definitions whose names match and that have recorded workloads, with these."""
        found = {}
        for name, definition in self.data_set.definitions.items():
            workloads = [trace.workload for trace in self.data_set.workloads.get(name, [])]
            if re.fullmatch(pattern, name) and workloads:
                found[name] = (definition, workloads[: most or self.most])
        return found

    def solution(self, name: str, definition: Definition, file: str, source: str, *, returns: bool) -> Solution:
        """A solution of one file for this device; the language goes by the file's name."""
        language = "cuda" if file.endswith(".cu") else "triton" if "triton" in file else "python"
        hardware = (hardware_from_device(self.device),)
        spec = BuildSpec(language, hardware, f"{file}::run", destination_passing_style=not returns)
        return Solution(name, definition.name, "fib", spec, (SourceFile(file, source),))

    def from_file(self, file: str, definition: Definition, *, returns: bool) -> Solution:
        """One of the solutions of the integration tests."""
        text = (SOLUTIONS / file).read_text("utf-8")
        if "rmsnorm" in file and (epsilon := re.search(r"EPS = (1e-\d)", definition.reference)):
            text = text.replace("1e-6", epsilon[1])  # with tiny inputs it matters
        name = f"{file.replace('.', '_')}_{definition.name}"
        return self.solution(name, definition, file, text, returns=returns)

    def run(
        self,
        solutions: Mapping[str, Sequence[Solution]],
        chosen: Chosen,
        keep: str | None = None,
        observe: Observer = lambda _: None,
        **fields: Any,
    ) -> RunResult:
        """Benchmark solutions of the chosen definitions; the data set is kept in an archive of this name."""
        with tempfile.TemporaryDirectory() as folder:
            trace_set = TraceSet.from_path(Path(folder))
            for name, (definition, workloads) in chosen.items():
                trace_set.add_definitions([definition])
                trace_set.add_solutions(solutions[name])
                trace_set.add_traces([Trace(name, workload) for workload in workloads])
            where = {} if "devices" in fields else {"device": self.device}
            config = BenchmarkConfig(synthesize_missing=True, **where, **fields)

            def both(event: Event) -> None:
                _tell(event)
                observe(event)

            with Benchmark(trace_set, config) as benchmark:
                result = benchmark.run(observe=both)
            if keep is not None:
                shutil.make_archive(str(self.report.out / keep), "gztar", folder)
        for skip in result.skipped:
            print(f"  left out: {str(skip)[:500]}")
        return result


def _tell(event: Event) -> None:
    match event:
        case Evaluated(trace=trace) if not trace.is_successful() and trace.evaluation:
            print(f"  {trace.solution} {dict(trace.workload.axes)}: {trace.evaluation.status}")
            print(f"    {trace.evaluation.log[:1500]}")


def timing_of(trace: Trace) -> Mapping[str, Any]:
    """What a passing trace says of its timing."""
    return extra_of(trace)["timing"]


def extra_of(trace: Trace) -> Mapping[str, Any]:
    """What a passing trace says beside its latencies."""
    return performance_of(trace).extra


def performance_of(trace: Trace) -> Any:
    """The latencies of a passing trace."""
    assert trace.evaluation is not None
    return trace.evaluation.performance


def count(names: Iterable[str]) -> str:
    """How often each name occurs, in words."""
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return ", ".join(f"{number} {name}" for name, number in found.items())
