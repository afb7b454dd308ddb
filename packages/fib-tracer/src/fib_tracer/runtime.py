"""TracingRuntime: collects the workloads of routed calls, and which runtime is in force.

It listens where calls are routed, whether a solution serves them or not. Runtimes nest: the one
started last collects until it is stopped.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from multiprocessing.util import Finalize, register_after_fork
from types import TracebackType
from typing import Any, Self

import torch
from fib_apply.config import enabled_by_environment
from fib_apply.hook import add_listener, remove_listener
from fib_compile.forking import ForkSafeLock, renew_on_fork
from fib_schema import TraceSet

from . import ending
from .config import CONFIG_VARIABLE, ENABLE_VARIABLE, Settings, to_registry
from .errors import InvalidSetting
from .storing.writer import Writer
from .taking.budget import Budget
from .taking.copies import Copier
from .taking.drafts import Draft, can_be_drafted
from .taking.graphs import CapturedCalls, is_capturing
from .taking.intake import Intake, Surroundings
from .taking.notes import Note
from .tallies import DefinitionStats, Troubles, logger

DEFAULT_BYTES = 256 << 20
_LAST = 0
"""Of what `multiprocessing` calls at the end of a process."""
EXIT_SECONDS = ending.LONGEST_SECONDS
"""How long the end of the process may wait for what is not stored yet."""


class TracingRuntime:
    """Collects workloads of a data set's definitions.

    Args:
        trace_set: The data set, or its folder; None means ``FIB_DATASET_PATH`` or the default.
        tracing_config: Settings for all definitions, by definition, a registry, a YAML file, or None for
            `get_full_configs`.
        max_bytes: How many bytes of copies may be in memory at a time.
        wait_seconds: How long a call may wait while that many are; 0 drops it at once and counts it.
        drafts: Whether calls of definitions that the data set lacks are made drafts of.

    Raises:
        DataSetNotFound: There is no such folder.
        NoRoot: The data set is in memory only.
        UnknownName: Settings name a definition or an input that the data set lacks.
        InvalidSetting: A setting has a value that it cannot have.
    """

    def __init__(
        self,
        trace_set: TraceSet | str | os.PathLike[str] | None = None,
        tracing_config: Settings = None,
        *,
        max_bytes: int = DEFAULT_BYTES,
        wait_seconds: float = 0.0,
        drafts: bool = False,
    ) -> None:
        if max_bytes < 1:
            raise InvalidSetting("max_bytes", max_bytes, "bytes from 1 on")
        self._set = trace_set if isinstance(trace_set, TraceSet) else TraceSet.from_path(trace_set)
        self.config = to_registry(tracing_config)
        self.config.check(self._set.definitions)
        self.budget = Budget(max_bytes)
        self._troubles = Troubles()
        self._writer = Writer(self._set.workload_log(), self.budget, self._troubles)
        self._captured = CapturedCalls()
        self._has_drafts = drafts
        self._around = Surroundings(
            put=self._writer.put,
            hurry=self._writer.hurry,
            budget=self.budget,
            copier=Copier(),
            troubles=self._troubles,
            is_capturing=is_capturing,
            on_capture=self._captured.remember,
            wait_seconds=wait_seconds,
        )
        self._lock = ForkSafeLock()
        self._intakes: dict[str, Intake | None] = {}
        self._notes: dict[tuple[str, tuple[str, ...]], Note | None] = {}
        self._drafts: dict[str, Draft] = {}
        _alive.add(self)
        renew_on_fork(self)

    # -- being in force ------------------------------------------------------------------------------

    def start(self) -> Self:
        """Collect from now on, in place of a runtime that was started before."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._around.copier.prepare()
        ending.watch(self._flush_at_exit)
        _push(self)
        return self

    def stop(self) -> None:
        """Collect no more, and store what was kept; the runtime that was in force before is again."""
        _remove(self)
        try:
            self.flush()
            self._writer.close(None)
        finally:
            self._captured.forget()
            ending.forget(self._flush_at_exit)

    def __enter__(self) -> Self:
        return self if self in _stack else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- collecting ----------------------------------------------------------------------------------

    def bind(self, definition: str, names: tuple[str, ...]) -> Note | None:
        """What is to be called with the arguments of each call of a function; None if they are not traced."""
        place = definition, names
        if place not in self._notes:
            with self._lock:
                self._notes = {**self._notes, place: self._note(definition, names)}
        return self._notes[place]

    def _note(self, definition: str, names: tuple[str, ...]) -> Note | None:
        try:
            if definition in self._set.definitions:
                intake = self._intake(definition)
                return None if intake is None else intake.note(names)
        except Exception as error:  # noqa: BLE001 a damaged definition, somebody's policy: the engine must go on
            self._troubles.report(f"{definition}: cannot be traced", error)
            return None
        if not self._has_drafts or not can_be_drafted(definition):
            self._troubles.report(f"{definition}: unknown", "the data set has no such definition")
            return None
        return self._drafting(definition, names)

    def _intake(self, name: str) -> Intake | None:
        """The intake of a definition of the set; None if its settings say that it is not traced."""
        with self._lock:
            if name not in self._intakes:
                definition = self._set.get_definition(name)
                config = self.config.get(name, definition)
                is_traced = config is not None and config.filter_policy != "keep_none"
                self._intakes[name] = Intake(definition, config, self._around) if config and is_traced else None
            return self._intakes[name]

    def _drafting(self, definition: str, names: tuple[str, ...]) -> Note:
        draft = self._drafts.setdefault(definition, Draft(definition, names))

        def note(*values: Any) -> None:
            try:
                if draft.see(dict(zip(names, values, strict=False))):
                    self._writer.put(lambda: self._save(draft))
            except Exception as error:  # noqa: BLE001 an engine's call must not fail because somebody watches
                self._troubles.report(f"{definition}: draft", error)

        return note

    def _save(self, draft: Draft) -> None:
        root = self._set.root
        assert root is not None  # it has a workload log
        try:
            draft.save(root)
        except OSError as error:
            self._troubles.report(f"{draft.name}: draft", error)

    def collect(
        self, name: str, args: Sequence[Any] | Mapping[str, Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Take a call in that is not routed; ``collect(name, {...})`` is the older form.

        Args:
            name: The definition's name.
            args: Inputs by position, in the definition's order; or by name.
            kwargs: Inputs by name.

        Raises:
            UnknownName: The data set has no such definition (a KeyError).
            TypeError: The arguments are not those of the definition.
        """
        intake = self._intake(name)
        if intake is None:
            return
        named = {**(args if isinstance(args, Mapping) else {}), **(kwargs or {})}
        merged = intake.definition.merge_kwargs_to_args(() if isinstance(args, Mapping) else args, named)
        intake.count()
        intake.take(tuple(merged[: len(intake.definition.inputs)]))

    def cuda_graph_scope(self) -> AbstractContextManager[None]:
        """Within it, calls that are captured in a CUDA graph are remembered, with their tensors.

        They are kept alive until this runtime stops; `snapshot_graph_tensors` collects them.
        """
        return self._captured.scope()

    def snapshot_graph_tensors(self) -> int:
        """Collect the captured calls with the values that their tensors have on the current stream by now.

        To be called behind a replay, on its stream. Policies decide as on any call.

        Returns:
            How many calls were looked at.
        """
        return self._captured.snapshot()

    # -- storing -------------------------------------------------------------------------------------

    def flush(self, timeout_seconds: float | None = None) -> dict[str, DefinitionStats]:
        """Wait until all that was kept is stored, samples that policies hold included.

        Args:
            timeout_seconds: How long to wait at most; None for as long as it takes.

        Returns:
            What became of calls so far, by definition.

        Raises:
            TimeoutError: It took longer, and storing goes on; or there can be no thread that stores.
        """
        if not self._flush(timeout_seconds):
            if timeout_seconds is None:
                raise TimeoutError("there can be no thread that stores what was traced")
            raise TimeoutError(f"what was traced is not stored after {timeout_seconds:g} s; storing goes on")
        return self.stats()

    def _flush(self, timeout_seconds: float | None) -> bool:
        for draft in list(self._drafts.values()):
            if draft.has_calls:
                self._writer.put(lambda draft=draft: self._save(draft))  # type: ignore[misc] # of this round
        return self._writer.flush([i for i in list(self._intakes.values()) if i is not None], timeout_seconds)

    def _flush_at_exit(self) -> None:
        """Store what is kept, within a time; from a signal handler too."""
        if not self._flush(EXIT_SECONDS):
            logger.warning("the process ends before all that was traced could be stored")

    def end(self) -> None:
        """At the end of the process: store what is kept, and have no thread any more."""
        if self in _stack:
            self._flush_at_exit()
        self._writer.close(EXIT_SECONDS)

    def renew_after_fork(self) -> None:
        """Begin anew without threads and entries of the parent process."""
        self._troubles.renew()
        self.budget.renew()
        self._writer.renew()
        self._around.copier.renew()
        self._captured.forget()
        for intake in self._intakes.values():
            if intake is not None:
                intake.renew()
        for draft in self._drafts.values():
            draft.renew()

    # -- seeing --------------------------------------------------------------------------------------

    def stats(self) -> dict[str, DefinitionStats]:
        """What became of calls so far, by definition."""
        return {name: intake.stats() for name, intake in list(self._intakes.items()) if intake is not None}

    def troubles(self) -> dict[str, int]:
        """What went wrong, and how often."""
        return self._troubles.counts()


# -- which one is in force ---------------------------------------------------------------------------

_lock = ForkSafeLock()
_stack: tuple[TracingRuntime, ...] = ()
_alive: weakref.WeakSet[TracingRuntime] = weakref.WeakSet()


def get_tracing_runtime() -> TracingRuntime | None:
    """The runtime that collects now."""
    return _stack[-1] if _stack else None


def enable_tracing(
    dataset_path: TraceSet | str | os.PathLike[str] | None = None,
    tracing_config: Settings = None,
    **options: Any,
) -> TracingRuntime:
    """Collect workloads from now on, or within a ``with`` block.

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
    """Start a runtime if `ENABLE_VARIABLE` says so and none is in force; whatever goes wrong is logged."""
    if get_tracing_runtime() is not None:
        return
    try:
        if enabled_by_environment(ENABLE_VARIABLE):
            enable_tracing(None, os.environ.get(CONFIG_VARIABLE) or None)
    except Exception as error:  # noqa: BLE001 of a policy or a settings file too: the engine runs without us
        logger.error("%s asks for tracing, which cannot be: %s", ENABLE_VARIABLE, error)


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


def _end_with_process(this: object) -> None:
    """A process that `multiprocessing` has forked ends without what `atexit` knows, and calls these."""
    del this
    Finalize(None, _at_exit, exitpriority=_LAST)


atexit.register(_at_exit)
register_after_fork(_at_exit, _end_with_process)
