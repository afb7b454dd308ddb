"""TracingRuntime: records the calls of routed functions; and the process-wide stack of runtimes.

A runtime listens to fib-apply (`fib_apply.hook`), whether a solution serves the calls or not. Runtimes nest: the one
that was started last records until it is stopped.

Kept calls are stored at the normal end of a process, and before SIGTERM or SIGINT ends it: a thread stores them and
sends the signal again, which then goes to the handler that was installed before, or has its default effect. A handler
that another library installs later stays in place. A forked child traces nothing until it enables tracing itself.
"""

from __future__ import annotations

import _thread
import atexit
import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from multiprocessing.util import Finalize
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import attrs
import torch
from fib_apply.config import enabled_by_environment
from fib_apply.hook import add_listener, remove_listener
from fib_schema import FibError, Problem, Severity, TraceSet
from fib_schema.problems import problem_lines

from .binding import Callback
from .copies import ByteBudget, Copier
from .counts import CallCounts, DefinitionStats, ErrorLog, TrafficFile, logger
from .recorder import CaptureContext, GraphCalls, Recorder
from .settings import ENABLE_VARIABLE, Settings, read_configuration
from .writer import Writer

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
            graph_calls=GraphCalls(),
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
            self._context.graph_calls.clear()
            _restore_handlers()

    def __enter__(self) -> Self:
        return self if self in _stack else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def cuda_graph_scope(self) -> AbstractContextManager[None]:
        """A scope in which calls that a CUDA graph captures are remembered, with their tensors.

        The tensors are kept alive until this runtime stops; `snapshot_graph_tensors` records the calls.
        """
        return self._context.graph_calls.scope()

    def snapshot_graph_tensors(self) -> int:
        """Record the captured calls with the current values of their tensors on the current stream; returns how many.

        To be called after a replay, on its stream. Policies decide as on any call.
        """
        return self._context.graph_calls.snapshot()

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

    def store_before_end(self) -> bool:
        """Store what is kept, in at most `exit_seconds`; returns whether it was done. What is lost is logged."""
        self._writer.save_counts_first()
        is_done = False
        for _ in range(2):  # the second stores what an interrupted call has queued while the first waited for its lock
            is_done = self._writer.flush(self._active_recorders(), self._exit_seconds)
        if not is_done:
            logger.warning(
                "the process ends without some kept calls (%d bytes): storing takes more than %g s (exit_seconds)",
                *(self.budget.reserved_bytes, self._exit_seconds),
            )
        return is_done

    def end(self) -> None:
        """Store what is kept and end the storage thread, at the end of the process."""
        if self not in _stack or self.store_before_end():
            self._writer.close(self._exit_seconds)
        else:
            self._writer.abandon()

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
    dataset_path: TraceSet | str | os.PathLike[str] | None = None,
    tracing_config: Settings = None,
    **options: Any,
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

_ending: set[int] = set()
"""Signals whose kept calls are being stored."""
_passing: set[int] = set()
"""Signals that go to the previous handlers now."""
_has_finalizer = False


@attrs.frozen(eq=False)
class _Handler:
    """Lets a thread store kept calls, which sends the signal again; that one goes to the handler it has replaced."""

    previous: Any

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if number in _passing or not _stack:
            self._pass_on(number, frame)
        elif number not in _ending:
            _ending.add(number)
            # a `threading.Thread` would take locks that the interrupted thread may hold
            _thread.start_new_thread(_store_and_send_again, (number,))

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        try:
            if callable(self.previous):
                self.previous(number, frame)
            else:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
        finally:
            _passing.discard(number)


def _store_and_send_again(number: int) -> None:
    try:
        for runtime in _stack:
            runtime.store_before_end()
    finally:
        _ending.discard(number)
        _passing.add(number)
        os.kill(os.getpid(), number)


def _prepare_end() -> None:
    """Install the handlers of signals, in the main thread, which alone can; and the finalizer of a forked worker."""
    global _has_finalizer  # noqa: PLW0603 once in a process
    if multiprocessing.parent_process() is not None and not _has_finalizer:
        _has_finalizer = True
        Finalize(None, _at_exit, exitpriority=0)  # the last; such a process skips `atexit`
    if threading.current_thread() is not threading.main_thread():
        return
    for number in _SIGNALS:
        previous = signal.getsignal(number)
        if previous is None or previous is signal.SIG_IGN or isinstance(previous, _Handler):
            continue  # installed by C code; ignored by the process; or ours
        signal.signal(number, _Handler(previous))


def _restore_handlers() -> None:
    """Restore previous handlers where ours are installed, after the last runtime; other threads leave them."""
    if _stack or threading.current_thread() is not threading.main_thread():
        return
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if isinstance(handler, _Handler):
            signal.signal(number, handler.previous)


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
