"""TracingRuntime: records the calls of routed functions; and the process-wide stack of runtimes.

A runtime listens to fib-apply (`fib_apply.hook`), whether a solution serves the calls or not. Runtimes nest: the one
that was started last records until it is stopped.

Kept calls are stored at the normal end of a process. SIGTERM, which would end it at once, raises `SystemExit` instead,
unless the program handles it in another way. A forked child traces nothing until it enables tracing itself.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
from fib_apply.config import enabled_by_environment
from fib_apply.hook import add_listener, remove_listener
from fib_schema import FibError, Problem, Severity, TraceSet
from fib_schema.problems import problem_lines

from .binding import Callback
from .copies import ByteBudget, Copier
from .counts import CallCounts, DefinitionStats, ErrorLog, TrafficFile, logger
from .recorder import CaptureContext, Recorder
from .settings import ENABLE_VARIABLE, Settings, read_configuration
from .writer import Writer


class TracingRuntime:
    """Records workloads of a data set's definitions.

    Args:
        trace_set: The data set, or its folder; None means ``FIB_DATASET_PATH`` or the default.
        tracing_config: Settings for all definitions, by definition, a registry, or a YAML file. None means the file of
            ``FIB_TRACING_CONFIG``, or `get_full_configs`.
        max_bytes: How many bytes of copies may be in memory at a time.
        exit_seconds: Longest wait of the end of the process until all is stored.
            None means the value of the settings file, or the default of `RuntimeOptions`, of both.
        saves_traffic: Whether the counts of calls are saved below ``traffic/``.
        probes_all: Whether policies that need values are asked about every call, also after many refusals.

    Raises:
        DataSetNotFound: There is no such folder.
        NoRoot: The data set is in memory only.
        UnknownName: Settings name a definition or an input that the data set lacks.
        InvalidSetting: A setting has a value that is not allowed.
        InvalidConfigFile: The settings file is not valid.
        OSError: The settings file cannot be read.
    """

    def __init__(
        self,
        trace_set: TraceSet | str | os.PathLike[str] | None = None,
        tracing_config: Settings = None,
        *,
        max_bytes: int | None = None,
        exit_seconds: float | None = None,
        saves_traffic: bool = True,
        probes_all: bool = False,
    ) -> None:
        given = {"max_bytes": max_bytes, "exit_seconds": exit_seconds}
        self.config, options = read_configuration(tracing_config, given)
        self._exit_seconds = options.exit_seconds
        self._trace_set = _open_absolute(trace_set)
        self._unused = definition_errors(self._trace_set)
        """Errors of the data set, until they are logged."""
        self.config.check(self._trace_set.definitions, self._trace_set.definition_names())
        self.budget = ByteBudget(options.max_bytes)
        self._errors = ErrorLog()
        log = self._trace_set.workload_log()  # raises if the set is in memory only
        counts = self._call_counts if saves_traffic else dict
        self._traffic = TrafficFile(Path(self._trace_set.root or ""), counts, self._errors)
        self._writer = Writer(log, self.budget, self._errors, self._traffic.save)
        self._context = CaptureContext(
            enqueue=self._writer.enqueue,
            start_storage=self._writer.start,
            budget=self.budget,
            copier=Copier(self.budget),
            errors=self._errors,
            probes_all=probes_all,
        )
        self._lock = threading.RLock()
        self._recorders: dict[str, Recorder | None] = {}
        self._callbacks: dict[tuple[str, tuple[str, ...]], Callback | None] = {}
        _alive.add(self)

    # -- starting and stopping -----------------------------------------------------------------------

    def start(self) -> Self:
        """Record from now on, instead of the runtime that was started before; errors of the data set are logged."""
        for line in problem_lines(self._unused):
            logger.warning("the data set has a file that is not used: %s", line)
        self._unused = []
        if self._recorders:
            self._writer.start()  # counters that exist do not start it
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._context.copier.prepare()
        _push(self)
        _prepare_end()
        return self

    def stop(self) -> None:
        """Store what was kept and record no more; the runtime that was started before records again."""
        _remove(self)
        try:
            self.flush()
            self._writer.close(None)
        finally:
            if not _stack:
                _restore_handler()

    def __enter__(self) -> Self:
        return self if self in _stack else self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- recording -----------------------------------------------------------------------------------

    def bind(self, definition: str, names: tuple[str, ...]) -> Callback | None:
        """The callback that fib-apply runs before each call of a function; None if its calls are not traced."""
        key = definition, names
        with suppress(KeyError):
            return self._callbacks[key]
        with self._lock:
            found = self._callbacks[key] = self._bind(definition, names)
        return found

    def _bind(self, definition: str, names: tuple[str, ...]) -> Callback | None:
        try:
            if definition in self._trace_set.definition_names():
                recorder = self._recorder(definition)
                return None if recorder is None else recorder.bind(names)
        except Exception as error:  # noqa: BLE001 a damaged definition or a custom policy must not stop the engine
            self._errors.report(f"{definition}: cannot be traced", error)
            return None
        self._errors.report(f"{definition}: unknown", f"the data set has no definition {definition!r}")
        return None

    def _recorder(self, name: str) -> Recorder | None:
        """The recorder of a definition of the set; None if it has no settings."""
        with self._lock:
            if name not in self._recorders:
                definition = self._trace_set.get_definition(name)
                config = self.config.get(name, definition)
                self._recorders[name] = None if config is None else Recorder(definition, config, self._context)
            return self._recorders[name]

    def collect(
        self, name: str, args: Sequence[Any] | Mapping[str, Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Record a call that is not routed, with inputs by position in the definition's order, or by name.

        Raises:
            UnknownName: The data set has no such definition (a KeyError).
            TypeError: The arguments are not those of the definition.
        """
        recorder = self._recorder(name)
        if recorder is None:
            return
        named = {**(args if isinstance(args, Mapping) else {}), **(kwargs or {})}
        merged = recorder.definition.merge_kwargs_to_args(() if isinstance(args, Mapping) else args, named)
        recorder.record(tuple(merged[: len(recorder.definition.inputs)]))

    # -- storing -------------------------------------------------------------------------------------

    def flush(self, timeout_seconds: float | None = None) -> dict[str, DefinitionStats]:
        """Wait until all kept calls are stored, including samples that policies hold.

        Records that cannot be written, because the disk is full for instance, are dropped, logged and counted.

        Args:
            timeout_seconds: How long to wait at most; None for as long as it takes.

        Returns:
            The counts of calls so far, by definition.

        Raises:
            TimeoutError: It took longer, and storing goes on; or the storage thread cannot start.
        """
        if not self._writer.flush(self._active_recorders(), timeout_seconds):
            if timeout_seconds is None:
                raise TimeoutError("flush failed: no thread can be started to store traced calls")
            raise TimeoutError(f"flush not finished after {timeout_seconds:g} s; storing goes on")
        return self.stats()

    def settle(self) -> None:
        """Wait until all calls that were kept are stored, without those that policies hold."""
        self._writer.flush([], None)

    def _active_recorders(self) -> list[Recorder]:
        return [recorder for recorder in list(self._recorders.values()) if recorder is not None]

    def end(self) -> None:
        """Store what is kept, in at most `exit_seconds`, and end the storage thread, at the end of the process."""
        if self in _stack:
            self._writer.save_counts_first()
            if not self._writer.flush(self._active_recorders(), self._exit_seconds):
                logger.warning(
                    "the process ends without some kept calls (%d bytes): storing takes more than %g s (exit_seconds)",
                    *(self.budget.reserved_bytes, self._exit_seconds),
                )
                self._writer.abandon()
                return
        self._writer.close(self._exit_seconds)

    def _call_counts(self) -> dict[str, CallCounts]:
        return {recorder.definition.name: recorder.counts for recorder in self._active_recorders()}

    # -- statistics ----------------------------------------------------------------------------------

    def stats(self) -> dict[str, DefinitionStats]:
        """The counts of calls so far, by definition."""
        return {recorder.definition.name: recorder.counts.stats() for recorder in self._active_recorders()}

    def error_counts(self) -> dict[str, int]:
        """The number of errors by kind; the first of each kind was logged."""
        return self._errors.counts()


# -- the process-wide stack --------------------------------------------------------------------------

_lock = threading.RLock()
_stack: tuple[TracingRuntime, ...] = ()
_alive: weakref.WeakSet[TracingRuntime] = weakref.WeakSet()


def get_tracing_runtime() -> TracingRuntime | None:
    """The runtime that records now."""
    return _stack[-1] if _stack else None


def enable_tracing(
    dataset_path: TraceSet | str | os.PathLike[str] | None = None, tracing_config: Settings = None, **options: Any
) -> TracingRuntime:
    """Record workloads from now on, or within a ``with`` block; see `TracingRuntime`.

    Raises:
        DataSetNotFound: There is no such folder.
    """
    return TracingRuntime(dataset_path, tracing_config, **options).start()


def disable_tracing() -> None:
    """Stop all runtimes, the last one first, and store what they kept."""
    while (runtime := get_tracing_runtime()) is not None:
        runtime.stop()


def start_by_environment() -> None:
    """Start a runtime if `ENABLE_VARIABLE` is set and none is running; errors are logged."""
    if get_tracing_runtime() is not None:
        return
    try:
        if enabled_by_environment(ENABLE_VARIABLE):
            enable_tracing()
    except Exception as error:  # noqa: BLE001 of a custom policy or a settings file: the engine runs untraced
        logger.error("%s is set, but tracing cannot start: %s", ENABLE_VARIABLE, error)


def _push(runtime: TracingRuntime) -> None:
    global _stack  # noqa: PLW0603 there is one stack in a process
    with _lock:
        below = tuple(other for other in _stack if other is not runtime)
        for other in below:
            remove_listener(other)
        _stack = (*below, runtime)
        add_listener(runtime)


def _remove(runtime: TracingRuntime) -> None:
    global _stack  # noqa: PLW0603 likewise
    with _lock:
        if runtime not in _stack:
            return
        remove_listener(runtime)
        _stack = tuple(other for other in _stack if other is not runtime)
        if _stack:
            remove_listener(_stack[-1])
            add_listener(_stack[-1])


# -- the end of the process --------------------------------------------------------------------------

_has_finalizer = False


def _exit(number: int, frame: FrameType | None) -> None:
    """A handler of SIGTERM: end the process as `sys.exit` does, which stores kept calls."""
    del frame
    raise SystemExit(128 + number)


def _prepare_end() -> None:
    """Install the handler of SIGTERM, in the main thread, which alone can; and the finalizer of a forked worker."""
    global _has_finalizer  # noqa: PLW0603 once in a process
    if multiprocessing.parent_process() is not None and not _has_finalizer:
        _has_finalizer = True
        Finalize(None, _at_exit, exitpriority=0)  # the last; such a process skips `atexit`
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _restore_handler() -> None:
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is _exit:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _at_exit() -> None:
    for runtime in list(_alive):
        runtime.end()


def _forget_runtimes() -> None:
    """Trace nothing in a forked child: threads, locks and kept calls are those of its parent."""
    global _lock, _stack, _has_finalizer
    _lock, stack, _stack, _has_finalizer = threading.RLock(), _stack, (), False
    for runtime in list(_alive):
        runtime.budget.forget()
    _alive.clear()
    for runtime in stack:
        remove_listener(runtime)
    _restore_handler()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_forget_runtimes)


# -- the data set ------------------------------------------------------------------------------------


def _open_absolute(trace_set: TraceSet | str | os.PathLike[str] | None) -> TraceSet:
    """A data set whose root is absolute, so that a change of the working directory does not move it."""
    found = trace_set if isinstance(trace_set, TraceSet) else TraceSet.from_path(trace_set)
    if found.root is None or found.root.is_absolute():
        return found
    return TraceSet.from_path(found.root.absolute())


def definition_errors(trace_set: TraceSet) -> list[Problem]:
    """The errors of the listing and of all definitions, which are read; nothing else is."""
    for name in trace_set.definition_names():
        with suppress(FibError):
            trace_set.get_definition(name)
    return [problem for problem in trace_set.problems if problem.severity is Severity.ERROR]
