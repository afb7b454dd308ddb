"""The published run. Our own solutions of a public data set, measured with `fib-bench run` within a time budget.

    published_run.sh WHEELS DATA_SET [options]

It writes into a folder: ``data-set.tar.xz`` (definitions, workloads, solutions and traces), ``summary.txt`` (the
output of `fib-bench report summary`), ``coverage.md`` (how each definition is timed), ``run.txt`` (what was run, and
the output of the runs), and ``report.html`` where `vl-convert` is installed; elsewhere
``python docs/make_published.py data-set.tar.xz`` makes the page.

The first run takes one workload of each definition, the second one all others, both with the cheapest definitions
first. When the budget is spent, a run is interrupted as by Ctrl-C, and what was measured is reported.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from fib_compile.device import hardware_from_device
from fib_schema import Trace, TraceSet
from gpu_honesty import print_coverage
from gpu_report import Budget, Report, count, status_of, where_and_when
from published_set import CHOSEN, RECORDED, Chosen, choose, word_of, write_set
from solution_table import capturable_entry

PROGRAM = (sys.executable, "-m", "fib_bench.cli.main")
_FINISH_SECONDS = 10.0
"""For evaluations that run when the budget is spent, and again after a second interrupt."""
_REPORT_SECONDS = 25.0
"""Of the budget: for the two waits and for the reports."""
_FIRST_SHARE = 0.6
"""Of the budget: at most, for one workload of each definition."""


def main() -> None:
    """Make the data set, run, and report."""
    options = _parser().parse_args()
    budget = Budget(options.budget)
    options.output.mkdir(parents=True, exist_ok=True)
    hardware = hardware_from_device(options.device)
    public = TraceSet.from_path(options.dataset)
    chosen = choose(public, hardware, options.workloads, options.only or (), one_each=options.one_each)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, f"fib-{hardware.rpartition(' ')[2].lower()}")
        trace_set = write_set(root, chosen)
        if options.resume is not None:
            _take_traces(trace_set, options.resume)
        if options.baselines:
            _add_baselines(trace_set)
        said = [
            _environment(options.device),
            *_left_out(public, chosen, options.only),
            "",
            *_run_all(root, chosen, budget, options),
        ]
        _report(root, options.output, chosen, said)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, required=True, help="folder of the flashinfer-trace data set")
    parser.add_argument("--output", type=Path, default=Path("out"), help="folder for the results")
    parser.add_argument("--budget", type=float, default=480.0, metavar="SECONDS", help="for everything")
    parser.add_argument("--workloads", type=int, default=3, metavar="N", help="workloads of each definition")
    parser.add_argument("--only", nargs="+", metavar="DEFINITION", help="these definitions; default: all")
    parser.add_argument("--concurrency", type=int, default=4, metavar="N", help="evaluations in flight at most")
    parser.add_argument("--one-each", action="store_true", help="one solution of each definition, a capturable one")
    parser.add_argument(
        "--resume", type=Path, metavar="ARCHIVE", help="data-set.tar.xz of an earlier run to go on with"
    )
    parser.add_argument("--baselines", action="store_true", help="add FlashInfer's kernels, which must be installed")
    parser.add_argument("--device", default="cuda:0", help="`cpu` tries it out")
    return parser


def _take_traces(trace_set: TraceSet, archive: Path) -> None:
    """Add the solutions, workloads and traces of an earlier run; what it measured is not measured again."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        earlier = TraceSet.from_path(next(Path(folder).iterdir()))
        have = {solution.name for some in trace_set.solutions.values() for solution in some}
        traces = [trace for some in earlier.traces.values() for trace in some]
        wanted = {trace.solution for trace in traces} - have
        solutions = [solution for some in earlier.solutions.values() for solution in some if solution.name in wanted]
        trace_set.add_solutions(solutions)
        known = {trace.workload.uuid for some in trace_set.workloads.values() for trace in some}
        more = [trace for some in earlier.workloads.values() for trace in some if trace.workload.uuid not in known]
        trace_set.add_traces([*more, *traces])


def _add_baselines(trace_set: TraceSet) -> None:
    """Add solutions that call FlashInfer, as `fib-integrations baselines` does."""
    from fib_integrations.adapters import select_adapters
    from fib_integrations.baselines import make_baselines

    trace_set.add_solutions(make_baselines(trace_set, select_adapters(None)).solutions)


# -- the runs ------------------------------------------------------------------------------------


def _run_all(root: Path, chosen: Sequence[Chosen], budget: Budget, options: argparse.Namespace) -> list[str]:
    """Run twice; returns the commands with their outputs."""
    names = [one.definition.name for one in chosen]
    words = ["run", str(root), "--device", options.device, "--concurrency", str(options.concurrency)]
    words += ["--timeout", "60", "--synthesize-missing", "--resume", "--verbose"]
    left = Budget(max(budget.left - _REPORT_SECONDS, 0.0))
    said = []
    first_share = _FIRST_SHARE if options.workloads > 1 else 1.0
    for more, share in ((["--max-workloads", "1"], first_share), ([], 1.0)):
        command = [*words, *more, "--definitions", *names]
        shown = " ".join([*words, *more, "--definitions ..."]).replace(str(root), root.name)
        said += [f"$ fib-bench {shown}", _run(command, left.seconds * share - left.used), ""]
    return said


def _run(words: Sequence[str], seconds: float) -> str:
    """The output of a command of fib-bench, interrupted after some time; nothing if no time is left."""
    if seconds <= 0:
        return "not run: the budget is spent"
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([*PROGRAM, *words], stdout=output, stderr=subprocess.STDOUT, text=True)
        try:
            for wait, number in ((seconds, signal.SIGINT), (_FINISH_SECONDS, signal.SIGINT), (_FINISH_SECONDS, None)):
                try:
                    process.wait(wait)
                    break
                except subprocess.TimeoutExpired:
                    process.kill() if number is None else process.send_signal(number)
            process.wait()
        finally:
            process.kill()
        output.seek(0)
        return output.read().rstrip()


# -- results -------------------------------------------------------------------------------------


def note_of(chosen: Sequence[Chosen], measured: Container[str]) -> str:
    """The origin of the inputs of all measured definitions, as the page states it."""
    counts = Counter(one.sizes for one in chosen if one.definition.name in measured)
    return (
        f"Sizes: for {counts[RECORDED]} definitions a few workloads that are recorded in the public data set, spread "
        f"by size; for {counts[CHOSEN]} definitions without public workloads, sizes of our own. "
        "All inputs are synthesized, because recorded tensors are not public. "
        "Solutions by the author fib are those of the repository; those by the author reference are the definition's "
        "own code."
    )


def _environment(device: str) -> str:
    return ", ".join(f"{key} {value}" for key, value in where_and_when(device).items())


def _left_out(public: TraceSet, chosen: Sequence[Chosen], only: Sequence[str] | None) -> list[str]:
    """The definitions that were not chosen although nobody named others."""
    names = sorted(set(only or public.definition_names()) - {one.definition.name for one in chosen})
    return [f"Left out, because no workload fits: {', '.join(names)}"] if names else []


def _write_coverage(out: Path, definitions: Iterable[str], traces: Iterable[Trace]) -> None:
    """The timing method of one capturable solution of each definition, on the workload that was timed first."""
    wanted = {name: f"{name}_{word_of(entry.file)}" for name in definitions if (entry := capturable_entry(name))}
    found: dict[str, Trace] = {}
    for trace in traces:
        if trace.solution == wanted.get(trace.definition):
            found.setdefault(trace.definition, trace)
    report = Report.of_section(out, "coverage")
    print_coverage(report, wanted, found, {})
    report.save()


def _late(traces: Iterable[Trace]) -> list[str]:
    """A sentence about solutions that were ended, if there are any."""
    names = sorted({str(trace.solution) for trace in traces if status_of(trace) == "TIMEOUT"})
    end = "did not answer within 60 s, in which kernels that are compiled when they are called must be compiled"
    return [f"Solutions that {end}: {', '.join(names)}."] if names else []


def _report(root: Path, out: Path, chosen: Sequence[Chosen], said: list[str]) -> None:
    """Write the files; the archive first, so that a killed machine loses least."""
    traces = [trace for some in TraceSet.from_path(root).traces.values() for trace in some]
    note = " ".join([note_of(chosen, {trace.definition for trace in traces}), *_late(traces)])
    said.insert(1, note)
    with tarfile.open(out / "data-set.tar.xz", "w:xz") as archive:
        (root / "NOTE.txt").write_text(f"{note}\n", "utf-8")
        archive.add(root, root.name)
    measured = {trace.definition for trace in traces if trace.is_successful()}
    said += [f"{len(traces)} evaluations: {count(map(status_of, traces))}"]
    said += [f"{len(measured)} definitions with a passing solution"]
    print("\n".join(said[-2:]), flush=True)
    _write_coverage(out, TraceSet.from_path(root).definitions, traces)
    (out / "run.txt").write_text("\n".join(said) + "\n", "utf-8")
    (out / "summary.txt").write_text(_run(["report", "summary", str(root)], 60.0) + "\n", "utf-8")
    if importlib.util.find_spec("vl_convert") is None:
        print("no report.html: vl-convert is not installed here", flush=True)
        return
    page = ["report", "html", str(root), "--note", note, "--output", str(out / "report.html")]
    print(_run(page, 60.0), flush=True)


if __name__ == "__main__":
    main()
