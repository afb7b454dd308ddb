"""TracingRuntime: records the calls of routed functions; and the process-wide stack of runtimes.

A runtime listens to fib-apply (`fib_apply.hook`), whether a solution serves the calls or not. Runtimes nest: the one
that was started last records until it is stopped.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from multiprocessing.util import Finalize, register_after_fork
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from fib_apply.environment import enabled_by_environment
from fib_apply.hook import add_listener, remove_listener
from fib_compile.forking import ForkSafeLock, renew_on_fork
from fib_schema import TraceSet
from fib_schema.problem_groups import problem_lines

from . import signals
from .capture.binding import Callback
from .capture.call_counts import MAX_TOTAL_KEYS, CallCounts, KeyLimit
from .capture.context import CaptureContext
from .capture.copies import ByteBudget, Copier
from .capture.drafts import Drafts, can_be_drafted
from .capture.graphs import GraphCalls, is_capturing
from .capture.recorder import Recorder
from .config import Settings, read_configuration
from .data_problems import definition_errors
from .data_set import open_absolute
from .stats import DefinitionStats, ErrorLog, logger
from .storage.traffic_file import TrafficFile
from .storage.writer import Writer
from .tracing_config import ENABLE_VARIABLE

_LAST = 0
"""Priority of the last finalizers that `multiprocessing` runs at the end of a process."""
_MAX_CALLBACKS = 4096
"""Functions whose callbacks are remembered: a resolver may return names that never recur."""
_MAX_UNKNOWN = 256
"""Unknown definitions that are reported one by one; further ones are counted together."""


class TracingRuntime:
    """Records workloads of a data set's definitions.

    Args:
        trace_set: The data set, or its folder; None means ``FIB_DATASET_PATH`` or the default.
        tracing_config: Settings for all definitions, by definition, a registry, or a YAML file. None means the file of
            ``FIB_TRACING_CONFIG``, or `get_full_configs`.
        max_bytes: How many bytes of copies may be in memory at a time.
        wait_seconds: How long a call may wait for memory; 0 drops it immediately and counts it.
        drafts: Whether drafts are made of definitions that the data set lacks.
        exit_seconds: Longest wait of the end of the process while nothing is stored.
            None means the value of the settings file, or the default of `RuntimeOptions`, of all four.
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
        wait_seconds: float | None = None,
        drafts: bool | None = None,
        exit_seconds: float | None = None,
        saves_traffic: bool = True,
        probes_all: bool = False,
    ) -> None:
        given = {"max_bytes": max_bytes, "wait_seconds": wait_seconds, "drafts": drafts, "exit_seconds": exit_seconds}
        self.config, options = read_configuration(tracing_config, given)
        self._exit_seconds = options.exit_seconds
        self._trace_set = open_absolute(trace_set)
        self._unused = definition_errors(self._trace_set)
        """Errors of the data set, until they are logged."""
        self.config.check(self._trace_set.definitions, self._trace_set.definition_names())
        self.budget = ByteBudget(options.max_bytes)
        self._errors = ErrorLog()
        log = self._trace_set.workload_log()  # raises if the set is in memory only
        root = Path(self._trace_set.root or "")
        counts = self._call_counts if saves_traffic else dict
        self._traffic = TrafficFile(root, counts, self._errors)
        self._writer = Writer(log, self.budget, self._errors, self._traffic.save)
        self._key_limit = KeyLimit()
        self._unknown = 0
        self._graph_calls = GraphCalls()
        self._drafts = Drafts(root, self._writer.run, self._errors) if options.drafts else None
        self._context = CaptureContext(
            enqueue=self._writer.enqueue,
            request_flush=self._writer.request_flush,
            start_storage=self._writer.start,
            budget=self.budget,
            copier=Copier(self.budget),
            errors=self._errors,
            is_capturing=is_capturing,
            on_graph_call=self._graph_calls.add,
            key_limit=self._key_limit,
            probes_all=probes_all,
            wait_seconds=options.wait_seconds,
        )
        self._lock = ForkSafeLock()
        self._recorders: dict[str, Recorder | None] = {}
        self._callbacks: dict[tuple[str, tuple[str, ...]], Callback | None] = {}
        _alive.add(self)
        renew_on_fork(self)

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
        signals.register(self._flush_at_exit)
        _push(self)
        return self

    def stop(self) -> None:
        """Store what was kept and record no more; the runtime that was started before records again."""
        _remove(self)
        try:
            self.flush()
            self._writer.close(None)
        finally:
            self._graph_calls.clear()
            signals.unregister(self._flush_at_exit)

    def __enter__(self) -> Self:
        return self if self in _stack else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- recording -----------------------------------------------------------------------------------

    def bind(self, definition: str, names: tuple[str, ...]) -> Callback | None:
        """The callback that fib-apply runs before each call of a function; None if its calls are not traced.

        Args:
            definition: The name of the definition that the calls are of.
            names: Of the function's parameters.
        """
        key = definition, names
        with suppress(KeyError):
            return self._callbacks[key]
        with self._lock:
            found = self._bind(definition, names)
            if len(self._callbacks) >= _MAX_CALLBACKS:
                self._callbacks.clear()
            self._callbacks[key] = found
        return found

    def _bind(self, definition: str, names: tuple[str, ...]) -> Callback | None:
        try:
            if definition in self._trace_set.definition_names():
                recorder = self._recorder(definition)
                return None if recorder is None else recorder.bind(names)
        except Exception as error:  # noqa: BLE001 a damaged definition or a custom policy must not stop the engine
            self._errors.report(f"{definition}: cannot be traced", error)
            return None
        if self._drafts is None or not can_be_drafted(definition):
            self._unknown += 1
            kind = f"{definition}: unknown" if self._unknown <= _MAX_UNKNOWN else "further definitions: unknown"
            self._errors.report(kind, f"the data set has no definition {definition!r}")
            return None
        return self._drafts.bind(definition, names)

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
        """Record a call that is not routed; ``collect(name, {...})`` is the older form.

        Args:
            name: The definition's name.
            args: Inputs by position, in the definition's order; or by name.
            kwargs: Inputs by name.

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
        return self._graph_calls.scope()

    def snapshot_graph_tensors(self) -> int:
        """Record the captured calls with the current values of their tensors on the current stream.

        To be called after a replay, on its stream. Policies decide as on any call.

        Returns:
            How many calls there were.
        """
        return self._graph_calls.snapshot()

    # -- storing -------------------------------------------------------------------------------------

    def flush(self, timeout_seconds: float | None = None) -> dict[str, DefinitionStats]:
        """Wait until all kept calls are stored, including samples that policies hold.

        Records that cannot be written now, because the disk is full for instance, are in `DefinitionStats.waiting`:
        they are retried, and are dropped only if the last attempt fails when the runtime stops.

        Args:
            timeout_seconds: How long to wait at most; None for as long as it takes.

        Returns:
            The counts of calls so far, by definition.

        Raises:
            TimeoutError: It took longer, and storing goes on; or the storage thread cannot start.
        """
        if not self._flush(timeout_seconds):
            if timeout_seconds is None:
                raise TimeoutError("flush failed: no thread can be started to store traced calls")
            raise TimeoutError(f"flush not finished after {timeout_seconds:g} s; storing goes on")
        return self.stats()

    def _flush(self, timeout_seconds: float | None) -> bool:
        if self._drafts is not None:
            self._drafts.request_saves()
        return self._writer.flush(self._active_recorders(), timeout_seconds)

    def _active_recorders(self) -> list[Recorder]:
        return [recorder for recorder in list(self._recorders.values()) if recorder is not None]

    def _flush_at_exit(self) -> bool:
        """Store what is kept, as long as entries are stored; returns whether it was done. Signal handlers call it."""
        if self._drafts is not None:
            self._drafts.request_saves()
        is_done = self._writer.flush_at_exit(self._active_recorders(), self._exit_seconds)
        entries, calls = self._writer.waiting(), self._traffic.unsaved_calls()
        if entries or calls or not is_done:
            reason = "writing failed" if is_done else f"nothing was stored for {self._exit_seconds:g} s (exit_seconds)"
            logger.warning(
                "the process ends without %d kept calls (%d bytes of copies) and the counts of %d calls: %s",
                *(entries, self.budget.reserved_bytes, calls, reason),
            )
        return is_done

    def end(self) -> None:
        """Store what is kept and end the storage thread, at the end of the process."""
        if self not in _stack or self._flush_at_exit():
            self._writer.close(self._exit_seconds)
        else:
            self._writer.abandon()

    def renew_after_fork(self) -> None:
        """Start without the threads and entries of the parent process."""
        self._errors.renew_after_fork()
        self.budget.renew_after_fork()
        self._traffic.renew_after_fork()
        self._key_limit.left = MAX_TOTAL_KEYS
        self._writer.renew_after_fork()
        self._context.copier.renew_after_fork()
        self._graph_calls.clear()
        for recorder in self._active_recorders():
            recorder.renew_after_fork()
        if self._drafts is not None:
            self._drafts.renew_after_fork()

    def _call_counts(self) -> dict[str, CallCounts]:
        return {recorder.definition.name: recorder.counts for recorder in self._active_recorders()}

    # -- statistics ----------------------------------------------------------------------------------

    def stats(self) -> dict[str, DefinitionStats]:
        """The counts of calls so far, by definition."""
        return {
            recorder.definition.name: recorder.counters.stats(recorder.counts.total())
            for recorder in self._active_recorders()
        }

    def error_counts(self) -> dict[str, int]:
        """The number of errors by kind; the first of each kind was logged."""
        return self._errors.counts()


# -- the process-wide stack --------------------------------------------------------------------------

_lock = ForkSafeLock()
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
    """Record workloads from now on, or within a ``with`` block.

    Args:
        dataset_path: The data set's folder; None means ``FIB_DATASET_PATH`` or the default.
        tracing_config: Settings; see `TracingRuntime`.
        options: The other arguments of `TracingRuntime`.

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


def _at_exit() -> None:
    for runtime in list(_alive):
        runtime.end()


def _register_finalizer(_: object) -> None:
    """A process that `multiprocessing` has forked skips `atexit` and runs these finalizers."""
    Finalize(None, _at_exit, exitpriority=_LAST)


atexit.register(_at_exit)
register_after_fork(_at_exit, _register_finalizer)
