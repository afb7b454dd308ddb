"""Contest: its data sets, devices and settings, which the routes and the threads of devices share.

Data sets are read once: a changed one needs a restart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
from fib_bench import BenchmarkConfig
from fib_schema import Definition, Problem, Solution, TraceSet, Workload
from fib_schema.display import counted

from .database import Database
from .errors import InvalidSetting
from .settings import Settings
from .users import Principal


@attrs.frozen
class Catalog:
    """A data set: its definitions and workloads as they were read, and the files of results in it."""

    root: Path
    is_hidden: bool
    """Whether its workloads are hidden."""
    definitions: Mapping[str, Definition]
    workloads: Mapping[str, tuple[Workload, ...]]
    """Workloads by definition, each uuid once."""
    problems: tuple[Problem, ...]
    config: BenchmarkConfig
    """The settings of evaluations: those of the service above those of the data set."""

    @classmethod
    def read(cls, root: Path, *, evaluation: Mapping[str, Any] | None = None, is_hidden: bool = False) -> Catalog:
        """Read a data set.

        Raises:
            DataSetNotFound: There is no such folder.
            InvalidConfig: A field of the evaluation, or the ``fib-bench.yaml`` of the data set, is not valid.
        """
        trace_set = TraceSet.from_path(root)
        definitions = dict(trace_set.definitions.items())
        workloads = {
            name: tuple({trace.workload.uuid: trace.workload for trace in trace_set.workloads.get(name, [])}.values())
            for name in definitions
        }
        config = BenchmarkConfig(**(evaluation or {})).for_data_set(trace_set)
        return cls(root, is_hidden, definitions, workloads, trace_set.problems, config)

    def find_workload(self, uuid: str) -> Workload | None:
        """The workload with a uuid."""
        found = (workload for group in self.workloads.values() for workload in group if workload.uuid == uuid)
        return next(found, None)

    def traces_file(self, definition: Definition, author: str) -> Path:
        """The file of an author's traces."""
        return self.root / "traces" / author / definition.op_type / f"{definition.name}.jsonl"

    def solution_file(self, definition: Definition, solution: Solution) -> Path:
        """The file of a solution."""
        folder = self.root / "solutions" / solution.author / definition.op_type / definition.name
        return folder / f"{solution.name}.json"

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


def read_catalogs(settings: Settings) -> tuple[Catalog, ...]:
    """The public data set, then the hidden one if there is one.

    Raises:
        DataSetNotFound: There is no such folder.
        InvalidConfig: The settings of evaluations are not valid.
        InvalidSetting: Hidden workloads cannot be used.
    """
    public = Catalog.read(Path(settings.dataset), evaluation=settings.evaluation)
    if settings.hidden is None:
        return (public,)
    hidden = Catalog.read(Path(settings.hidden), evaluation=settings.evaluation, is_hidden=True)
    hidden.check_beside(public)
    return (public, hidden)


@attrs.frozen(kw_only=True)
class DeviceState:
    """A device of the service."""

    name: str
    hardware: str = ""
    isolation: int = 0
    submission_id: str | None = None
    problem: str | None = None
    """The reason why the device is not used, if it is not."""


class DeviceTable:
    """The devices of the service, as the pages and the API show them."""

    def __init__(self) -> None:
        self._states: dict[str, DeviceState] = {}
        self._lock = threading.Lock()

    def register(self, state: DeviceState) -> None:
        """Add a device, in place of an earlier state.

        Raises:
            InvalidSetting: A device in use has other hardware.
        """
        with self._lock:
            for other in self._states.values():
                is_other = other.name != state.name and other.problem is None
                if is_other and other.hardware != state.hardware:
                    one, two = f"{state.name} is {state.hardware!r}", f"{other.name} is {other.hardware!r}"
                    raise InvalidSetting("--devices", f"{one} and {two}; run a service for each")
            self._states[state.name] = state

    def change(self, name: str, **changes: Any) -> None:
        """Show what a device evaluates, or why it is not used until it is registered again."""
        with self._lock:
            self._states[name] = attrs.evolve(self._states.get(name, DeviceState(name=name)), **changes)

    def remove(self, name: str) -> None:
        """Forget a device."""
        with self._lock:
            self._states.pop(name, None)

    def all(self) -> list[DeviceState]:
        """The devices by name."""
        with self._lock:
            return [self._states[name] for name in sorted(self._states)]

    def in_use(self) -> list[DeviceState]:
        """The devices that evaluate submissions."""
        return [state for state in self.all() if state.problem is None]


@attrs.define(eq=False)
class Contest:
    """Objects that all routes and all threads of devices share."""

    settings: Settings
    database: Database
    catalogs: tuple[Catalog, ...]
    """The public data set, then the hidden one if there is one."""
    devices: DeviceTable = attrs.field(factory=DeviceTable)
    local: Principal | None = None
    """The only user, of a service without tokens."""
    stop: Callable[[], None] = lambda: None
    """Ends the whole service."""
    is_draining: bool = False
    is_closed: bool = False
    """Whether no request waits any more."""

    @property
    def public(self) -> Catalog:
        """The public data set."""
        return self.catalogs[0]

    @property
    def hidden_definitions(self) -> frozenset[str]:
        """The definitions with hidden workloads, which alone rank; others rank by their public ones."""
        return frozenset(name for catalog in self.catalogs[1:] for name, found in catalog.workloads.items() if found)

    def configs(self, device: str, concurrency: int | None = None) -> Mapping[Path, BenchmarkConfig]:
        """The settings of the judges of a device, by data set."""
        own = {"device": device, "concurrency": concurrency}
        return {catalog.root: catalog.config.with_fields(**own) for catalog in self.catalogs}
