"""Bare runs of `on_gpu.py`. A profiler or sanitizer on the call that a tool makes, without the tool."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
from defects import DEFINITION, LARGE
from fib_agents.sandboxed.call import TOOL_BEGAN
from fib_agents.sandboxed.jobs import make_values, read_phases, write_job
from fib_agents.sandboxed.run import Sandbox
from fib_agents.workspace import Workspace
from fib_bench.worker.server_environment import server_environment
from fib_schema import Solution


@attrs.frozen(kw_only=True)
class Bare:
    """A program on the call that a tool makes, outside of the sandbox and without our code around it."""

    space: Workspace
    solution: Solution
    command: Callable[[str, Sequence[str]], list[str]]
    environment: Mapping[str, str] = attrs.Factory(dict)
    warm_calls: int = 0

    def build(self) -> None:
        """Build the solution into the common cache, by one call without the program."""
        self._run(lambda _log, call: list(call), is_checked=True)

    def run(self) -> tuple[float, Mapping[str, float]]:
        """Seconds of one run, whose home is empty as that of a tool is, and its seconds by phase."""
        return self._run(self.command)

    def _run(
        self, command_of: Callable[[str, Sequence[str]], list[str]], *, is_checked: bool = False
    ) -> tuple[float, Mapping[str, float]]:
        space = self.space
        with Sandbox(space, self.solution) as sandbox:
            values = make_values(space, DEFINITION, LARGE, "normal")
            call = write_job(sandbox, space, DEFINITION, self.solution, LARGE, values, warm_calls=self.warm_calls)
            environment = server_environment(space.device) | dict(self.environment)
            environment |= {"HOME": str(sandbox.path), "TMPDIR": str(sandbox.path)}
            begin = time.monotonic()
            environment[TOOL_BEGAN] = str(begin)
            subprocess.run(command_of(str(sandbox.log_path), call), env=environment, check=is_checked)
            end = time.monotonic()
            return end - begin, read_phases(sandbox, begin, end)


def phase_table(turns: Sequence[tuple[Mapping[str, float], Mapping[str, float]]]) -> Iterator[str]:
    """The median seconds of each phase in `profile` and in the bare run."""
    yield "| phase | profile, s | bare ncu, s |\n| --- | --- | --- |"
    for name in dict.fromkeys(name for pair in turns for one in pair for name in one):
        cells = [
            f"{statistics.median(found):.2f}"
            if (found := [pair[side][name] for pair in turns if name in pair[side]])
            else "-"
            for side in (0, 1)
        ]
        yield f"| {name} | {' | '.join(cells)} |"
