"""Apply runtime: routes calls by the table of one data set. Runtimes nest; the last one started is active.

Nothing here imports torch before a call is routed or a solution is built.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from fib_compile.forking import ForkSafeLock
from fib_schema import Definition, FibError, TraceSet, UnknownName, get_fib_dataset_path

from . import activation, hook
from .build_service.ahead_of_time import build_ahead
from .build_service.batch import OnProgress
from .build_service.service import BuildService
from .config import ApplyConfigRegistry, Settings, to_registry
from .environment import ENABLE_VARIABLE, enabled_by_environment
from .errors import NoKernel
from .key import ApplyKeyBuilder, ApplyKeyFactory, AxesOnlyKeyBuilder
from .log import logger
from .metrics import CallMetrics, DefinitionStats
from .routing.call_sites import Name, Rebindable, notify_listeners
from .selection.table import ApplyTable

if TYPE_CHECKING:
    from .routing.dispatcher import Dispatcher


class ApplyRuntime:
    """Routes calls to the solutions that a data set's traces select for this hardware.

    Args:
        trace_set: The data set, or its folder; None means ``FIB_DATASET_PATH`` or the default.
        apply_config: Settings for all definitions, or by definition.
        stats: Whether calls are counted.
        on_progress: Called while solutions are built; by default, progress is logged.

    Raises:
        DataSetNotFound: There is no such folder.
    """

    def __init__(
        self,
        trace_set: TraceSet | str | os.PathLike[str] | None = None,
        apply_config: Settings = None,
        *,
        stats: bool = False,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._config = to_registry(apply_config)
        self._is_counted = stats
        self._on_progress = on_progress or _log_progress
        self._lock = ForkSafeLock()
        self._rebuild_lock = ForkSafeLock()
        self._entered = 0
        self._below: tuple[activation.ActiveRuntime, ...] = ()
        self._dispatchers: dict[str, Dispatcher | None] = {}
        self._build_service = BuildService()
        self._source = trace_set
        self._table = _load_table(trace_set, self._config)
        self.is_off = self.is_killed()
        """Whether it routes no calls, because the environment forbade it when the runtime was made."""
        self._is_prepared = False
        self._quarantined: dict[str, dict[str, str]] = {}
        self._metrics: dict[str, CallMetrics] = {}

    # -- activation ----------------------------------------------------------------------------------

    def start(self) -> Self:
        """Build ahead of time, and make this runtime the active one."""
        activation.initialize()
        if self.is_off:
            logger.info("routing is off, because %s is 0", ENABLE_VARIABLE)
        else:
            self.prepare()
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

    @staticmethod
    def is_killed() -> bool:
        """Whether the environment keeps routing off, whatever the program does."""
        return enabled_by_environment() is False

    @classmethod
    def get_instance(cls) -> ApplyRuntime | None:
        """The active runtime."""
        return get_runtime()

    # -- calls ---------------------------------------------------------------------------------------

    def dispatcher(self, name: str) -> Dispatcher | None:
        """The dispatcher of a definition, or None if the data set has none of that name."""
        try:
            return self._dispatchers[name]
        except KeyError:
            return self._make_dispatcher(name)

    def _make_dispatcher(self, name: str) -> Dispatcher | None:
        from .routing.candidates import CandidatePool
        from .routing.dispatcher import Dispatcher

        with self._lock:
            if name in self._dispatchers:
                return self._dispatchers[name]
            made: Dispatcher | None = None
            definition = _load_definition(self._table, name)
            if definition is not None:
                pool = CandidatePool(
                    definition,
                    self._table.rankings(name),
                    self._config.get(name),
                    build_service=self._build_service,
                    load_solution=self._table.solution,
                    quarantined=self._quarantined.get(name, {}),
                )
                metrics = self._metrics.setdefault(name, CallMetrics())
                made = Dispatcher(pool, _key_builder(definition), is_counted=self._is_counted, metrics=metrics)
            self._dispatchers = {**self._dispatchers, name: made}
            return made

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
        if hook.has_listeners():
            known = () if dispatcher is None else (*dispatcher.definition.inputs, *dispatcher.definition.outputs)
            notify_listeners(def_name, positional, named, known)

        def call_fallback() -> Any:
            if fallback is None:
                reason = "there is no such definition" if dispatcher is None else "no solution is chosen or ready"
                raise NoKernel(def_name, reason)
            return fallback(*positional, **named)

        if dispatcher is None:
            return call_fallback()
        definition = dispatcher.definition
        known_names = {**definition.inputs, **definition.outputs}
        given = {name: value for name, value in named.items() if value is not None or name in known_names}
        try:
            merged = definition.merge_kwargs_to_args(positional, given)
        except TypeError:
            dispatcher.count_invalid_arguments()
            if fallback is None:
                raise
            return call_fallback()
        return dispatcher.serve(merged, call_fallback)

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
        args = () if args is None else args
        named = {**(kwargs or {}), **(runtime_kwargs or {})}
        name = def_name_or_resolver
        if not isinstance(name, str):
            name = name(*args, **named)
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

    def prepare(self) -> None:
        """Build ahead of time, as the settings say; once."""
        with self._rebuild_lock:
            if not self._is_prepared:
                self._is_prepared = True
                build_ahead(self._table, self._config, self._build_service, self._on_progress)

    def reload(self) -> None:
        """Load the changed data set. Each call sees all of the old one or all of the new one."""
        self.rebuild()

    def rebuild(self, traceset: TraceSet | str | os.PathLike[str] | None = None, config: Settings = None) -> None:
        """Load another data set or other settings."""
        with self._rebuild_lock:  # builders may decorate functions, so the lock of calls stays free
            settings = self._config if config is None else to_registry(config)
            source = self._source if traceset is None else traceset
            if isinstance(source, TraceSet) and source.root is not None:
                source = source.root  # the objects of an opened set do not change
            table = _load_table(source, settings)
            with self._lock:
                self._config, self._source = settings, source
            build_ahead(table, settings, self._build_service, self._on_progress)
            with self._lock:
                self._quarantined = self._still_quarantined(table)
                self._table, self._dispatchers = table, {}
        if get_runtime() is self:
            activation.rebind_call_sites()

    def _still_quarantined(self, table: ApplyTable) -> dict[str, dict[str, str]]:
        """The quarantined solutions that are unchanged in another table."""
        found: dict[str, dict[str, str]] = {}
        for name, dispatcher in self._dispatchers.items():
            for solution, reason in dispatcher.pool.quarantined.items() if dispatcher is not None else ():
                try:
                    is_same = self._table.solution(solution).hash() == table.solution(solution).hash()
                except FibError:
                    continue  # changed or removed
                if is_same:
                    found.setdefault(name, {})[solution] = reason
        return found

    def wait_until_built(self, timeout_seconds: float) -> bool:
        """Wait for builds and warm-ups in the background; returns whether all are finished."""
        return self._build_service.wait(timeout_seconds)

    # -- inspection ----------------------------------------------------------------------------------

    @property
    def config(self) -> ApplyConfigRegistry:
        """The settings."""
        return self._config

    @property
    def table(self) -> ApplyTable:
        """The table of selected solutions."""
        return self._table

    def stats(self) -> dict[str, DefinitionStats]:
        """The current counts by definition; empty if calls are not counted."""
        found = {name: dispatcher for name, dispatcher in self._dispatchers.items() if dispatcher is not None}
        return {name: dispatcher.stats() for name, dispatcher in found.items()} if self._is_counted else {}

    def left_out(self) -> dict[str, str]:
        """The solutions that are not called, each with the reason."""
        quarantined = [d.pool.quarantined for d in self._dispatchers.values() if d is not None]
        return {**self._build_service.left_out(), **{name: why for found in quarantined for name, why in found.items()}}

    def explain(self, name: str) -> str:
        """Which solutions serve a definition's calls, why, and the generated code.

        Raises:
            UnknownName: The data set has no such definition (a KeyError).
            InvalidRecord: Its file has changed since the table was made.
        """
        from .explain import explain

        dispatcher = self.dispatcher(name)
        if dispatcher is None:
            self._table.definition(name)
            raise UnknownName("definition", name, self._table.definitions)
        problems = [problem for problem in self._table.problems if problem.startswith(f"{name}: ")]
        return explain(dispatcher, self.left_out(), problems)


def get_runtime() -> ApplyRuntime | None:
    """The active runtime; on first use, the environment may start one (``FIB_ENABLE_APPLY``)."""
    found = activation.active_runtime()
    assert found is None or isinstance(found, ApplyRuntime)  # no other class is ever pushed
    return found


def set_runtime(runtime: ApplyRuntime | None) -> None:
    """Make one runtime the only active one; None deactivates all."""
    activation.replace_all(*(() if runtime is None else (runtime,)))


def connect(site: Rebindable) -> None:
    """Bind a call site to the active runtime, and rebind it whenever that changes, for as long as the site lives."""
    activation.connect(site)


def _load_table(source: TraceSet | str | os.PathLike[str] | None, settings: ApplyConfigRegistry) -> ApplyTable:
    table = ApplyTable.load_or_build(get_fib_dataset_path() if source is None else source, settings)
    if table.problems:
        logger.warning("%d files or lines are not used; the first: %s", len(table.problems), table.problems[0])
    return table


def _load_definition(table: ApplyTable, name: str) -> Definition | None:
    """A definition; None, which is logged, if the data set has none, or its file has changed since."""
    try:
        return table.definition(name)
    except UnknownName:
        logger.info("the data set has no definition %r; its calls go to their fallbacks", name)
    except FibError as error:
        logger.warning("calls of %r go to their fallbacks: %s", name, error)
    return None


def _key_builder(definition: Definition) -> ApplyKeyBuilder:
    """A definition's key builder; if it raises, one of axes alone, whose keys the table does not have."""
    try:
        return ApplyKeyFactory.specialize(definition)
    except Exception as error:  # noqa: BLE001 a registered key builder may raise anything: the engine must go on
        logger.warning("%s: its key builder raised %s: %s", definition.name, type(error).__name__, error)
        return AxesOnlyKeyBuilder(definition)


def _log_progress(done: int, total: int, name: str) -> None:
    logger.info("built %d of %d: %s", done, total, name)


activation.set_default_runtime(lambda: ApplyRuntime().start())
