"""``flashinfer-bench validate``: selected checks of selected definitions."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
from fib_schema import InvalidRecord, Problem, Report, TraceSet, UnknownName
from fib_schema import validate as validate_all
from fib_schema.files import write_output
from fib_schema.folder_walk import walk

_LAYOUT_CODES = frozenset({"path-contradicts", "unusual-path", "other-suffix", "legacy-place", "misplaced-trace"})
_LAYOUT_CODES |= {"misplaced-workload", "link-again", "link-out", "no-file", "unreadable"}
_FOLDERS = {"definitions": "definition", "solutions": "solution", "workloads": "workload", "traces": "trace"}
_BASELINE_AUTHOR = "baseline"


def validate(args: argparse.Namespace) -> int:
    """Report the problems of a data set; return 1 if there are errors, else 0."""
    report = validate_all(args.dataset)
    scope = _Scope.select(Path(args.dataset), args.op_types, args.definitions)
    problems = [problem for problem in report.problems if _is_selected(problem, args.checks, scope)]
    warnings = tuple(warning for warning in report.warnings if _is_selected(warning, args.checks, scope))
    if "baseline" in args.checks or "benchmark" in args.checks:
        problems += _check_baselines(TraceSet.from_path(args.dataset), scope, args)
    selected = attrs.evolve(report, problems=tuple(problems), warnings=warnings)
    _write(selected, args.outputs, Path(args.output_folder))
    return 0 if selected.is_ok else 1


def render_file(report: Path) -> str:
    """The text form of a JSON report.

    Raises:
        InvalidRecord: The file is not a report.
        OSError: The file cannot be read.
    """
    try:
        plain = json.loads(report.read_text("utf-8"))
        rows = [*plain["problems"], *plain["warnings"]]
        return "\n".join([*map(_line, rows), plain["summary"]]) + "\n"
    except (ValueError, KeyError, TypeError) as error:
        problem = Problem(str(report), "$", f"is not a report of 'validate --outputs json' ({error!r})")
        raise InvalidRecord("report", (problem,)) from error


def _line(row: dict[str, Any]) -> str:
    source = row["file"] if row["line"] is None else f"{row['file']}:{row['line']}"
    place = source if row["path"] == "$" else f"{source} at {row['path']}"
    return f"{row['severity']}: {place}: {row['message']}"


def _write(report: Report, outputs: Collection[str], folder: Path) -> None:
    text = report.to_text() + "\n"
    if "stdout" in outputs:
        print(text, end="")
    if "json" in outputs:
        plain = {**report.to_plain(), "summary": report.summary}
        write_output(folder / "report.json", f"{json.dumps(plain, indent=2)}\n".encode())
    if "text" in outputs:
        write_output(folder / "report.txt", text.encode("utf-8", "backslashreplace"))


# -- selection ------------------------------------------------------------------------------------------


@attrs.frozen
class _Scope:
    """The names of the selected definitions; None means all."""

    names: frozenset[str] | None

    @classmethod
    def select(cls, root: Path, op_types: Collection[str] | None, names: Collection[str] | None) -> _Scope:
        """Select by file names, because a damaged data set may not open.

        Raises:
            UnknownName: The data set has no such definition or op_type.
        """
        if op_types is None and names is None:
            return cls(None)
        folder = root / "definitions"
        files = [Path(entry.path).relative_to(folder) for entry in walk(folder) if entry.name.endswith(".json")]
        known = {path.stem: path.parts[0] for path in files}
        for kind, wanted, existing in (("op_type", op_types, known.values()), ("definition", names, known)):
            for name in wanted or ():
                if name not in existing:
                    raise UnknownName(kind, name, tuple(sorted(set(existing))))
        selected = {
            n for n, t in known.items() if (op_types is None or t in op_types) and (names is None or n in names)
        }
        return cls(frozenset(selected))

    def includes(self, name: str) -> bool:
        """Whether a definition is selected."""
        return self.names is None or name in self.names


def _is_selected(problem: Problem, checks: Collection[str], scope: _Scope) -> bool:
    if problem.code == "no-data-set":
        return True
    path = PurePosixPath(problem.file)
    names = (*path.parts[:-1], path.stem)
    if scope.names is not None and scope.names.isdisjoint(names):
        return False
    check = "layout" if problem.code in _LAYOUT_CODES else _FOLDERS.get(path.parts[0], "layout")
    return check in checks


# -- baselines ------------------------------------------------------------------------------------------


def _check_baselines(trace_set: TraceSet, scope: _Scope, args: argparse.Namespace) -> Iterator[Problem]:
    names = [name for name in trace_set.definitions if scope.includes(name)]
    baselines = {
        name: [s.name for s in trace_set.solutions.get(name, ()) if s.author == _BASELINE_AUTHOR] for name in names
    }
    if "baseline" in args.checks:
        for name, solutions in baselines.items():
            if len(solutions) != 1:
                message = f"has {len(solutions)} solutions of the author {_BASELINE_AUTHOR!r}; scores need exactly one"
                yield Problem(f"definition {name}", "$", message, code="baseline")
    if "benchmark" in args.checks:
        solutions_to_run = [name for solutions in baselines.values() for name in solutions]
        yield from _run_baselines(trace_set, solutions_to_run, is_on_cpu=args.disable_gpu)


def _run_baselines(trace_set: TraceSet, solutions: Iterable[str], *, is_on_cpu: bool) -> Iterator[Problem]:
    """Run solutions on the first workload of their definitions and yield the failures."""
    from fib_bench import Benchmark, BenchmarkConfig
    from fib_compile.device import list_cuda_devices

    names = tuple(solutions)
    if not names:
        return
    devices = () if is_on_cpu else tuple(list_cuda_devices())
    config = BenchmarkConfig(solutions=names, max_workloads=1, devices=devices or None)
    result = Benchmark(trace_set, config).run(dump_traces=False)
    for skip in result.failures:
        yield Problem("benchmark", "$", f"could not run: {skip}", code="benchmark")
    for trace in result.traces:
        if trace.evaluation is not None and not trace.is_successful():
            message = f"{trace.evaluation.status} on workload {trace.workload.uuid}: {trace.evaluation.log.strip()}"
            yield Problem(f"solution {trace.solution}", "$", message, code="benchmark")
