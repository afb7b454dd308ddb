"""Commands that take a data set: what they read, and how to see that they processed the rest of a damaged set."""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .healthy import HARDWARE

FAST = "--warmup-runs 1 --iterations 1 --num-trials 1 --timeout 30"
MEASURE = "--measure-seconds 0.01"
RECORDS = frozenset({"definition", "solution", "workload", "trace"})


@dataclass(frozen=True)
class Case:
    """The folders of one run of a command.

    Attributes:
        path: The damaged set, as the command gets it.
        out: A path that does not exist yet.
        other: A healthy set.
    """

    path: str
    out: Path
    other: Path


@dataclass(frozen=True)
class Command:
    """A command, or a function of a library, with its arguments.

    Attributes:
        words: Its name and arguments; ``{set}``, ``{out}`` and ``{other}`` stand for paths, ``{hardware}`` for a name.
        reads: The parts of a set that it parses (`kind.PART_NAMES`, ``settings``): these files must be named.
        lists: The parts of which it lists the names only.
        opens: Further parts whose damage it is run on; nothing of these has to be named.
        codes: The documented exit codes.
        shows: Text that shows in its output that the rest was processed; empty: nothing has to be shown.
        writes: A pattern for a file below `Case.out` that shows that the rest was processed.
        is_execution: It uses the content of records, so that errors which show in use have to be named.
        function: Runs instead of a command line.
        is_machine_readable: Its output is JSON or CSV.
        seconds: Its limit of time.
        has_torch: It imports torch.
        only: The parts whose damage it is run on; empty: all.
    """

    words: tuple[str, ...]
    reads: frozenset[str]
    lists: frozenset[str] = frozenset()
    opens: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset({0, 1, 2})
    shows: str = ""
    writes: str = ""
    is_execution: bool = False
    function: Callable[[Case], int] | None = None
    is_machine_readable: bool = False
    seconds: float = 200.0
    has_torch: bool = False
    only: frozenset[str] = frozenset()

    @property
    def name(self):
        """The command without the paths and numbers that are the same for all."""
        return " ".join(
            word
            for word in self.words
            if word not in (*FAST.split(), *MEASURE.split(), "keeper_py") and "{" not in word and word not in OPTIONS
        )

    def takes(self, kind):
        """Whether the kind of damage can concern it."""
        if kind.is_endless and self.name in ("fib-apply warm", "fib_apply.enable_apply"):
            return False  # they grant a compiler 600 s, more than a case has
        if self.only:
            return kind.part in self.only
        return kind.part == "set" or kind.part in self.reads | self.lists | self.opens

    def arguments(self, case):
        places = {"{set}": case.path, "{out}": str(case.out), "{other}": str(case.other)}
        places |= {"{hardware}": HARDWARE}
        return [places.get(word, word) for word in self.words]


OPTIONS = frozenset({"--local", "--dataset", "--into", "--output", "--output-folder", "--hardware", "--definition"})


def _logged():
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, force=True)


def _call_keeper():
    import fib_apply
    import torch

    @fib_apply.apply("keeper")
    def keeper(x, s):
        return x * s

    result = keeper(torch.ones(16), 2.0)
    print("called keeper" if torch.equal(result, torch.full((16,), 2.0)) else "wrong result")
    return 0


def enable_apply(case):
    """Route calls by the set, in the foreground, and call the keeper, as an engine does."""
    import fib_apply
    from fib_schema import FibError

    _logged()
    try:
        with fib_apply.enable_apply(case.path, fib_apply.ApplyConfig(on_error="fallback")) as runtime:
            code = _call_keeper()
            print(runtime.explain("keeper"))
    except FibError as error:
        print(error)
        return 2
    return code


def enable_tracing(case):
    """Trace the calls of the keeper into the set, as an engine does."""
    import fib_tracer
    from fib_schema import FibError

    _logged()
    try:
        with fib_tracer.enable_tracing(case.path) as runtime:
            code = _call_keeper()
            print({name: stats.stored for name, stats in runtime.flush().items()})
    except FibError as error:
        print(error)
        return 2
    return code


def _command(line, reads, lists="", **fields):
    """A command; without `shows` or `writes`, one that shows the keeper's name."""
    words = tuple(line.split())
    if "writes" not in fields:
        fields = {"shows": "keeper", **fields}
    machine = "--json" in words
    return Command(words, frozenset(reads.split()), frozenset(lists.split()), is_machine_readable=machine, **fields)


_ALL = "definition solution workload trace blob"
_COPY = {"reads": _ALL, "writes": "definitions/activation/keeper.json"}
_MERGE = {"reads": "", "lists": _ALL}  # it copies files byte for byte
_REPAIR = {"reads": "", "lists": " ".join(RECORDS), "opens": frozenset({"blob"})}  # the other set has the blob
_SUMMARY = {"reads": "trace workload", "lists": "definition solution"}
_TABLE = {"reads": "definition trace", "lists": "solution"}
_STATS = {"reads": "definition workload"}
_ENGINE = {"has_torch": True, "seconds": 300, "shows": "called keeper"}
_RUN = {"is_execution": True, "has_torch": True, "seconds": 300}
_SETS = frozenset({"set", "settings"})
COMMANDS = (
    _command(
        f"fib-bench run {{set}} {FAST} {MEASURE}",
        reads="definition solution workload blob settings",
        opens=RECORDS,
        shows="keeper_py: PASSED",
        **_RUN,
    ),
    _command(
        f"fib-bench run {{set}} --resume --json {FAST} {MEASURE}",
        reads="definition solution workload trace settings",
        **_RUN,
    ),
    _command("fib-bench validate {set}", reads=_ALL, is_execution=True, shows=""),
    _command("fib-bench validate {set} --json", reads=_ALL, is_execution=True, shows=""),
    _command("fib-bench report summary {set}", **_SUMMARY),
    _command("fib-bench report summary {set} --json", **_SUMMARY),
    _command("fib-bench report best {set}", reads="trace"),
    _command("fib-bench report best {set} --json", reads="trace"),
    _command("fib-bench report compare {other} {set}", reads="trace", shows=""),
    _command("fib-bench report compare {set} {other} --json", reads="trace"),
    _command("fib-bench report merge {set} {other} --into {out}", shows="", **_REPAIR),
    _command("fib-bench report merge {set} --into {out}", writes=_COPY["writes"], **_MERGE),
    _command("fib-bench report html {set} --output {out}", reads="trace definition", lists="solution", writes="."),
    _command("fib-bench migrate {set} {out}", **_COPY),
    _command("fib-bench migrate {set} {out} --json", **_COPY),
    _command("fib-apply table {set} --hardware {hardware}", **_TABLE),
    _command("fib-apply table {set} --hardware {hardware} --json", **_TABLE),
    _command(
        "fib-apply explain {set} --definition keeper --hardware {hardware}",
        reads="",
        opens=frozenset({"definition", "trace"}),
    ),
    _command("fib-apply explain {set} --definition victim --hardware {hardware} --json", shows="", **_TABLE),
    _command("fib-apply warm {set}", has_torch=True, seconds=300, shows="ready keeper_py", **_TABLE),
    _command("fib_apply.enable_apply {set}", function=enable_apply, **_TABLE, **_ENGINE),
    _command("fib_tracer.enable_tracing {set}", function=enable_tracing, reads="definition", **_ENGINE),
    _command("fib-compile build {set} --timeout 30", reads="definition solution", shows="keeper_cpp", seconds=300),
    _command("fib-tracer stats {set}", **_STATS),
    _command("fib-tracer stats {set} --json", **_STATS),
    _command("fib-tracer import {other} {set}", reads="definition", shows=""),
    _command("fib-tracer import {set} {other} --json", reads="", opens=RECORDS, shows=""),
    _command("fib-integrations baselines {set} --dry-run", reads="definition", lists="solution", shows=""),
    _command("fib-integrations baselines {set} --json", reads="definition", lists="solution", shows=""),
    _command(
        f"fib-compat run --local {{set}} --no-save-results {FAST} --solutions keeper_py",
        reads="settings",
        only=_SETS,
        **_RUN,
    ),
    _command("fib-compat report summary --local {set}", **_SUMMARY),
    _command("fib-compat report best --local {set}", reads="trace"),
    _command("fib-compat report visualize --local {set}", reads="trace"),
    _command("fib-compat report merge --local {set} {other} --output {out}", shows="", **_REPAIR),
    _command("fib-compat validate --dataset {set}", reads=_ALL, is_execution=True, shows=""),
    _command(
        "fib-compat validate --dataset {set} --checks baseline,benchmark --disable-gpu",
        reads="",
        opens=RECORDS,
        shows="",
        has_torch=True,
        seconds=300,
    ),
    _command(
        "fib-compat validate --dataset {set} --outputs json,text --output-folder {out}",
        reads="",
        shows="",
        writes="validation_*.txt",
        only=_SETS | {"definition"},
    ),
)
