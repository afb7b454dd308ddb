"""Help pages: purpose, exit codes and examples of each command."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from types import MappingProxyType

import attrs


@attrs.frozen
class Page:
    """The text around the options of a command."""

    description: str
    examples: str = ""


PAGES: Mapping[str, Page] = MappingProxyType({
    "fib-bench": Page(
        """\
Run the kernel solutions of a data set, check their results, and measure their latency.

A data set is a folder of definitions (what a kernel computes, with reference code), solutions (one
implementation each), workloads (sizes and inputs) and traces (what came out). Results go to stdout,
progress to stderr. Exit codes: 0, 1 if some work could not run or a check fails, 2 for an invalid command or a
file that cannot be read or written, 130 after an interrupt (finished evaluations are recorded), 141 if the reader
of stdout has ended.""",
        """\
examples:
  fib-bench demo                       see it work in half a minute, with a GPU or without
  fib-bench run DIR --device cuda:0    evaluate everything in DIR
  fib-bench add kernel.py --definition rmsnorm_h1024 --dataset DIR
                                       add a kernel of your own
  fib-bench summary DIR                the leaderboard
  fib-bench COMMAND --help             what a command does, with examples""",
    ),
    "run": Page(
        """\
Evaluate all solutions on all workloads, and append a trace for each pair as soon as it is made.

Each solution runs in a process of its own, which holds no expected output. A solution that raises, hangs or
crashes fails only its own evaluation; a wrong solution is a result with exit code 0. The exit code is 1 if some
work, or all of it, could not run; the reasons are printed at the end. A solution also runs on devices with the
architecture of one in its target_hardware, such as one for H100 on an H200; --strict-hardware requires the name.""",
        """\
examples:
  fib-bench run DIR --device cuda:0
  fib-bench run DIR --resume                       only what has no trace yet
  fib-bench run DIR --quick --solutions mine --max-workloads 3
                                                   a quick look at one solution, unranked
  fib-bench run DIR --devices all                  on all GPUs of this machine
  fib-bench run DIR --executor ray --address HOST:6379 --device cuda:0
                                                   on all GPUs of a cluster
  fib-bench run DIR --baseline flashinfer_rmsnorm_h4096
                                                   time it beside the engine's own kernel
  fib-bench run DIR --json | jq '.traces[].evaluation.status'""",
    ),
    "add": Page(
        """\
Add a kernel to a data set as a solution. Its language, entry point and calling style are inferred from the file,
shown with the reasons, and overridden by options. No file is overwritten: changed code is the next version
(kernel_v2), and code that the data set has already is not added again.

language     from the suffix, and for .py from the imports
entry point  the function run, else the only one that fits the definition
style        destination if the function takes the outputs, return if it takes the inputs only""",
        """\
examples:
  fib-bench add kernel.py --definition rmsnorm_h1024
  fib-bench add kernel.cu --definition rmsnorm_h1024 --dataset DIR --name warp_per_row
  fib-bench add kernel.cpp --definition rmsnorm_h1024 --quick
                                                   add it and evaluate it at once
  fib-bench add folder --definition gemm_n256_k256 --entry src/gemm.cu::run""",
    ),
    "edit": Page(
        """\
Open the sources of a solution in $VISUAL or $EDITOR, and add the result as a new version with the same language,
entry point and style. The solution itself stays as it is. An edit that cannot be added is kept in a folder.""",
        """\
examples:
  fib-bench edit rmsnorm_torch --dataset DIR
  EDITOR=nano fib-bench edit rmsnorm_torch""",
    ),
    "watch": Page(
        """\
Evaluate a kernel on up to 3 workloads, and again whenever its file changes. Nothing is recorded: `fib-bench add`
keeps a version. Ctrl-C ends it with exit code 130.""",
        """\
examples:
  fib-bench watch kernel.py --definition rmsnorm_h1024
  fib-bench watch kernel.cu --definition rmsnorm_h1024 --device cuda:0""",
    ),
    "show": Page(
        """\
Show one solution (source with line numbers, latest results with 95 % intervals, full logs, history), one definition
(axes, inputs, reference, solutions, workloads) or one workload (sizes and the results on it).""",
        """\
examples:
  fib-bench show rmsnorm_torch --dataset DIR
  fib-bench show rmsnorm_h1024
  fib-bench show rmsnorm_h1024-batch_size-8 --json""",
    ),
    "new": Page("Write new records."),
    "new definition": Page(
        """\
Write a definition from a Python file whose function run is the reference. Annotations give the types:

  def run(x: "float32[rows, width=1024]", weight: "float32[width]") -> "y: float32[rows, width]":

An axis with a size is constant, others vary by workload. A type without brackets is a scalar. Several outputs are a
tuple: -> ("y: float32[rows]", "z: int32[rows]").""",
        """\
examples:
  fib-bench new definition rmsnorm_h1024 --reference rmsnorm.py --workload rows=1 --workload rows=64
  fib-bench new definition scale --reference scale.py --input 'x: float32[n]' --output 'y: float32[n]'""",
    ),
    "fetch": Page(
        """\
Download a data set from a hub, or what is missing of one: the same command continues an interrupted download. Each
file is compared with the digest that the hub states. A file that was changed here is never replaced; the exit code is
2 then. Needs the extra 'hub': pip install 'fib-bench[hub]'.""",
        """\
examples:
  fib-bench fetch flashinfer-trace
  fib-bench fetch flashinfer-trace data --op-types rmsnorm gemm
  fib-bench fetch flashinfer-trace --no-blobs       small; fib-bench run --synthesize-missing makes inputs
  fib-bench fetch OWNER/NAME data --revision v2 --endpoint http://127.0.0.1:8080""",
    ),
    "import": Page("Add problems of other benchmarks. Their files are executed: import what you trust."),
    "import kernelbench": Page(
        """\
Add a problem of KernelBench: a Python file with a module Model, get_inputs and get_init_inputs. It becomes a definition
with one workload. Parameters of the model become inputs, so that no solution can know them.

A solution is a file with a module ModelNew that has the parameters of Model.""",
        """\
examples:
  fib-bench import kernelbench level1/19_ReLU.py --dataset DIR
  fib-bench import kernelbench level1/19_ReLU.py --dataset DIR --solution model_new.py --author me""",
    ),
    "import gpumode": Page(
        """\
Add a problem of GPU MODE: a folder with task.yml, and reference.py with generate_input and ref_kernel. It becomes a
definition with a workload for each test and benchmark. Its tolerances go to the settings of the data set.

A solution is a file with a function custom_kernel.""",
        """\
examples:
  fib-bench import gpumode problems/vectoradd_py --dataset DIR
  fib-bench import gpumode problems/vectoradd_py --dataset DIR --solution submission.py --cases tests""",
    ),
    "report": Page(
        """\
Show the results in a data set. Only traces of the same kind of device are compared, and of several traces
of a solution on a workload the latest counts. CPU timings are shown in no order unless --include-unranked is
given; logs are marked as untrusted output of the solution.""",
        """\
examples:
  fib-bench report summary DIR
  fib-bench report compare BEFORE AFTER            as a gate: exits with 1 if something became slower
  fib-bench report html DIR --output report.html""",
    ),
    "report summary": Page(
        """\
Totals, then the solutions of each definition with the fastest first, then authors by score.

speedup    geometric mean of reference latency / latency; none for a solution that fails anywhere. `noise` if
           its interval includes 1, `imprecise` if the interval is wider than 10 % to each side
timed by   the timing method, unless all are `linked`; `host` includes time of the host
fast_p     share of workloads on which it passes with a speedup greater than p (KernelBench); fast_1 is correct
           and faster than the reference
light      median share of what the device can attain, where the op_type is known

With --weighted, the traced traffic instead: the time that the calls which fib-tracer counted take with the
reference and with each solution, the sum over workloads of calls * latency, and the quotient of both.""",
        """\
examples:
  fib-bench report summary DIR
  fib-bench report summary DIR --weighted
  fib-bench report summary DIR --baseline flashinfer_rmsnorm_h4096
  fib-bench report summary DIR --csv > standings.csv""",
    ),
    "report best": Page(
        "The fastest passing solution of each workload: what `fib-apply` chooses from.",
        """\
examples:
  fib-bench report best DIR
  fib-bench report best DIR --definitions rmsnorm_h4096 --json""",
    ),
    "report compare": Page(
        """\
List the changes of latency between two runs, or between two solutions.

Latencies differ if their 95 % confidence intervals are apart and the medians by --min-change; where a trace
has no interval, by --margin. CPU timings are compared with --include-unranked only. Exits with 0 if nothing
became slower or stopped passing, with 1 if a workload did, with 2 if there is nothing to compare.""",
        """\
examples:
  fib-bench report compare BEFORE AFTER
  fib-bench report compare BEFORE AFTER --html changes.html   a page as well
  fib-bench report compare BEFORE AFTER --complete --json     in CI: missing workloads fail, too
  fib-bench report compare DIR --solutions old_kernel new_kernel""",
    ),
    "report merge": Page(
        """\
Merge data sets; every record is written once. If two sets have different records with one name, all conflicts
are listed, nothing is written, and the exit code is 1. Bad records are copied unchanged. Files that cannot be
read are left out. The result is validated; if it has errors, or something was left out, the exit code is 1.""",
        """\
examples:
  fib-bench report merge MINE YOURS --into BOTH""",
    ),
    "report html": Page(
        """\
Write one page with the leaderboard, and per definition latency against sizes, the roofline, failures with
their logs and all traces. It loads nothing from a network, and shows output of solutions as untrusted text.
Needs the extra 'report': pip install 'fib-bench[report]'.""",
        """\
examples:
  fib-bench report html DIR --output report.html
  fib-bench report html DIR --png charts --definitions rmsnorm_h4096""",
    ),
    "validate": Page(
        """\
List all problems of a data set: invalid records, unknown names, duplicate names and keys, workloads that
contradict their definition, missing blobs. Each problem has its file, line and path. Exits with 1 if there are
errors; warnings do not count.

With --coverage, also run all references and list the definitions that lack workloads, a baseline, traces of the
baseline, or a reference that runs. These gaps do not change the exit code.""",
        """\
examples:
  fib-bench validate DIR
  fib-bench validate DIR --json | jq '.problems[].file'
  fib-bench validate DIR --coverage --page coverage.html
  fib-bench validate DIR --coverage --no-references --json | jq '.coverage.definitions[].gaps'""",
    ),
    "migrate": Page(
        """\
Convert a data set of a legacy schema to the current one. Unreadable records go to DST/rejected with the reasons.
Exits with 1 if there are any, or if the result has errors.""",
        """\
examples:
  fib-bench migrate OLD NEW && fib-bench validate NEW""",
    ),
    "selftest": Page(
        """\
Run exploits, which must be rejected or gain nothing, and honest solutions, which must pass, on this machine. Exits
with 1 if one has another result. All of them take some minutes.""",
        """\
examples:
  fib-bench selftest
  fib-bench selftest --device cuda:0
  fib-bench selftest --only honest
  fib-bench selftest --only 5 6                    the exploits in rows 5 and 6: cached answers of earlier calls""",
    ),
    "demo": Page(
        """\
Write a small data set of three definitions and ten solutions, benchmark it on the CPU, and show the
results. One solution is wrong on purpose. It takes about half a minute; running it again adds traces.""",
        """\
examples:
  fib-bench demo
  fib-bench demo /tmp/demo && fib-bench report html /tmp/demo""",
    ),
})  # fmt: skip


def add_help(parser: argparse.ArgumentParser, name: str) -> None:
    """Set the description and the examples of a parser."""
    page = PAGES[name]
    parser.description, parser.epilog = page.description, page.examples
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
