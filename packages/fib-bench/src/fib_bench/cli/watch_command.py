"""Command ``fib-bench watch``: evaluates a kernel again, quickly, whenever its file changes. Nothing is recorded."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from fib_schema import Definition, FibError, Solution, TraceSet, Workload
from rich.console import Console

from ..authoring.inference import Choices, infer_kernel
from ..authoring.solutions import base_name, default_author
from ..authoring.sources import source_files
from ..config.benchmark import BenchmarkConfig
from ..events import Evaluated, Skipped
from ..plan import DefinitionPlan
from .author_commands import add_kernel_options, choices_of
from .data_set_option import data_set_of
from .help_pages import add_help
from .printing import output_console, safe_text
from .quick_runs import MAX_WORKLOADS, print_results
from .run_options import default_device

if TYPE_CHECKING:
    from ..execution.judge_process import JudgeProcess

_INTERRUPTED = 130
_POLL_SECONDS = 0.25

Stamp = tuple[tuple[str, int, int, int], ...]


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``watch``."""
    add_help(parser, "watch")
    parser.add_argument("file", metavar="FILE", type=Path, help="a .py, .cu or .cpp file, or a folder of them")
    add_kernel_options(parser)
    parser.add_argument("--device", help="where to run: cpu or cuda:N (default: the first GPU, or the CPU without one)")
    parser.set_defaults(command=_watch)


def _watch(arguments: argparse.Namespace, errors: Console) -> int:
    root = data_set_of(arguments)
    trace_set = TraceSet.from_path(root)
    definition = trace_set.get_definition(arguments.definition)
    workloads = tuple(trace.workload for trace in trace_set.workloads.get(definition.name, [])[:MAX_WORKLOADS])
    if not workloads:
        errors.print(safe_text(f"fib-bench: {definition.name} has no workloads", "red"), soft_wrap=True)
        return 1
    watcher = Watcher(arguments.file, definition, workloads, choices_of(arguments), output_console())
    keep = f"fib-bench add {shlex.quote(str(arguments.file))} --definition {definition.name}"
    keep += f" --dataset {shlex.quote(str(root))}"
    errors.print(safe_text(f"watching {arguments.file}; Ctrl-C ends. To keep a version: {keep}"), soft_wrap=True)
    try:
        from ..execution.judge_process import JudgeProcess

        config = BenchmarkConfig(quick=True, device=arguments.device or default_device()).for_data_set(trace_set)
        with closing(JudgeProcess(config, root, {})) as judge:
            watcher.run(judge, lambda: time.sleep(_POLL_SECONDS))
    except KeyboardInterrupt:
        errors.print("stopped")
    return _INTERRUPTED


class Watcher:
    """Evaluates a kernel when its files have changed.

    Args:
        path: A file or a folder; it may be missing, replaced or broken at any time.
        definition: What the kernel implements.
        workloads: What it runs on.
        choices: What inference does not decide.
        console: Gets the results.
    """

    def __init__(
        self, path: Path, definition: Definition, workloads: tuple[Workload, ...], choices: Choices, console: Console
    ) -> None:
        self._path = path
        self._definition = definition
        self._workloads = workloads
        self._choices = choices
        self._console = console
        self._seen: Stamp | None = None
        self._is_missing = False

    def run(self, judge: JudgeProcess, wait: Callable[[], None]) -> None:
        """Evaluate now and after each change; ends by an exception of `wait` only."""
        while True:
            if self.has_changed():
                self.evaluate(judge)
            wait()

    def has_changed(self) -> bool:
        """Whether the files differ from the last call; a file that is missing for a moment is waited for."""
        stamp = tuple(_stamps(self._path))
        if not stamp:
            if not self._is_missing:
                self._say(f"{self._path} is missing; waiting for it", "yellow")
            self._is_missing = True
            return False
        self._is_missing = False
        is_other, self._seen = stamp != self._seen, stamp
        return is_other

    def evaluate(self, judge: JudgeProcess) -> None:
        """Evaluate the kernel as it is now, and print the results or why it cannot be evaluated."""
        self._say(f"-- {time.strftime('%H:%M:%S')} {self._path}", "bold")
        try:
            kernel = infer_kernel(self._path, self._definition, self._choices)
            name = base_name(self._path)
            solution = Solution(name, self._definition.name, default_author(), kernel.spec, kernel.sources)
        except FibError as error:
            self._say(str(error), "red")
            return
        pending = {workload.uuid: (solution,) for workload in self._workloads}
        for event in judge.execute(DefinitionPlan(self._definition, self._workloads, pending)):
            if isinstance(event, Evaluated):
                print_results(self._console, [event.trace], {solution.name: solution})
            elif isinstance(event, Skipped):
                self._say(f"could not run: {event.skip}", "red")

    def _say(self, text: str, style: str) -> None:
        self._console.print(safe_text(text, style), soft_wrap=True)
        self._console.file.flush()


def _stamps(path: Path) -> Iterator[tuple[str, int, int, int]]:
    """Name, inode, size and time of each source file; nothing while a file is missing."""
    files = [path]
    if path.is_dir():
        files = source_files(path)
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        yield str(file), status.st_ino, status.st_size, status.st_mtime_ns
