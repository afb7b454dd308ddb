"""Workspace: the data set and the device that tools work on, and the solutions that agents hand over."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from fib_bench.authoring.inference import infer_sources
from fib_bench.config.model import with_device_numbers
from fib_compile.device import list_cuda_devices
from fib_schema import Definition, InvalidField, Solution, SourceFile, TraceSet, UnknownName, Workload, parse_json

from .errors import InvalidArguments, NeedsGpu

Code = str | Mapping[str, Any]
"""A solution: its name in the data set, its files as ``{"kernel.py": source}``, or a whole record."""
_NO_NAME = re.compile(r"[\n{(]")
_MAX_SOURCE_CHARS = 4_000_000


@attrs.frozen
class Workspace:
    """The context of every tool. The program that runs an agent chooses it; the agent cannot.

    Args:
        root: The data set.
        device: ``cpu``, ``cuda:N``, or ``cuda`` for the first GPU.
        author: The author of submitted solutions.
        timeout_seconds: The limit of each step: a build, a call, a run of a profiler.
        trusts_solutions: Run profilers and sanitizers outside of the sandbox, for code of one's own only.
        progress: Called with steps done, steps in total and a message.
        cancelled: Ends a tool when it is set.
    """

    root: Path = attrs.field(converter=Path)
    device: str = attrs.field(default="cpu", converter=with_device_numbers)
    author: str = "agent"
    timeout_seconds: float = 60.0
    trusts_solutions: bool = False
    progress: Callable[[int, int, str], None] = attrs.field(default=lambda *_: None, eq=False)
    cancelled: threading.Event | None = attrs.field(default=None, eq=False)

    def open(self) -> TraceSet:
        """The data set as it is on the disk now.

        Raises:
            DataSetNotFound: There is none.
        """
        return TraceSet.from_path(self.root)

    @property
    def is_cuda(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.startswith("cuda")


def require_gpu(workspace: Workspace, tool: str) -> None:
    """Check that the device is a GPU of this machine.

    Raises:
        NeedsGpu: It is not.
    """
    if workspace.device not in list_cuda_devices():
        raise NeedsGpu(tool, workspace.device)


def read_solution(workspace: Workspace, trace_set: TraceSet, definition: Definition, code: Code | Solution) -> Solution:
    """The solution that an agent has handed over.

    Raises:
        UnknownName: No solution of the definition has this name.
        InvalidArguments: There are no files, or the record belongs to another definition.
        KernelFileError: Language, entry point or style cannot be inferred.
    """
    if isinstance(code, Solution):
        found = code
    elif isinstance(code, str):
        if _NO_NAME.search(code):
            raise InvalidArguments("solution", ('text is no name of a solution; pass {"kernel.py": source}',))
        known = trace_set.get_solution(code)
        if known is None or known.definition != definition.name:
            raise UnknownName("solution", code, trace_set.solution_names(definition.name))
        return known
    elif "spec" in code:
        given = {"name": "candidate", "definition": definition.name, "author": workspace.author, **code}
        found = parse_json(json.dumps(given), Solution, source="solution")
    else:
        return _from_files(workspace, definition, code)
    if found.definition != definition.name:
        problem = f"the solution implements {found.definition!r}, and the definition is {definition.name!r}"
        raise InvalidArguments("solution", (problem,))
    return found


def _from_files(workspace: Workspace, definition: Definition, files: Mapping[str, Any]) -> Solution:
    wrong = [f"{path!r}: its content is not text" for path, text in files.items() if not isinstance(text, str)]
    if not files:
        wrong.append('there is no file; pass {"kernel.py": source}')
    if not wrong and (size := sum(map(len, files.values()))) > _MAX_SOURCE_CHARS:
        wrong.append(f"the files have {size} characters, and at most {_MAX_SOURCE_CHARS} are read")
    if wrong:
        raise InvalidArguments("solution", tuple(wrong))
    try:
        sources = tuple(SourceFile(path, text.replace("\r\n", "\n")) for path, text in files.items())
    except InvalidField as error:
        raise InvalidArguments("solution", (str(error),)) from error
    kernel = infer_sources(", ".join(files), sources, definition)
    solution = Solution("candidate", definition.name, workspace.author, kernel.spec, kernel.sources)
    return attrs.evolve(solution, name=f"candidate_{solution.hash()[:8]}")


def choose_workloads(
    trace_set: TraceSet, definition: Definition, uuids: Sequence[str] | None, max_count: int
) -> tuple[Workload, ...]:
    """The workloads of these uuids; without any, at most `max_count` of them, spread from the first to the last.

    Raises:
        UnknownName: The definition has no workload of a uuid.
        InvalidArguments: The definition has no workloads, or none was chosen.
    """
    workloads = [trace.workload for trace in trace_set.workloads.get(definition.name, ())]
    if not workloads:
        raise InvalidArguments("workloads", (f"{definition.name} has no workloads in {trace_set.root}",))
    if uuids is not None:
        if not uuids:
            raise InvalidArguments("workloads", ("the list is empty; leave it out, or name a uuid",))
        by_uuid = {workload.uuid: workload for workload in workloads}
        for uuid in uuids:
            if uuid not in by_uuid:
                raise UnknownName("workload", uuid, tuple(by_uuid))
        return tuple(by_uuid[uuid] for uuid in dict.fromkeys(uuids))
    if len(workloads) <= max_count:
        return tuple(workloads)
    step = (len(workloads) - 1) / max(max_count - 1, 1)
    return tuple(workloads[round(index * step)] for index in range(max_count))
