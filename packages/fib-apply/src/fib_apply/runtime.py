"""ApplyRuntime: a data set put to work, and which runtime is in force.

Runtimes nest: the one started last is in force until it is stopped. Nothing here imports torch
before a call is routed or a solution built.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fib_compile.forking import ForkSafeLock, renew_on_fork
from fib_schema import Definition, FibError, TraceSet, UnknownName, get_fib_dataset_path

from . import hook
from .building.rounds import OnProgress
from .building.workshop import Workshop
from .choosing.table import ApplyTable
from .config import ENABLE_VARIABLE, ApplyConfigRegistry, OnMiss, Settings, enabled_by_environment, to_registry
from .errors import NoKernel
from .hardware import hardware_at_hand
from .key import ApplyKeyBuilder, ApplyKeyFactory, AxesOnlyKeyBuilder
from .log import logger
from .routing import sites
from .stats import DefinitionStats, Ledger

if TYPE_CHECKING:
    from .routing.dispatcher import Dispatcher

LISTENERS = "fib_apply.listeners"
"""Entry points of functions that start a listener; that of ``tracing`` is called if ``FIB_ENABLE_TRACING`` is set."""
_ENABLE_PREFIX = "FIB_ENABLE_"


class ApplyRuntime:
    """Routes calls to what a data set says is fastest here.

    Args:
        trace_set: The data set, or its folder; None means ``FIB_DATASET_PATH`` or the default.
        apply_config: Settings for all definitions, or by definition.
        stats: Whether calls are counted.
        on_progress: Told while solutions are built; by default, the log is.

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
        self._reloading = ForkSafeLock()
        self._entered = 0
        self._below: tuple[ApplyRuntime, ...] = ()
        self._dispatchers: dict[str, Dispatcher | None] = {}
        self._workshop = Workshop()
        self._source = trace_set
        self._table = self._load(trace_set, self._config)
        self.is_off = self.is_killed()
        """Whether it serves nothing, because the environment said so when it was made."""
        self._is_prepared = False
        self._carried: dict[str, dict[str, str]] = {}
        self._ledgers: dict[str, Ledger] = {}
        renew_on_fork(self)

    @staticmethod
    def _load(source: TraceSet | str | os.PathLike[str] | None, settings: ApplyConfigRegistry) -> ApplyTable:
        return ApplyTable.load_or_build(get_fib_dataset_path() if source is None else source, settings)

    # -- being in force ------------------------------------------------------------------------------

    def start(self) -> Self:
        """Build what is to be built ahead, and put this runtime in force, over others."""
        get_runtime()  # what the environment asks for lies below
        if self.is_off:
            logger.info("%s keeps routing off", ENABLE_VARIABLE)
        else:
            self.prepare()
        _push(self)
        return self

    def stop(self) -> None:
        """Take this runtime out of force: the one that was in force before it is again."""
        _remove(self)

    def __enter__(self) -> Self:
        self._entered += 1
        return self if self in _stack else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered -= 1
        if self._entered == 0:
            _restore(self, self._below)

    @staticmethod
    def is_killed() -> bool:
        """Whether the environment keeps routing off, whatever a program says."""
        return enabled_by_environment() is False

    @classmethod
    def get_instance(cls) -> ApplyRuntime | None:
        """The runtime in force."""
        return get_runtime()

    # -- calls ---------------------------------------------------------------------------------------

    def dispatcher(self, name: str) -> Dispatcher | None:
        """The dispatcher of a definition, or None if the data set has none of that name."""
        try:
            return self._dispatchers[name]
        except KeyError:
            return self._make_dispatcher(name)

    def _make_dispatcher(self, name: str) -> Dispatcher | None:
        from .routing.dispatcher import Dispatcher

        with self._lock:
            if name in self._dispatchers:
                return self._dispatchers[name]
            made: Dispatcher | None = None
            if name not in self._table.definitions:
                logger.info("the data set has no definition %r: its calls go to their fallbacks", name)
            else:
                definition = self._table.definition(name)
                builder = _key_builder(definition)
                made = Dispatcher(
                    definition,
                    self._table.choices(name),
                    self._config.get(name),
                    builder=builder,
                    workshop=self._workshop,
                    solution_of=self._table.solution,
                    is_counted=self._is_counted,
                    quarantined=self._carried.get(name, {}),
                    ledger=self._ledgers.setdefault(name, Ledger()),
                )
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
        """Serve one call; ``dispatch(name, {...}, fallback)`` is the older form.

        Args:
            def_name: The definition's name.
            args: Inputs by position, and outputs behind them or none.
            kwargs: Inputs and outputs by name.
            fallback: What serves the call if no solution does; takes the same arguments.
            runtime_kwargs: The same as `kwargs`.

        Raises:
            NoKernel: No solution serves it, and there is no fallback.
        """
        if callable(kwargs):
            kwargs, fallback = None, kwargs
        positional = () if args is None or isinstance(args, Mapping) else tuple(args)
        named = {**(args if isinstance(args, Mapping) else {}), **(kwargs or {}), **(runtime_kwargs or {})}
        dispatcher = None if self.is_off else self.dispatcher(def_name)
        if hook.is_listened():
            known = () if dispatcher is None else (*dispatcher.definition.inputs, *dispatcher.definition.outputs)
            sites.note_general(def_name, positional, named, known)

        def serve_otherwise() -> Any:
            if fallback is None:
                raise NoKernel(def_name, "no such definition" if dispatcher is None else "nothing chosen or ready")
            return fallback(*positional, **named)

        if dispatcher is None:
            return serve_otherwise()
        definition = dispatcher.definition
        known_names = {**definition.inputs, **definition.outputs}
        given = {name: value for name, value in named.items() if value is not None or name in known_names}
        try:
            merged = definition.merge_kwargs_to_args(positional, given)
        except TypeError:
            dispatcher.count_arguments()
            if fallback is None:
                raise
            return serve_otherwise()
        return dispatcher.serve(merged, serve_otherwise)

    def __call__(
        self,
        def_name_or_resolver: sites.Name,
        runtime_kwargs: Mapping[str, Any] | None = None,
        fallback: Callable[..., Any] | None = None,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Serve one call, like `apply` does with the runtime in force; to decorate a function, use `apply`."""
        if runtime_kwargs is None and args is None and kwargs is None:
            raise TypeError("there is no call to serve: pass args=(...), kwargs={...} or runtime_kwargs={...}")
        args = () if args is None else args
        named = {**(kwargs or {}), **(runtime_kwargs or {})}
        name = def_name_or_resolver
        if not isinstance(name, str):
            name = name(*args, **named)
        return self.dispatch(name, args, named, fallback)

    def plan(self, def_name: str, *inputs: Any, fallback: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Set the best solution up for inputs; returns what to call with inputs like these. See `Dispatcher.plan`.

        Raises:
            NoKernel: The data set has no such definition, and there is no fallback.
        """
        dispatcher = None if self.is_off else self.dispatcher(def_name)
        if dispatcher is not None:
            return dispatcher.plan(*inputs, fallback=fallback)
        if fallback is None:
            raise NoKernel(def_name, "no such definition")
        return fallback

    # -- building ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Build what settings say is to be built ahead; once."""
        with self._reloading:
            if not self._is_prepared:
                self._is_prepared = True
                self._build_ahead(self._table)

    def _build_ahead(self, table: ApplyTable) -> None:
        """Build what is chosen; where that cannot be, what comes next."""
        wanted, tried = self._wanted(table), set[tuple[str, str]]()
        while wanted:
            tried.update(wanted)
            self._build_all(table, wanted)
            left_out = self._workshop.left_out()
            failed = {name for name, solution in wanted if solution in left_out}
            wanted = [pair for pair in self._next_best(table, failed, left_out) if pair not in tried]

    def _build_all(self, table: ApplyTable, wanted: Iterable[tuple[str, str]]) -> None:
        pairs = []
        for name, solution in wanted:
            try:
                pairs.append((table.definition(name), table.solution(solution)))
            except FibError as error:
                logger.warning("%s", error)
        if pairs:
            self._workshop.build_ahead(pairs, self._on_progress)

    def _next_best(
        self, table: ApplyTable, definitions: Iterable[str], left_out: Container[str]
    ) -> Iterator[tuple[str, str]]:
        """Of each key the first solution for plain calls that is not left out."""
        for name in definitions:
            for hardware in hardware_at_hand():
                choices = table.for_hardware(hardware).choices(name)
                for ranking in choices.by_key.values() if choices is not None else ():
                    usable = (c.solution for c in ranking.candidates if not c.has_setup and c.solution not in left_out)
                    if (solution := next(usable, None)) is not None:
                        yield name, solution

    def _wanted(self, table: ApplyTable) -> list[tuple[str, str]]:
        """What is to be built ahead: of each definition the share that settings say, those first that win most keys."""
        winners: dict[str, list[str]] = {}
        for hardware in hardware_at_hand():
            for definition, solution, _ in table.for_hardware(hardware).winners():
                winners.setdefault(definition, []).append(solution)
        counts = {name: math.ceil(self._config.get(name).aot_ratio * len(found)) for name, found in winners.items()}
        wanted = [(name, solution) for name, found in winners.items() for solution in found[: counts[name]]]
        return list(dict.fromkeys([*wanted, *self._wanted_for_misses(table)]))

    def _wanted_for_misses(self, table: ApplyTable) -> Iterator[tuple[str, str]]:
        """Solutions that serve what is not recorded: they may be first at no key."""
        for name in table.definitions:
            config = self._config.get(name)
            if config.on_miss_policy is not OnMiss.USE_DEF_BEST or config.aot_ratio == 0:
                continue
            for hardware in hardware_at_hand():
                choices = table.for_hardware(hardware).choices(name)
                if choices is not None and choices.best is not None and choices.best.plain is not None:
                    yield name, choices.best.plain.solution

    def reload(self) -> None:
        """Take a changed data set in: calls see all of the old one, or all of the new one."""
        self.rebuild()

    def rebuild(self, traceset: TraceSet | str | os.PathLike[str] | None = None, config: Settings = None) -> None:
        """Take another data set or other settings in."""
        with self._reloading:  # builders may decorate functions: what calls need is not locked meanwhile
            settings = self._config if config is None else to_registry(config)
            source = self._source if traceset is None else traceset
            if isinstance(source, TraceSet) and source.root is not None:
                source = source.root  # its records are as they were when it was opened
            table = self._load(source, settings)
            with self._lock:
                self._config, self._source = settings, source
            self._build_ahead(table)
            with self._lock:
                self._carried = self._still_quarantined(table)
                self._table, self._dispatchers = table, {}
        if get_runtime() is self:
            _point()

    def _still_quarantined(self, table: ApplyTable) -> dict[str, dict[str, str]]:
        """Solutions that are not called any more, and are the same in another table."""
        found: dict[str, dict[str, str]] = {}
        for name, dispatcher in self._dispatchers.items():
            for solution, reason in dispatcher.supply.quarantined.items() if dispatcher is not None else ():
                try:
                    is_same = self._table.solution(solution).hash() == table.solution(solution).hash()
                except FibError:
                    continue  # it has changed, or is gone
                if is_same:
                    found.setdefault(name, {})[solution] = reason
        return found

    def renew_after_fork(self) -> None:
        """Forget what threads of the parent process were about to do."""
        for dispatcher in self._dispatchers.values():
            if dispatcher is not None:
                dispatcher.renew_after_fork()

    def wait_until_built(self, timeout_seconds: float) -> bool:
        """Wait for builds and first runs in the background; returns whether none is left."""
        return self._workshop.wait(timeout_seconds)

    # -- seeing --------------------------------------------------------------------------------------

    @property
    def config(self) -> ApplyConfigRegistry:
        """The settings."""
        return self._config

    @property
    def table(self) -> ApplyTable:
        """What was chosen."""
        return self._table

    def stats(self) -> dict[str, DefinitionStats]:
        """What became of calls so far, by definition; nothing if they are not counted."""
        found = {name: dispatcher for name, dispatcher in self._dispatchers.items() if dispatcher is not None}
        return {name: dispatcher.stats() for name, dispatcher in found.items()} if self._is_counted else {}

    def left_out(self) -> dict[str, str]:
        """Solutions that are not called, and why."""
        quarantined = [d.supply.quarantined for d in self._dispatchers.values() if d is not None]
        return {**self._workshop.left_out(), **{name: why for found in quarantined for name, why in found.items()}}

    def explain(self, name: str) -> str:
        """What serves a definition's calls, why, and the code that they go through.

        Raises:
            UnknownName: The data set has no such definition (a KeyError).
        """
        from .explaining import explain

        dispatcher = self.dispatcher(name)
        if dispatcher is None:
            raise UnknownName("definition", name, self._table.definitions)
        return explain(dispatcher, self.left_out())


def _key_builder(definition: Definition) -> ApplyKeyBuilder:
    """A definition's key builder; one of axes alone where that fails, whose keys are not in the table."""
    try:
        return ApplyKeyFactory.specialize(definition)
    except Exception as error:  # noqa: BLE001 it may be somebody else's: the engine must go on
        logger.warning("%s: its key builder raised %s: %s", definition.name, type(error).__name__, error)
        return AxesOnlyKeyBuilder(definition)


def _log_progress(done: int, total: int, name: str) -> None:
    logger.info("built %d of %d: %s", done, total, name)


# -- which one is in force ---------------------------------------------------------------------------

_lock = ForkSafeLock()
_stack: tuple[ApplyRuntime, ...] = ()
_has_asked_environment = False


def get_runtime() -> ApplyRuntime | None:
    """The runtime in force; the environment may start one (`ENABLE_VARIABLE`) when this is first asked."""
    if not _has_asked_environment:
        _ask_environment()
    return _stack[-1] if _stack else None


def connect(site: sites.Pointed) -> None:
    """Have a site pointed to the runtime in force, now and whenever that changes, for as long as somebody holds it."""
    get_runtime()  # what the environment asks for would come later
    with _lock:  # else one that starts meanwhile might not see the site
        sites.add_site(site, _serving())


def set_runtime(runtime: ApplyRuntime | None) -> None:
    """Have one runtime in force and no other below it; None takes all away."""
    global _stack  # noqa: PLW0603 there is one stack in a process
    get_runtime()  # what the environment asks for would come later
    with _lock:
        _stack = () if runtime is None else (runtime,)
        _point()


def stop_all() -> None:
    """Take all runtimes out of force."""
    global _stack  # noqa: PLW0603 likewise
    with _lock:
        _stack = ()
        _point()


def _push(runtime: ApplyRuntime) -> None:
    global _stack  # noqa: PLW0603 likewise
    with _lock:
        runtime._below = tuple(other for other in _stack if other is not runtime)  # noqa: SLF001 of this module
        _stack = (*runtime._below, runtime)  # noqa: SLF001 likewise
        _point()


def _remove(runtime: ApplyRuntime) -> None:
    global _stack  # noqa: PLW0603 likewise
    with _lock:
        if runtime in _stack:
            _stack = tuple(other for other in _stack if other is not runtime)
            _point()


def _restore(runtime: ApplyRuntime, below: tuple[ApplyRuntime, ...]) -> None:
    """Take a runtime out of force; where something else has taken its place, what was below it is in force again."""
    global _stack  # noqa: PLW0603 likewise
    with _lock:
        is_there = runtime in _stack
        _stack = tuple(other for other in _stack if other is not runtime) if is_there else below
        _point()


def _point() -> None:
    with _lock:  # else a runtime that stops meanwhile might be pointed to last
        sites.point_all(_serving())


def _serving() -> ApplyRuntime | None:
    return _stack[-1] if _stack and not _stack[-1].is_off else None


def _ask_environment() -> None:
    global _has_asked_environment  # noqa: PLW0603 asked once in a process
    with _lock:
        if _has_asked_environment:
            return
        _has_asked_environment = True
        try:
            if enabled_by_environment():
                ApplyRuntime().start()
        except FibError as error:  # the engine runs without us
            logger.error("%s asks for routing, which cannot be: %s", ENABLE_VARIABLE, error)
    _start_listeners()


def _start_listeners() -> None:
    """Start those of other packages whose variables are set; each reads its own (``FIB_ENABLE_TRACING``).

    What goes wrong is logged: the engine runs without them.
    """
    others = {name for name in os.environ if name.startswith(_ENABLE_PREFIX)} - {ENABLE_VARIABLE}
    if not others:  # to ask for entry points takes milliseconds
        return
    from importlib.metadata import entry_points

    for point in entry_points(group=LISTENERS):
        variable = _ENABLE_PREFIX + point.name.upper()
        if variable not in others:
            continue
        try:
            point.load()()
        except Exception as error:  # noqa: BLE001 of somebody else's package, in the midst of an engine's call
            logger.error("%s asks for %s, which cannot be: %s: %s", variable, point.value, type(error).__name__, error)


hook.on_change(_point)
