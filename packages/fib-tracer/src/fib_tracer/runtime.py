"""TracingRuntime: records the calls of routed functions; and the process-wide stack of runtimes.

A runtime listens to fib-apply (`fib_apply.hook`), whether a solution serves the calls or not. Runtimes nest: the one
that was started last records until it is stopped.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from multiprocessing.util import Finalize, register_after_fork
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attrs
import torch
from fib_apply.environment import enabled_by_environment
from fib_apply.hook import add_listener, remove_listener
from fib_compile.forking import ForkSafeLock, renew_on_fork
from fib_schema import TraceSet
from fib_schema.problem_groups import problem_lines

from . import signals
from .capture.binding import Callback
from .capture.call_counts import MAX_TOTAL_KEYS, CallCounts, KeyLimit
from .capture.copies import ByteBudget, Copier
from .capture.drafts import Draft, can_be_drafted
from .capture.graphs import GraphCalls, is_capturing
from .capture.recorder import CaptureContext, Recorder
from .config import Settings, read_configuration
from .data_problems import definition_errors
from .stats import DefinitionStats, ErrorLog, logger
from .storage.traffic_file import TrafficFile
from .storage.writer import Writer
from .tracing_config import ENABLE_VARIABLE

_LAST = 0
"""Priority of the last finalizers that `multiprocessing` runs at the end of a process."""
EXIT_SECONDS = signals.MAX_DELAY_SECONDS
"""Longest wait of the end of the process for entries to be stored."""


class TracingRuntime:
    """Records workloads of a data set's definitions.

    Args:
        trace_set: The data set, or its folder; None means ``FIB_DATASET_PATH`` or the default.
        tracing_config: Settings for all definitions, by definition, a registry, or a YAML file. None means the file of
            ``FIB_TRACING_CONFIG``, or `get_full_configs`.
        max_bytes: How many bytes of copies may be in memory at a time.
        wait_seconds: How long a call may wait for memory; 0 drops it immediately and counts it.
        drafts: Whether drafts are made of definitions that the data set lacks.
            None means the value of the settings file, or the default of `RuntimeOptions`, of all three.
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
        saves_traffic: bool = True,
        probes_all: bool = False,
    ) -> None:
        given: dict[str, Any] = {"max_bytes": max_bytes, "wait_seconds": wait_seconds, "drafts": drafts}
        self.config, options = read_configuration(tracing_config)
        options = attrs.evolve(options, **{name: value for name, value in given.items() if value is not None})
        self._trace_set = trace_set if isinstance(trace_set, TraceSet) else TraceSet.from_path(trace_set)
        self._unused = definition_errors(self._trace_set)
        """Errors of the data set, until they are logged."""
        self.config.check(self._trace_set.definitions, self._trace_set.definition_names())
        self.budget = ByteBudget(options.max_bytes)
        self._errors = ErrorLog()
        log = self._trace_set.workload_log()  # raises if the set is in memory only
        counts = self._call_counts if saves_traffic else dict
        self._traffic = TrafficFile(Path(self._trace_set.root or ""), counts, self._errors)
        self._writer = Writer(log, self.budget, self._errors, self._traffic.save)
        self._key_limit = KeyLimit()
        self._graph_calls = GraphCalls()
        self._makes_drafts = options.drafts
        self._context = CaptureContext(
            enqueue=self._writer.enqueue,
            request_flush=self._writer.request_flush,
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
        self._drafts: dict[str, Draft] = {}
        _alive.add(self)
        renew_on_fork(self)

    # -- starting and stopping -----------------------------------------------------------------------

    def start(self) -> Self:
        """Record from now on, instead of the runtime that was started before; errors of the data set are logged."""
        for line in problem_lines(self._unused):
            logger.warning("the data set has a file that is not used: %s", line)
        self._unused = []
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
        if key not in self._callbacks:
            with self._lock:
                self._callbacks = {**self._callbacks, key: self._bind(definition, names)}
        return self._callbacks[key]

    def _bind(self, definition: str, names: tuple[str, ...]) -> Callback | None:
        try:
            if definition in self._trace_set.definition_names():
                recorder = self._recorder(definition)
                return None if recorder is None else recorder.bind(names)
        except Exception as error:  # noqa: BLE001 a damaged definition or a custom policy must not stop the engine
            self._errors.report(f"{definition}: cannot be traced", error)
            return None
        if not self._makes_drafts or not can_be_drafted(definition):
            self._errors.report(f"{definition}: unknown", "the data set has no such definition")
            return None
        return self._bind_draft(definition, names)

    def _recorder(self, name: str) -> Recorder | None:
        """The recorder of a definition of the set; None if its settings say that it is not traced."""
        with self._lock:
            if name not in self._recorders:
                definition = self._trace_set.get_definition(name)
                config = self.config.get(name, definition)
                is_traced = config is not None and config.filter_policy != "keep_none"
                self._recorders[name] = Recorder(definition, config, self._context) if config and is_traced else None
            return self._recorders[name]

    def _bind_draft(self, definition: str, names: tuple[str, ...]) -> Callback:
        draft = self._drafts.setdefault(definition, Draft(definition, names))
        draft.accept(names)

        def callback(*values: Any) -> None:
            try:
                if draft.add(dict(zip(names, values, strict=False))):
                    self._writer.enqueue(lambda: self._save(draft))
            except Exception as error:  # noqa: BLE001 tracing must not make an engine's call fail
                self._errors.report(f"{definition}: draft", error)

        return callback

    def _save(self, draft: Draft) -> None:
        root = self._trace_set.root
        assert root is not None  # it has a workload log
        try:
            draft.save(root)
        except OSError as error:
            self._errors.report(f"{draft.name}: draft", error)

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
        for draft in list(self._drafts.values()):
            if draft.has_calls:
                self._writer.enqueue(lambda draft=draft: self._save(draft))  # type: ignore[misc] # of this round
        recorders = [recorder for recorder in list(self._recorders.values()) if recorder is not None]
        return self._writer.flush(recorders, timeout_seconds)

    def _flush_at_exit(self) -> None:
        """Store what is kept, within `EXIT_SECONDS`; from a signal handler too."""
        if not self._flush(EXIT_SECONDS):
            logger.warning("the process ends after %g s although traced calls are not stored", EXIT_SECONDS)

    def end(self) -> None:
        """Store what is kept and end the storage thread, at the end of the process."""
        if self in _stack:
            self._flush_at_exit()
        self._writer.close(EXIT_SECONDS)

    def renew_after_fork(self) -> None:
        """Start without the threads and entries of the parent process."""
        self._errors.renew_after_fork()
        self.budget.renew_after_fork()
        self._traffic.renew_after_fork()
        self._key_limit.left = MAX_TOTAL_KEYS
        self._writer.renew_after_fork()
        self._context.copier.renew_after_fork()
        self._graph_calls.clear()
        for recorder in self._recorders.values():
            if recorder is not None:
                recorder.renew_after_fork()
        for draft in self._drafts.values():
            draft.renew_after_fork()

    def _call_counts(self) -> dict[str, CallCounts]:
        return {name: recorder.counts for name, recorder in list(self._recorders.items()) if recorder is not None}

    # -- statistics ----------------------------------------------------------------------------------

    def stats(self) -> dict[str, DefinitionStats]:
        """The counts of calls so far, by definition."""
        return {
            name: recorder.counters.stats(recorder.counts.total())
            for name, recorder in list(self._recorders.items())
            if recorder is not None
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
