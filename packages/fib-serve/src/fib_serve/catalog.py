"""Catalog of a data set: its definitions and workloads, read once. A changed data set needs a restart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs
from fib_schema import Definition, Problem, TraceSet, Workload
from fib_schema.display import counted

from .errors import InvalidSetting


@attrs.frozen
class Catalog:
    """Definitions with their workloads."""

    root: Path
    definitions: Mapping[str, Definition]
    workloads: Mapping[str, tuple[Workload, ...]]
    """Workloads by definition, each uuid once."""
    reserved_names: frozenset[str]
    """Names of solutions that the data set had when it was read."""
    problems: tuple[Problem, ...]

    @classmethod
    def read(cls, root: Path) -> Catalog:
        """Read a data set.

        Raises:
            DataSetNotFound: There is no such folder.
        """
        trace_set = TraceSet.from_path(root)
        definitions = dict(trace_set.definitions.items())
        workloads = {
            name: tuple({trace.workload.uuid: trace.workload for trace in trace_set.workloads.get(name, [])}.values())
            for name in definitions
        }
        return cls(root, definitions, workloads, frozenset(trace_set.solution_names()), trace_set.problems)

    def find_workload(self, uuid: str) -> Workload | None:
        """The workload with a uuid."""
        found = (workload for group in self.workloads.values() for workload in group if workload.uuid == uuid)
        return next(found, None)

    def check_beside(self, public: Catalog) -> None:
        """Reject hidden workloads that cannot be used.

        Raises:
            InvalidSetting: A definition differs from the public one, or a hidden workload is public.
        """
        for name, definition in self.definitions.items():
            if definition != public.definitions.get(name):
                raise InvalidSetting("--hidden", f"definition {name!r} differs from the public one; copy its file")
            known = {workload.uuid for workload in public.workloads[name]}
            shared = sum(workload.uuid in known for workload in self.workloads[name])
            if shared:
                problem = f"the public data set has {counted(shared, 'workload')} of {name!r} too"
                raise InvalidSetting("--hidden", problem)
