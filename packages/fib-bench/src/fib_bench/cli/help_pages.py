"""What ``--help`` says beyond the options: what a command is for, what it returns, and examples."""

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
progress to stderr. Exit codes: 0, 1 where something could not run or does not hold, 2 where the command
is wrong, 130 where it was interrupted; what was evaluated until then is recorded.""",
        """\
examples:
  fib-bench demo                       see it work in two minutes, with a GPU or without
  fib-bench run DIR --device cuda:0    evaluate everything in DIR
  fib-bench summary DIR                the leaderboard
  fib-bench COMMAND --help             what a command does, with examples""",
    ),
    "run": Page(
        """\
Evaluate all solutions on all workloads, and append a trace for each pair as soon as it is made.

Each solution runs in a process of its own, which holds no expected output. One that raises, hangs or
crashes costs its own evaluation; a wrong solution is a result, and the exit code is 0 all the same. It is 1
where something could not run at all, with the reasons at the end.""",
        """\
examples:
  fib-bench run DIR --device cuda:0
  fib-bench run DIR --resume                       only what has no trace yet
  fib-bench run DIR --definitions rmsnorm_h4096 --solutions mine --max-workloads 3 --timeout 30
                                                   a quick look at one solution
  fib-bench run DIR --devices all                  on all GPUs of this machine
  fib-bench run DIR --executor ray --address HOST:6379 --device cuda:0
                                                   on all GPUs of a cluster
  fib-bench run DIR --baseline flashinfer_rmsnorm_h4096
                                                   time it beside the engine's own kernel
  fib-bench run DIR --json | jq '.traces[].evaluation.status'""",
    ),
    "report": Page(
        """\
Show what the traces of a data set say. Only what ran on the same kind of device is compared, and of
several traces of a solution on a workload the latest counts.""",
        """\
examples:
  fib-bench report summary DIR
  fib-bench report compare BEFORE AFTER            as a gate: exits with 1 if something became slower
  fib-bench report html DIR --output report.html""",
    ),
    "report summary": Page(
        """\
Totals, then the solutions of each definition with the fastest first, then authors by score.

speedup    geometric mean of the reference's latency over the solution's; none for what fails anywhere
win@p      share of workloads with at most p times the shortest latency of any ranked solution
light      median share of what the device can attain, where the op_type is known""",
        """\
examples:
  fib-bench report summary DIR
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
Say what became faster or slower between two runs, or between two solutions.

Latencies differ if their 95 % confidence intervals are apart and the medians by --min-change; where a trace
has no interval, by --margin. Exits with 0 if nothing became slower or stopped passing, with 1 if something
did, with 2 if there is nothing to compare.""",
        """\
examples:
  fib-bench report compare BEFORE AFTER
  fib-bench report compare BEFORE AFTER --complete --json     in CI: what was not tried again fails, too
  fib-bench report compare DIR --solutions old_kernel new_kernel""",
    ),
    "report merge": Page(
        """\
Make several data sets one, with every record once and none lost. Exits with 1, and writes nothing, if two
of them have different things under one name; all conflicts are listed.""",
        """\
examples:
  fib-bench report merge MINE YOURS --into BOTH""",
    ),
    "report html": Page(
        """\
Write one page with the leaderboard, and per definition latency against sizes, the roofline, failures with
their logs and all traces. It loads nothing from a network, and shows what solutions wrote as text.
Needs the extra 'report': pip install 'fib-bench[report]'.""",
        """\
examples:
  fib-bench report html DIR --output report.html
  fib-bench report html DIR --png charts --definitions rmsnorm_h4096""",
    ),
    "validate": Page(
        """\
Say everything that is wrong with a data set at once: bad records, unknown names, names and keys that occur
twice, workloads that contradict their definition, missing blobs. Each problem has its file, line and path.
Exits with 1 if there are errors; notices do not count.""",
        """\
examples:
  fib-bench validate DIR
  fib-bench validate DIR --json | jq '.problems[].file'""",
    ),
    "migrate": Page(
        """\
Rewrite a data set of an older schema into the current one, losing nothing; what cannot be read is put
aside in DST/rejected with the reasons. Exits with 1 if there is such, or if the result has errors.""",
        """\
examples:
  fib-bench migrate OLD NEW && fib-bench validate NEW""",
    ),
    "selftest": Page(
        """\
Show what this harness withstands on this machine: solutions that cheat, which must be caught, and solutions
with honest habits, which must pass. Exits with 1 if one of them does not come out as it must. All of them take
some minutes.""",
        """\
examples:
  fib-bench selftest
  fib-bench selftest --device cuda:0
  fib-bench selftest --only honest
  fib-bench selftest --only 5 6                    the tricks in rows 5 and 6: answers kept from earlier calls""",
    ),
    "demo": Page(
        """\
Write a small data set of three definitions and ten solutions, benchmark it on the CPU, and show the
leaderboard. One solution is wrong on purpose. It takes about two minutes; running it again adds traces.""",
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
