"""Apply runtime: routes calls by the table of one data set. Runtimes nest; the last one started is active.

A `Router` has the dispatchers of one table. A reload replaces it, so that a call sees one table as a whole. Nothing
here imports torch before a call is routed or a solution is built.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from fib_schema import Definition, FibError, TraceSet, UnknownName, get_fib_dataset_path
from fib_schema.problems import problem_lines

from . import activation
from .build_service.service import BuildService
from .config import ApplyConfigRegistry, Configuration, OnError, SettingsOrFile
from .errors import NoKernel
from .events import CallMetrics, DefinitionStats, emit, is_observed, logger, reload_failed, reloaded
from .key import ApplyKeyBuilder, ApplyKeyFactory, AxesOnlyKeyBuilder
from .readiness import (
    KeyState,
    Readiness,
    Settled,
    build_ahead,
    key_states,
    observed_warm_up,
    routed_event,
)
from .routing.call_sites import Name, call_fallback, definition_of, serve_directly
from .routing.native.module import wait_with_native
from .selection.table import ApplyTable, setting_problems

if TYPE_CHECKING:
    from .routing.dispatcher import Dispatcher
    from .routing.resolver import CandidatePool

_NONE: Mapping[str, str] = {}
_FORKED = "the runtime was made before this process was forked; make another one"


class ApplyRuntime:
    """Routes calls to the solutions that a data set's traces select for this hardware.

    Args:
        trace_set: The data set, or its folder; None means ``FIB_DATASET_PATH`` or the default.
        apply_config: Settings for all definitions, or by definition, or a YAML file with them; None means the file
            of ``FIB_APPLY_CONFIG``, or the defaults.
        stats: Whether calls are counted; None means as the file says.
        wait_seconds: How long a call may wait for a solution that is being built; by default the fallback serves it.

    Raises:
        DataSetNotFound: There is no such folder.
        InvalidConfigFile: `apply_config` is a file that is not valid (a ValueError).
    """

    def __init__(
        self,
        trace_set: TraceSet | str | os.PathLike[str] | None = None,
        apply_config: SettingsOrFile = None,
        *,
        stats: bool | None = None,
        wait_seconds: float = 0.0,
    ) -> None:
        self.configuration = Configuration.of(apply_config, stats)
        """The settings, and where they come from."""
        self._lock = threading.RLock()
        self._reloads = self._loaded = self._entered = 0
        self._below: tuple[activation.ActiveRuntime, ...] = ()
        self._source = trace_set
        self._make_router = partial(Router, metrics=dict[str, CallMetrics](), wait_seconds=wait_seconds)
        table = _load_table(trace_set, self.configuration.registry)
        make = partial(self._make_router, build_service=BuildService(), quarantined={})
        self._router = make(table, self.configuration)
        self.is_off = self.configuration.why_off() is not None
        """Whether it routes no calls: ``FIB_ENABLE_APPLY`` is 0, or the file of ``FIB_APPLY_CONFIG`` is not usable."""
        self._is_prepared = False

    def start(self) -> Self:
        """Build ahead of time, and make this runtime the active one.

        During an import it does not wait for builds: a solution that imports the same module would wait for it.
        """
        activation.initialize()
        if self.is_off:
            logger.info("routing is off: %s", self.configuration.why_off() or _FORKED)
        else:
            self.prepare(waits=not _is_importing())
        self._below = activation.push(self)
        return self

    def stop(self) -> None:
        """Deactivate this runtime; the one below becomes active again."""
        activation.remove(self)

    def __enter__(self) -> Self:
        self._entered += 1
        return self if activation.is_active(self) else self.start()

    def __exit__(self, *details: object) -> None:
        self._entered -= 1
        if self._entered == 0:
            activation.remove(self, self._below)

    @classmethod
    def get_instance(cls) -> ApplyRuntime | None:
        """The active runtime."""
        return get_runtime()

    # -- calls ---------------------------------------------------------------------------------------

    def dispatcher(self, name: str) -> Dispatcher | None:
        """The dispatcher of a definition, or None if the data set has none of that name."""
        if (found := self._router.dispatcher(name)) is not None:
            activation.request_native_guards(self)
        return found

    def dispatch(
        self,
        def_name: str,
        args: Sequence[Any] | Mapping[str, Any] | None = (),
        kwargs: Mapping[str, Any] | Callable[..., Any] | None = None,
        fallback: Callable[..., Any] | None = None,
        *,
        runtime_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Serve one call. ``dispatch(name, {...}, fallback)`` is the older form.

        Args:
            def_name: The definition's name.
            args: Inputs by position, followed by outputs or nothing.
            kwargs: Inputs and outputs by name.
            fallback: Serves the call if no solution does; takes the same arguments.
            runtime_kwargs: The same as `kwargs`.

        Raises:
            NoKernel: No solution serves the call, and there is no fallback.
        """
        if callable(kwargs):
            kwargs, fallback = None, kwargs
        positional = () if args is None or isinstance(args, Mapping) else tuple(args)
        named = {**(args if isinstance(args, Mapping) else {}), **(kwargs or {}), **(runtime_kwargs or {})}
        dispatcher = None if self.is_off else self.dispatcher(def_name)
        return serve_directly(dispatcher, def_name, positional, named, fallback)

    def __call__(
        self,
        def_name_or_resolver: Name,
        runtime_kwargs: Mapping[str, Any] | None = None,
        fallback: Callable[..., Any] | None = None,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Serve one call, as `apply` does with the active runtime. To decorate a function, use `apply`."""
        if runtime_kwargs is None and args is None and kwargs is None:
            raise TypeError("a runtime serves calls only: pass args=(...), kwargs={...} or runtime_kwargs={...}")
        args, named = args or (), {**(kwargs or {}), **(runtime_kwargs or {})}
        name = definition_of(def_name_or_resolver, args, named)
        if name is None:
            return call_fallback("?", "its resolver named no definition", args, named, fallback)
        return self.dispatch(name, args, named, fallback)

    def plan(self, def_name: str, *inputs: Any, fallback: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Set up the best solution for inputs; returns a function for calls with equal inputs. See `Dispatcher.plan`.

        Raises:
            NoKernel: The data set has no such definition, and there is no fallback.
        """
        dispatcher = None if self.is_off else self.dispatcher(def_name)
        if dispatcher is not None:
            return dispatcher.plan(*inputs, fallback=fallback)
        if fallback is None:
            raise NoKernel(def_name, "there is no such definition")
        return fallback

    # -- table and builds ----------------------------------------------------------------------------

    def prepare(self, *, waits: bool = True) -> None:
        """Build ahead of time, as the settings say; once."""
        with self._lock:
            is_first, self._is_prepared = not self._is_prepared, True
        if is_first and waits:
            self._router.build_ahead()
        elif is_first:
            self._router.build_service.submit(self._router.build_ahead, "building ahead")

    def reload(self) -> None:
        """Load the changed data set, as a whole for each call."""
        self.rebuild()

    def rebuild(
        self,
        traceset: TraceSet | str | os.PathLike[str] | None = None,
        config: SettingsOrFile = None,
    ) -> None:
        """Load another data set or other settings; a configuration file is read again.

        Of concurrent reloads, the one that began last counts. If one fails, the earlier table stays.

        Args:
            traceset: The data set, or its folder; None means the present one.
            config: Settings, or a file with them; None means the present ones.

        Raises:
            DataSetNotFound: There is no such folder.
            InvalidConfigFile: A configuration file is not valid.
            OSError: A configuration file cannot be read.
        """
        with self._lock:
            number = self._reloads = self._reloads + 1
        began = time.monotonic()
        try:
            configuration = self.configuration.renewed(config)
            source = self._source if traceset is None else traceset
            if isinstance(source, TraceSet) and source.root is not None:
                source = source.root  # the objects of an opened set do not change
            table = _load_table(source, configuration.registry)
            earlier = self._router
            made = self._make_router(
                table,
                configuration,
                build_service=earlier.build_service.successor(),
                quarantined=earlier.still_quarantined(table),
            )
            is_off = configuration.why_off() is not None
            if not is_off:
                made.build_ahead()
            made.continue_quarantines(self._router)
            with self._lock:  # builders may decorate functions and reload, so no lock is held before
                if number < self._loaded:
                    return
                is_changed = table.digest != self.table.digest
                self._loaded, self._source, self._router = number, source, made
                self.configuration, self.is_off = configuration, is_off
            self._rebind()
        except Exception as error:
            emit(reload_failed(time.monotonic() - began, error))
            raise
        emit(reloaded(time.monotonic() - began, is_changed=is_changed))

    def _rebind(self) -> None:
        if get_runtime() is self:
            activation.rebind_call_sites()

    def wait_until_built(self, timeout_seconds: float) -> bool:
        """Wait for builds and warm-ups in the background, native guards included; returns whether all are finished."""
        return wait_with_native(self._router.build_service.wait, timeout_seconds)

    def warm_up(self, timeout_seconds: float) -> Readiness:
        """Wait for builds, first runs and native guards before CUDA graphs are captured; see `fib_apply.warm_up`."""
        return observed_warm_up(lambda: self.settle(timeout_seconds))

    def settle(self, timeout_seconds: float) -> Settled:
        """Wait for background work, and let captures record no solution that becomes ready from now on."""
        activation.request_native_guards(self)  # adapters request them only when they are first called
        return self.wait_until_built(max(0.0, timeout_seconds)), self._router.close_capture_gate()

    def prepare_captures(self, timeout_seconds: float) -> None:
        """Let calls wait for their solutions until the next `warm_up`; see `fib_apply.capture_phase`."""
        self._router.open_capture_gate(timeout_seconds)

    # -- inspection ----------------------------------------------------------------------------------

    @property
    def config(self) -> ApplyConfigRegistry:
        """The settings."""
        return self._router.config

    @property
    def table(self) -> ApplyTable:
        """The table of selected solutions."""
        return self._router.table

    def stats(self) -> dict[str, DefinitionStats]:
        """The current counts by definition; empty if calls are not counted."""
        return self._router.stats()

    def left_out(self) -> dict[str, str]:
        """The solutions that are not called, each with the reason."""
        return self._router.left_out()

    def explain(self, name: str, /, *args: Any, **kwargs: Any) -> str:
        """Explanation of a definition's routing: the solutions, the reasons and the generated code.

        With the arguments of a call, the solution that would serve this call now, or the reason why the fallback would.
        Nothing is called.

        Raises:
            UnknownName: The data set has no such definition (a KeyError).
            InvalidRecord: Its file has changed since the table was made.
        """
        from .explain import explain_call, explain_definition

        is_call = bool(args or kwargs)
        dispatcher = None if is_call and self.is_off else self._router.dispatcher(name)
        if dispatcher is not None and is_call:
            return explain_call(dispatcher, args, kwargs)
        if dispatcher is not None:
            problems = [str(problem) for problem in self.table.problems if problem.source == name]
            return explain_definition(dispatcher, self.left_out(), problems)
        self.table.definition(name)
        if is_call and self.is_off:
            return f"the fallback: routing is off ({self.configuration.why_off() or _FORKED})"
        raise UnknownName("definition", name, self.table.definitions)


def _is_importing() -> bool:
    """Whether the caller runs during the import of a module."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 inspect.stack reads source files
    while frame is not None and frame.f_code.co_name != "_load_unlocked":
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "importlib._bootstrap"


def get_runtime() -> ApplyRuntime | None:
    """The active runtime; on first use, the environment may start one in the background (``FIB_ENABLE_APPLY``)."""
    found = activation.active_runtime()
    assert found is None or isinstance(found, ApplyRuntime)  # no other class is ever pushed
    return found


def set_runtime(runtime: ApplyRuntime | None) -> None:
    """Make one runtime the only active one; None deactivates all."""
    for replaced in activation.replace_all(*(() if runtime is None else (runtime,))):
        if isinstance(replaced, ApplyRuntime) and replaced is not runtime:
            ApplyRuntime.stop(replaced)  # without what a subclass adds for calls by a program


# -- the dispatchers of a table ----------------------------------------------------------------------


class Router:
    """Makes the dispatchers of a table when they are first needed."""

    def __init__(
        self,
        table: ApplyTable,
        configuration: Configuration,
        *,
        build_service: BuildService,
        metrics: dict[str, CallMetrics],
        quarantined: Mapping[str, Mapping[str, str]],
        wait_seconds: float = 0.0,
    ) -> None:
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
        from .routing.dispatcher import Dispatcher  # imports torch, as below

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
        return self._quarantined.get(definition, _NONE) if dispatcher is None else dispatcher.pool.quarantined

    def left_out(self) -> dict[str, str]:
        """The solutions that are not called, each with the reason."""
        found = self.build_service.left_out()
        for name in self._made():
            found |= self.quarantined(name)
        return found

    def build_ahead(self) -> None:
        """Build ahead of time, as the settings say; then log for each definition which keys are routed."""
        build_ahead(self.table, self.config, self.build_service)
        if not is_observed(logging.INFO):  # decoding all rankings takes time
            return
        for name in self.table.definitions:
            emit(routed_event(self.key_states(name), name))

    def key_states(self, name: str, *, are_captured: bool = False) -> list[KeyState]:
        """The recorded keys of a definition on this machine, each with what serves it now."""
        return key_states(self.table, name, self.build_service, self.quarantined(name), are_captured=are_captured)

    def open_capture_gate(self, seconds: float) -> None:
        """Let captures record what becomes ready, for which calls wait at most so many seconds in all."""
        self.build_service.open_capture_gate(seconds)
        for dispatcher in self._made().values():
            dispatcher.invalidate()  # entries may refuse captures that an earlier gate did not let through

    def close_capture_gate(self) -> dict[str, list[KeyState]]:
        """Let captures record no solution that becomes ready from now on; returns what is ready, by definition."""
        in_phase = self.build_service.prepares_captures
        self.build_service.close_capture_gate()
        for dispatcher in self._made().values():
            dispatcher.invalidate()  # entries may refuse captures that an earlier gate did not let through
        return {name: self._capturable(name, in_phase=in_phase) for name in self.table.definitions}

    def _capturable(self, name: str, *, in_phase: bool) -> list[KeyState]:
        """The states of keys; one whose solution compiles at its first run is ready after that."""
        dispatcher = self._made().get(name)
        states = []
        for state in self.key_states(name, are_captured=in_phase):
            reason = None
            if state.solution is not None and self.build_service.compiles_when_called(state.solution):
                reason = "not called yet"
                if dispatcher is not None:
                    reason = dispatcher.resolver.first_run_problem(state.solution, state.key)
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


def _load_table(source: TraceSet | str | os.PathLike[str] | None, settings: ApplyConfigRegistry) -> ApplyTable:
    """The table of a data set; files and lines that are not used are logged."""
    table = ApplyTable.load_or_build(get_fib_dataset_path() if source is None else source, settings)
    for line in problem_lines(table.problems):
        logger.warning("the data set has a file or line that is not used: %s", line)
    for problem in setting_problems(settings, table):
        logger.warning("setting %s: %s", problem.path, problem.message)
    return table


# -- the runtime of the environment -------------------------------------------------------------------


connect = activation.connect


def _make_default() -> ApplyRuntime:
    made = ApplyRuntime()
    if not made.is_off:
        made.prepare(waits=False)
    return made


activation.set_default_runtime(_make_default)
