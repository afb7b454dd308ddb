"""Router: the dispatchers of one table. A reload replaces the router, so a call sees one table as a whole."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fib_schema import Definition, FibError, TraceSet, UnknownName, get_fib_dataset_path
from fib_schema.problems import problem_lines

from .build_service.service import BuildService, OnProgress
from .config import ApplyConfigRegistry, OnError
from .configuration import Configuration
from .events import emit, is_observed, logger
from .key import ApplyKeyBuilder, ApplyKeyFactory, AxesOnlyKeyBuilder
from .metrics import CallMetrics, DefinitionStats
from .readiness import KeyState, build_ahead, key_states, routed_event
from .replicas import AgreedKernels
from .selection.table import ApplyTable, setting_problems

if TYPE_CHECKING:
    from .routing.dispatcher import Dispatcher
    from .routing.resolver import CandidatePool

_NONE: Mapping[str, str] = {}
_NO_ARGUMENTS: Mapping[str, Any] = {}


class Router:
    """Makes the dispatchers of a table when they are first needed.

    Args:
        table: The selected solutions.
        configuration: The settings.
        build_service: Builds and holds solutions.
        metrics: Counters by definition, which all routers of a runtime share, so that a reload resets none.
        quarantined: By definition, the solutions that must not be called, each with the reason.
        wait_seconds: How long a call may wait for solutions that are being built.
        agreed: What all replicas may call; None if there are no replicas.
    """

    def __init__(
        self,
        table: ApplyTable,
        configuration: Configuration,
        *,
        build_service: BuildService,
        metrics: dict[str, CallMetrics],
        quarantined: Mapping[str, Mapping[str, str]],
        wait_seconds: float = 0.0,
        agreed: AgreedKernels | None = None,
    ) -> None:
        self.agreed = agreed
        self.table = table
        self.config = configuration.registry
        self.build_service = build_service
        self._metrics = metrics
        self._is_counted = configuration.is_counted
        self._quarantined = quarantined
        self._wait_seconds = wait_seconds
        self._lock = threading.RLock()
        self._dispatchers: dict[str, Dispatcher | None] = {}

    def dispatcher(self, name: str) -> Dispatcher | None:
        """The dispatcher of a definition, or None if the data set has none of that name."""
        try:
            return self._dispatchers[name]
        except KeyError:
            made = self._make_dispatcher(name)
        with self._lock:
            return self._dispatchers.setdefault(name, made)  # another thread may have been faster

    def _make_dispatcher(self, name: str) -> Dispatcher | None:
        """A new dispatcher; made without the lock, because key builders and the pool may be other code."""
        from .routing.dispatcher import Dispatcher

        pool = self._make_pool(name)
        if pool is None:
            return None
        metrics = self._metrics.setdefault(name, CallMetrics())
        return Dispatcher(pool, _key_builder(pool.definition), is_counted=self._is_counted, metrics=metrics)

    def _make_pool(self, name: str) -> CandidatePool | None:
        from .routing.resolver import CandidatePool

        definition = _load_definition(self.table, name)
        if definition is None:
            return None
        return CandidatePool(
            definition,
            self.table.rankings(name),
            self.config.get(name),
            build_service=self.build_service,
            load_solution=self.table.solution,
            quarantined=self._quarantined.get(name, {}),
            wait_seconds=self._wait_seconds,
            agreed=self.agreed,
        )

    def stats(self) -> dict[str, DefinitionStats]:
        """The current counts by definition; empty if calls are not counted."""
        if not self._is_counted:
            return {}
        return {
            name: metrics.snapshot(is_caught=self._is_caught(name)) for name, metrics in self._metrics.copy().items()
        }

    def _is_caught(self, name: str) -> bool:
        """Whether the fallback serves calls whose solution raised."""
        config = self.config.get(name)
        return config.on_error is OnError.FALLBACK or config.shadow_ratio > 0

    def quarantined(self, definition: str) -> Mapping[str, str]:
        """The solutions of a definition that are no longer called, each with the reason."""
        dispatcher = self._dispatchers.get(definition)
        return self._quarantined.get(definition, _NONE) if dispatcher is None else dispatcher.pool.reported

    def left_out(self) -> dict[str, str]:
        """The solutions that are not called, each with the reason."""
        found = self.build_service.left_out()
        for name in self._made():
            found |= self.quarantined(name)
        return found

    def build_ahead(self, on_progress: OnProgress) -> None:
        """Build ahead of time, as the settings say; then log for each definition which keys are routed."""
        build_ahead(self.table, self.config, self.build_service, on_progress)
        if not is_observed(logging.INFO):  # decoding all rankings takes time
            return
        for name in self.table.definitions:
            emit(routed_event(self.key_states(name), name))

    def key_states(self, name: str) -> list[KeyState]:
        """The recorded keys of a definition on this machine, each with what serves it now."""
        return key_states(self.table, name, self.build_service, self.quarantined(name))

    def open_capture_gate(self, seconds: float) -> None:
        """Let captures record what becomes ready, for which calls wait at most so many seconds in all."""
        self.build_service.open_capture_gate(seconds)
        for dispatcher in self._made().values():
            dispatcher.invalidate()  # entries may refuse captures that an earlier gate did not let through

    def close_capture_gate(self) -> dict[str, list[KeyState]]:
        """Let captures record no solution that becomes ready from now on; returns what is ready, by definition."""
        self.build_service.close_capture_gate()
        for dispatcher in self._made().values():
            dispatcher.invalidate()  # entries may refuse captures that an earlier gate did not let through
        return {name: self._capturable(name) for name in self.table.definitions}

    def _capturable(self, name: str) -> list[KeyState]:
        """The states of keys; one whose solution compiles at its first run is ready after that."""
        dispatcher = self._made().get(name)
        states = []
        for state in self.key_states(name):
            reason = None
            if state.solution is not None and self.build_service.compiles_when_called(state.solution):
                reason = (
                    "not called yet" if dispatcher is None else dispatcher.first_run_problem(state.solution, state.key)
                )
            states.append(state if reason is None else KeyState(state.key, None, reason))
        return states

    def continue_quarantines(self, earlier: Router) -> None:
        """Call no solution that another router no longer calls, if it is unchanged; before any call is routed."""
        self._quarantined = earlier.still_quarantined(self.table)

    def still_quarantined(self, table: ApplyTable) -> dict[str, dict[str, str]]:
        """The quarantined solutions that are unchanged in another table."""
        found: dict[str, dict[str, str]] = {}
        for name in {*self._quarantined, *self._made()}:
            for solution, reason in self.quarantined(name).items():
                try:
                    is_same = self.table.solution(solution).hash() == table.solution(solution).hash()
                except FibError:
                    continue  # changed or removed
                if is_same:
                    found.setdefault(name, {})[solution] = reason
        return found

    def compiled_runs(self) -> set[str]:
        """The names of first runs whose kernels are compiled; of replicas, also those of earlier routers."""
        agreed = () if self.agreed is None else self.agreed.own_runs
        return {run for found in self._made().values() for run in found.compiled_runs()}.union(agreed)

    def explain(self, name: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = _NO_ARGUMENTS) -> str:
        """Explanation of a definition's routing, or of one call; see `ApplyRuntime.explain`."""
        from .explain import explain_call, explain_definition

        dispatcher = self.dispatcher(name)
        if dispatcher is None:
            self.table.definition(name)
            raise UnknownName("definition", name, self.table.definitions)
        if args or kwargs:
            return explain_call(dispatcher, args, kwargs)
        problems = [str(problem) for problem in self.table.problems if problem.source == name]
        return explain_definition(dispatcher, self.left_out(), problems)

    def _made(self) -> dict[str, Dispatcher]:
        """The dispatchers that exist."""
        return {name: found for name, found in self._dispatchers.copy().items() if found is not None}


def _load_definition(table: ApplyTable, name: str) -> Definition | None:
    """A definition; None, which is logged, if the data set has none, or its file has changed since."""
    try:
        return table.definition(name)
    except UnknownName as error:
        logger.info("%s; calls of %r go to their fallbacks", error, name)
    except FibError as error:
        logger.warning("calls of %r go to their fallbacks: %s", name, error)
    return None


def _key_builder(definition: Definition) -> ApplyKeyBuilder:
    """A definition's key builder; if it raises, one of axes alone, whose keys the table does not have."""
    try:
        return ApplyKeyFactory.specialize(definition)
    except Exception as error:  # noqa: BLE001 of a registered builder
        logger.warning("%s: its key builder raised %s: %s", definition.name, type(error).__name__, error)
        return AxesOnlyKeyBuilder(definition)


def load_table(source: TraceSet | str | os.PathLike[str] | None, settings: ApplyConfigRegistry) -> ApplyTable:
    """The table of a data set; files and lines that are not used are logged."""
    table = ApplyTable.load_or_build(get_fib_dataset_path() if source is None else source, settings)
    for line in problem_lines(table.problems):
        logger.warning("the data set has a file or line that is not used: %s", line)
    for problem in setting_problems(settings, table):
        logger.warning("setting %s: %s", problem.path, problem.message)
    return table
