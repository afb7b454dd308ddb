"""Apply runtimes: each routes calls by the table of one data set. They nest: the last one started is active.

A `Router` has the dispatchers of one table. A reload replaces it, so that a call sees one table as a whole.

The active runtimes of the process are a stack whose top serves all call sites. On first use, the environment variables
are read. The runtime that they ask for is made in a background thread and becomes the bottom of the stack, so that no
call, decoration or import waits for it. In a forked child the stack is empty, and the first use there reads the
variables again.

No lock is held while other code runs, such as listeners and key builders. Each change of the stack or of the
listeners starts a new *epoch*. The binding of a call site is made without a lock, and takes effect only if no other
epoch has started meanwhile; else it is made again.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fib_schema import FibError, TraceSet, UnknownName, get_fib_dataset_path
from fib_schema.entry_points import find_entry_points, load_entry_point
from fib_schema.problems import problem_lines

from . import hook
from .build_service.executor import BackgroundExecutor
from .build_service.service import BuildService
from .config import ENABLE_VARIABLE, ApplyConfigRegistry, Configuration, SettingsOrFile, enabled_by_environment
from .errors import NoKernel
from .events import CallMetrics, DefinitionStats, emit, logger, reloaded
from .router import Readiness, Router, Settled, observed_warm_up
from .routing import call_sites
from .routing.call_sites import Name, call_fallback, definition_of, notify_listeners
from .routing.native.module import forget_request, request_native, wait_for_native
from .selection.table import ApplyTable, setting_problems

if TYPE_CHECKING:
    from .routing.dispatcher import Dispatcher

T = TypeVar("T")

LISTENERS = "fib_apply.listeners"
"""Entry points of functions that start a listener; ``tracing`` is called if ``FIB_ENABLE_TRACING`` is set."""
ENABLE_PREFIX = "FIB_ENABLE_"
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
        self._below: tuple[ApplyRuntime, ...] = ()
        self._source = _absolute(get_fib_dataset_path() if trace_set is None else trace_set)
        self._make_router = partial(Router, metrics=dict[str, CallMetrics](), wait_seconds=wait_seconds)
        table = _load_table(self._source, self.configuration.registry)
        make = partial(self._make_router, build_service=BuildService(), quarantined={})
        self._router = make(table, self.configuration)
        self.is_off = self.configuration.why_off() is not None
        """Whether it routes no calls: ``FIB_ENABLE_APPLY`` is 0, or the file of ``FIB_APPLY_CONFIG`` is not usable."""
        self._is_prepared = False

    def start(self) -> Self:
        """Build ahead of time, and make this runtime the active one.

        During an import it does not wait for builds: a solution that imports the same module would wait for it.
        """
        initialize()
        if self.is_off:
            logger.info("routing is off: %s", self.configuration.why_off() or _FORKED)
        else:
            self.prepare(waits=not _is_importing())
        self._below = _push(self)
        return self

    def stop(self) -> None:
        """Deactivate this runtime; the one below becomes active again."""
        _remove(self)

    def __enter__(self) -> Self:
        self._entered += 1
        return self if is_active(self) else self.start()

    def __exit__(self, *details: object) -> None:
        self._entered -= 1
        if self._entered == 0:
            _remove(self, self._below)

    @classmethod
    def get_instance(cls) -> ApplyRuntime | None:
        """The active runtime."""
        return get_runtime()

    # -- calls ---------------------------------------------------------------------------------------

    def dispatcher(self, name: str) -> Dispatcher | None:
        """The dispatcher of a definition, or None if the data set has none of that name."""
        if (found := self._router.dispatcher(name)) is not None:
            _request_native_guards(self)
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
            TypeError: The arguments are not those of the definition, and there is no fallback.
        """
        if callable(kwargs):
            kwargs, fallback = None, kwargs
        positional = () if args is None or isinstance(args, Mapping) else tuple(args)
        named = {**(args if isinstance(args, Mapping) else {}), **(kwargs or {}), **(runtime_kwargs or {})}
        dispatcher = None if self.is_off else self.dispatcher(def_name)
        known = () if dispatcher is None else (*dispatcher.definition.inputs, *dispatcher.definition.outputs)
        if hook.has_listeners():
            notify_listeners(def_name, positional, named, known)
        if dispatcher is None:
            return call_fallback(def_name, "there is no such definition", positional, named, fallback)
        given = {name: value for name, value in named.items() if value is not None or name in known}
        try:
            merged = dispatcher.definition.merge_kwargs_to_args(positional, given)
        except TypeError:
            dispatcher.count_invalid_arguments()
            if fallback is None:
                raise
            return fallback(*positional, **named)
        unserved = "no solution is chosen or ready"
        return dispatcher.serve(merged, lambda: call_fallback(def_name, unserved, positional, named, fallback))

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

    def rebuild(self, traceset: TraceSet | str | os.PathLike[str] | None = None, config: SettingsOrFile = None) -> None:
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
            source = self._source if traceset is None else _absolute(traceset)
            table = _load_table(source, configuration.registry)
            earlier = self._router
            made = self._make_router(
                table,
                configuration,
                build_service=earlier.build_service.successor(table.solution),
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
            if get_runtime() is self:
                rebind_call_sites()
        except Exception as error:
            emit(reloaded(time.monotonic() - began, error=error))
            raise
        emit(reloaded(time.monotonic() - began, is_changed=is_changed))

    def wait_until_built(self, timeout_seconds: float) -> bool:
        """Wait for builds and warm-ups in the background, native guards included; returns whether all are finished."""
        deadline = time.monotonic() + timeout_seconds
        is_built = self._router.build_service.wait(timeout_seconds)
        return wait_for_native(max(0.0, deadline - time.monotonic())) and is_built

    def warm_up(self, timeout_seconds: float) -> Readiness:
        """Wait for builds, first runs and native guards before CUDA graphs are captured; see `fib_apply.warm_up`."""
        return observed_warm_up(lambda: self.settle(timeout_seconds))

    def settle(self, timeout_seconds: float) -> Settled:
        """Wait for background work, and let captures record no solution that becomes ready from now on."""
        _request_native_guards(self)  # adapters request them only when they are first called
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


def _absolute(source: TraceSet | str | os.PathLike[str]) -> TraceSet | Path:
    """A data set as a folder, also after a change of the working directory: objects of an opened set do not change."""
    root = source.root if isinstance(source, TraceSet) else source
    return source if root is None else Path(root).absolute()  # type: ignore[return-value] # a set in memory


def _load_table(source: TraceSet | Path, settings: ApplyConfigRegistry) -> ApplyTable:
    """The table of a data set; files and lines that are not used are logged."""
    table = ApplyTable.load_or_build(source, settings)
    for line in problem_lines(table.problems):
        logger.warning("the data set has a file or line that is not used: %s", line)
    for problem in setting_problems(settings, table):
        logger.warning("setting %s: %s", problem.path, problem.message)
    return table


# -- the active runtimes ------------------------------------------------------------------------------


class _Default:
    """The runtime that the environment asks for, and its start in the background."""

    def __init__(self) -> None:
        self.executor = BackgroundExecutor()
        self.is_initialized = self.is_starting = False


_lock = threading.RLock()
_stack: tuple[ApplyRuntime, ...] = ()
_epoch = 0
_default = _Default()


def initialize() -> None:
    """Start what the environment variables ask for, once per process; does not wait for the runtime."""
    if _default.is_initialized:
        return
    with _lock:
        is_first, _default.is_initialized = not _default.is_initialized, True
    if is_first:
        if _log_errors(enabled_by_environment):
            _default.is_starting = True
            _default.executor.submit(_push_default, "starting routing", on_drop=_cancel_default)
        start_listeners()


def _log_errors(call: Callable[[], T]) -> T | None:
    """Call a function that enables routing; returns None after an error, which is logged: the engine must go on."""
    try:
        return call()
    except FibError as error:
        logger.error("%s is set, but routing cannot start: %s", ENABLE_VARIABLE, error)
        return None


def start_listeners() -> None:
    """Start the listeners of other packages whose variables are set; each reads its own variable."""
    others = {name for name in os.environ if name.startswith(ENABLE_PREFIX)} - {ENABLE_VARIABLE}
    for point in find_entry_points(LISTENERS) if others else ():  # reading entry points takes milliseconds
        variable = ENABLE_PREFIX + point.name.upper()
        if variable not in others:
            continue
        try:
            load_entry_point(point)()
        except Exception as error:  # noqa: BLE001 of another package
            logger.error("%s is set, but %s cannot start: %s: %s", variable, point.value, type(error).__name__, error)


def _push_default() -> None:
    """Make the default runtime and put it below all others, unless it was cancelled meanwhile."""
    made = _log_errors(_make_default)
    with _lock:
        is_wanted, _default.is_starting = _default.is_starting and made is not None, False
        if made is not None and is_wanted:
            _set((made, *(runtime for runtime in _stack if runtime is not made)))
    if is_wanted:
        rebind_call_sites()


def _make_default() -> ApplyRuntime:
    made = ApplyRuntime()
    if not made.is_off:
        made.prepare(waits=False)
    return made


def _cancel_default() -> None:
    """Do not activate a default runtime that is still being made."""
    _default.is_starting = False


def wait_until_built(timeout_seconds: float) -> bool:
    """Wait for the runtime that the environment asks for, and for the background work of the active one.

    Returns:
        Whether all is finished.
    """
    initialize()
    deadline = time.monotonic() + timeout_seconds
    if not _default.executor.wait(timeout_seconds):
        return False
    found = get_runtime()
    return found is None or found.wait_until_built(max(0.0, deadline - time.monotonic()))


def get_runtime() -> ApplyRuntime | None:
    """The active runtime; on first use, the environment may start one in the background (``FIB_ENABLE_APPLY``)."""
    initialize()
    return _stack[-1] if _stack else None


def connect(site: call_sites.Rebindable) -> None:
    """Bind a call site to the active runtime, and rebind it whenever that changes, for as long as the site lives."""
    initialize()
    call_sites.add_site(site)  # first: a runtime that starts from now on binds it
    _bind(site)


def _push(runtime: ApplyRuntime) -> tuple[ApplyRuntime, ...]:
    """Put a runtime on top of the stack; returns the runtimes below."""
    initialize()
    with _lock:
        below = tuple(other for other in _stack if other is not runtime)
        _set((*below, runtime))
    rebind_call_sites()
    return below


def _remove(runtime: ApplyRuntime, below: tuple[ApplyRuntime, ...] | None = None) -> None:
    """Remove a runtime from the stack."""
    with _lock:
        if runtime in _stack:
            _set(tuple(other for other in _stack if other is not runtime))
        elif below is not None:
            _set(below)
    rebind_call_sites()


def is_active(runtime: ApplyRuntime) -> bool:
    """Whether a runtime is in the stack."""
    return runtime in _stack


def _request_native_guards(runtime: ApplyRuntime) -> None:
    """Load or build native guards in the background for a runtime that is in the stack; routes then are made again."""
    if is_active(runtime) and not runtime.is_off:
        request_native(rebind_call_sites)


def set_runtime(runtime: ApplyRuntime | None) -> None:
    """Make one runtime the only active one; None deactivates all."""
    initialize()
    with _lock:
        _cancel_default()
        earlier = _stack
        _set(() if runtime is None else (runtime,))
    rebind_call_sites()
    for replaced in earlier:
        if replaced is not runtime:
            ApplyRuntime.stop(replaced)  # without what a subclass adds for calls by a program


def rebind_call_sites() -> None:
    """Rebind all call sites to the active runtime, e.g. after it has changed."""
    with _lock:
        _start_epoch()
    for site in call_sites.all_sites():
        _bind(site)


def _bind(site: call_sites.Rebindable) -> None:
    """Bind a call site to the active runtime of the current epoch."""
    while True:
        with _lock:
            epoch, runtime = _epoch, _stack[-1] if _stack and not _stack[-1].is_off else None
        bind = site.make_binding(runtime)
        with _lock:
            if epoch == _epoch:
                bind()
        if epoch == _epoch:  # a signal handler may have started another one during `bind`
            return


def _set(stack: tuple[ApplyRuntime, ...]) -> None:
    global _stack  # noqa: PLW0603 one stack per process
    _stack = stack
    _start_epoch()


def _start_epoch() -> None:
    global _epoch  # noqa: PLW0603 one counter per process
    _epoch += 1


def _switch_off_in_child() -> None:
    """Let all functions serve their own calls in a forked child, until it enables routing itself.

    The threads that build and load solutions are gone there, and locks of runtimes may be held by such threads.
    """
    global _lock  # noqa: PLW0603 one lock per process
    _lock = threading.RLock()
    call_sites.renew_lock()
    hook.renew_lock()
    for runtime in _stack:
        runtime.is_off = True
    _default.executor = BackgroundExecutor()
    _default.is_initialized = _default.is_starting = False
    forget_request()
    _set(())
    for site in call_sites.all_sites():
        site.make_binding(None)()


hook.on_change(rebind_call_sites)
os.register_at_fork(after_in_child=_switch_off_in_child)
