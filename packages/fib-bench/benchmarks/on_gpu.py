"""Measurements of fib-bench on a device, as tables in Markdown and raw numbers in JSON.

Sections, chosen with ``--sections``; each obeys ``--budget`` and states how much it measured in that time:

``same``
    Identical code against itself, on the recorded rmsnorm and gemm workloads.
``repeat``
    The same latencies in three runs.
``cupti``
    Latencies against CUPTI's kernel times of cold calls, for functions of one kernel.
``uncertainty``
    The stated uncertainty of kernels of 2 to 1000 us, each evaluated several times.
``exploits``
    The exploits of the self-test, with their gain over honest twins.
``honest``
    Honest evaluations, half of them beside busy processes.
``coverage``
    The timing method of every definition of the data set, with a solution that a CUDA graph can capture, and the
    reason of each exception. It is meant for ``--budget 240 --concurrency 4``.
``exclusive``
    Exclusive device time for each timed pair under 100 us.
``faults``
    Illegal access, an endless kernel, memory exhausted and others, each followed by a good solution.
``evaluators``
    Definitions with an evaluator of their own: the reference as the solution, and a wrong one.
``throughput``
    At least 130 pairs in three languages, with nothing built and with everything built.
``single``
    `evaluate()` of a small function in a warm process, full and quick.
``devices``
    The same work on one device and on two.
``autotuned``
    Ten autotuned attention kernels in Triton, with nothing compiled and with everything compiled.
``steps``
    The judge's own time: calls and milliseconds of each step of an evaluation.

``real``
    The solutions of others, in the folder ``--solutions``, with nothing and with everything compiled; their latencies
    against the sum of CUPTI's kernel times, and their call latencies against a plain loop.
    ``others.py`` makes such a folder and its data set.

The last eight run only where they are asked for.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
from cupti_agreement import cupti, real
from fib_schema import TraceSet
from gpu_autotuning import autotuned
from gpu_further import devices, evaluators, faults, single, throughput
from gpu_honesty import coverage, exploits, honest
from gpu_report import Report, where_and_when
from gpu_sections import exclusive, repeat, same, uncertainty
from gpu_session import Bench, Terminated
from gpu_steps import steps

SECTIONS: Mapping[str, Callable[[Bench], None]] = {
    "same": same,
    "repeat": repeat,
    "cupti": cupti,
    "uncertainty": uncertainty,
    "exploits": exploits,
    "honest": honest,
    "coverage": coverage,
    "exclusive": exclusive,
    "faults": faults,
    "evaluators": evaluators,
    "throughput": throughput,
    "single": single,
    "devices": devices,
    "autotuned": autotuned,
    "steps": steps,
    "real": real,
}
_BY_DEFAULT = tuple(SECTIONS)[:8]


def main() -> None:
    """Run the sections."""
    options = _parser().parse_args()
    bench = Bench(
        data_set=TraceSet.from_path(options.dataset),
        out=options.output,
        device=options.device,
        budget_seconds=options.budget,
        evaluations=options.count,
        words=options.only or (),
        solutions=options.solutions,
        concurrency=options.concurrency,
    )
    environment = where_and_when(options.device)
    signal.signal(signal.SIGTERM, _terminate)
    results = {name: _run(name, bench, environment) for name in options.sections}
    if failed := [name for name, is_good in results.items() if not is_good]:
        sys.exit(f"failed: {', '.join(failed)}")


def _terminate(*_: object) -> None:
    """End what is measured, once; a second signal ends the process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise Terminated


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, required=True, help="folder of the flashinfer-trace data set")
    parser.add_argument("--output", type=Path, default=Path("out"), help="folder for SECTION.md and SECTION.json")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=_BY_DEFAULT, metavar="SECTION")
    parser.add_argument("--budget", type=float, default=60.0, metavar="SECONDS", help="bound on each section")
    parser.add_argument("--count", type=int, default=1000, help="evaluations of `honest` at most")
    parser.add_argument("--concurrency", type=int, metavar="N", help="evaluations in flight; default: by the cores")
    parser.add_argument(
        "--only", nargs="+", metavar="WORD", help="cases of `exploits`, solutions of `real`: parts of names"
    )
    parser.add_argument("--solutions", type=Path, default=Path("solutions"), help="folder of solutions, for `real`")
    parser.add_argument("--device", default="cuda:0", help="`cpu` tries the sections out with small work")
    return parser


def _run(name: str, bench: Bench, environment: Mapping[str, str]) -> bool:
    """Run a section and write its report; returns whether it ended without an error."""
    begin, report = time.perf_counter(), Report.of_section(bench.out, name)
    report.numbers["environment"] = dict(environment)
    report.say(f"# {name}")
    report.say()
    report.say(", ".join(f"{key} {value}" for key, value in environment.items()))
    report.say()
    try:
        SECTIONS[name](attrs.evolve(bench, report=report))
    except Exception:  # noqa: BLE001 the other sections are worth their time all the same
        report.say(f"failed: {traceback.format_exc().strip().splitlines()[-1]}")
        traceback.print_exc()
        return False
    finally:
        seconds = time.perf_counter() - begin
        phases = report.numbers.get("phases", {})
        spent = ", ".join(f"{phase} {taken:.1f}" for phase, taken in phases.items()) or "not stated"
        report.numbers["seconds"] = seconds
        report.say(f"{seconds:.0f} s of a budget of {bench.budget_seconds:.0f} s; seconds by phase: {spent}.")
        report.say()
        report.save()
    return True


if __name__ == "__main__":
    main()
