"""BuilderRegistry. Selection of the builder for a solution, and the runnables of this process."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, TypeAlias, cast

import attrs
from fib_schema import BuildSpec, Definition, Solution, SourceFile, UnknownName
from fib_schema.entry_points import UnusableEntryPoint, describe, find_entry_points, load_entry_point
from fib_schema.settings import InvalidSetting

from .builder import Builder, Limits, check_limit, watch_exit
from .builders import builder_classes
from .cache import interface_digest
from .errors import BuildError
from .runnable import Runnable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_logger = logging.getLogger("fib_compile")
BUILDERS_GROUP = "fib_compile.builders"
"""The entry points that builders of other packages are found by."""
_Key: TypeAlias = tuple[str, str, str]


class BuildState(StrEnum):
    """Outcome of an ahead-of-time build."""

    BUILT = "built"
    CACHED = "cached"
    """The cache holds it, or nothing can be built ahead of time, as in Python."""
    FAILED = "failed"


@attrs.frozen
class BuildOutcome:
    """The result of building one solution ahead of time."""

    solution: Solution
    state: BuildState
    seconds: float
    error: BuildError | None = None


class BuilderRegistry:
    """Builders in order of priority, and the runnables that they built.

    Args:
        builders: At least one; the first that can build a solution builds it.

    Raises:
        ValueError: The list is empty.
    """

    _instance: BuilderRegistry | None = None
    _instance_lock = threading.RLock()
    _registries: ClassVar[weakref.WeakSet[BuilderRegistry]] = weakref.WeakSet()

    def __init__(self, builders: Iterable[Builder]) -> None:
        self._builders = list(builders)
        if not self._builders:
            raise ValueError("a registry needs at least one builder")
        self._runnables: dict[_Key, Runnable] = {}
        self._skipped: list[str] = []  # entry points that cannot be used, with the reasons
        self._lock = threading.RLock()
        self._in_progress: dict[_Key, threading.Lock] = {}
        self._registries.add(self)

    @classmethod
    def get_instance(cls) -> BuilderRegistry:
        """The registry of this process, with all builders that are available on this machine.

        Builders of this package come first, then those of entry points in the group ``fib_compile.builders``, ordered
        by name. An entry point names a class that takes no arguments. One that cannot be used is skipped, with a
        warning in the log that names its distribution.
        """
        with cls._instance_lock:
            if cls._instance is None:
                registry = cls([kind() for kind in builder_classes() if kind.is_available()])
                registry._add_entry_points()
                cls._instance = registry
            return cls._instance

    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Build a solution once: the same content for the same interface gives the same runnable.

        Concurrent calls share one build.

        Raises:
            BuildError: No builder can build it, or the build failed.
        """
        key = (solution.name, solution.hash(), interface_digest(definition))
        with self._lock:
            lock = self._in_progress.setdefault(key, threading.Lock())
        with lock:
            runnable = self._runnables.get(key)
            if runnable is None or runnable.is_cleaned:
                runnable = self._builder_for(solution).build(definition, solution)
                self._runnables[key] = runnable
        return runnable

    def build_reference(self, definition: Definition) -> Runnable:
        """Build a definition's reference.

        Raises:
            BuildError: It cannot be built.
        """
        return self.build(definition, reference_solution(definition))

    def build_many(
        self,
        pairs: Iterable[tuple[Definition, Solution]],
        *,
        jobs: int | None = None,
        limits: Limits | None = None,
        on_done: Callable[[BuildOutcome], None] | None = None,
    ) -> list[BuildOutcome]:
        """Build solutions into the cache ahead of time and concurrently, without loading or running any.

        After an interrupt or an error in `on_done`, no further build starts and running compilers are killed.

        Args:
            pairs: Definitions with solutions.
            jobs: The number of concurrent builds; all cores by default.
            limits: The time that each compiler command may use.
            on_done: Called in the calling thread after each build.

        Returns:
            One outcome for each pair, in their order. A failed build is an outcome and is not raised.

        Raises:
            InvalidSetting: `jobs` is not greater than 0.
        """
        from concurrent.futures import ThreadPoolExecutor, as_completed  # 10 ms, which `build` need not pay

        check_limit("jobs", jobs)
        watch_exit()
        stopped = threading.Event()
        limits = (limits or Limits()).until(stopped)
        outcomes: dict[int, BuildOutcome] = {}
        with ThreadPoolExecutor(max_workers=jobs or os.cpu_count() or 1) as pool:  # compilers are child processes
            futures = {pool.submit(self._build_ahead, *pair, limits): index for index, pair in enumerate(pairs)}
            try:
                for future in as_completed(futures):
                    outcomes[futures[future]] = future.result()
                    if on_done is not None:
                        on_done(future.result())
            except BaseException:  # otherwise the pool finishes all builds first, and a second interrupt does not help
                pool.shutdown(wait=False, cancel_futures=True)
                stopped.set()
                raise
        return [outcomes[index] for index in range(len(futures))]

    def register(self, builder: Builder, *, before: str | None = None) -> None:
        """Add a builder: with the lowest priority, or with that above the builder named `before`.

        Raises:
            InvalidSetting: A builder has the same name, package prefix or folder.
            UnknownName: No builder is named `before`.
        """
        with self._lock:
            self._builders = _with_builder(self._builders, builder, before)

    def _add_entry_points(self) -> None:
        """Add the builders of entry points; a broken one costs only itself."""
        for point in find_entry_points(BUILDERS_GROUP):
            try:
                if (builder := _make_builder(point)) is not None:
                    self.register(builder)
            except UnusableEntryPoint as error:
                self._skip(point, error.problem)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - code of third parties
                self._skip(point, f"{type(error).__name__}: {error}")

    def _skip(self, point: EntryPoint, problem: str) -> None:
        self._skipped.append(f"{describe(point)} is skipped: {problem}")
        _logger.warning("builder of %s", self._skipped[-1])

    @property
    def builders(self) -> tuple[Builder, ...]:
        """The builders, highest priority first."""
        return tuple(self._builders)

    def cleanup(self) -> None:
        """Clean up and remove every runnable.

        Raises:
            ExceptionGroup: The cleanup of some runnables failed; the others are cleaned up.
        """
        with self._lock:
            runnables = list(self._runnables.values())
            self._runnables.clear()
            self._in_progress.clear()
        failures: list[Exception] = []
        for runnable in runnables:
            try:
                runnable.cleanup()
            except Exception as error:  # noqa: BLE001 - raised in a group after all cleanups
                failures.append(error)
        if failures:
            raise ExceptionGroup("some runnables could not be cleaned up", failures)

    @classmethod
    def renew_after_fork(cls) -> None:
        """Free the locks in a forked child: threads that held them do not exist there."""
        cls._instance_lock = threading.RLock()
        for registry in cls._registries:
            cls._free(registry)

    def _free(self) -> None:
        self._lock = threading.RLock()
        self._in_progress.clear()

    def _build_ahead(self, definition: Definition, solution: Solution, limits: Limits) -> BuildOutcome:
        start = time.monotonic()
        error = None
        state = BuildState.CACHED
        try:
            if self._builder_for(solution).compile_ahead(definition, solution, limits):
                state = BuildState.BUILT
        except BuildError as caught:
            error, state = caught, BuildState.FAILED
        return BuildOutcome(solution, state, time.monotonic() - start, error)

    def _builder_for(self, solution: Solution) -> Builder:
        for builder in self._builders:
            if builder.can_build(solution):
                return builder
        raise BuildError(solution.name, None, self._no_builder(solution))

    def _no_builder(self, solution: Solution) -> str:
        spec = solution.spec
        binding = f" with binding '{spec.binding}'" if spec.binding else ""
        available = ", ".join(builder.name for builder in self._builders)
        others = [kind for kind in builder_classes() if not kind.is_available() and kind().can_build(solution)]
        unavailable = "".join(f"; {kind.name} is unavailable: {kind.unavailable_reason()}" for kind in others)
        skipped = "".join(f"; {text}" for text in self._skipped)
        return f"no builder for language '{spec.language}'{binding} (available: {available}{unavailable}{skipped})"


def reference_solution(definition: Definition) -> Solution:
    """The reference of a definition as a solution."""
    spec = BuildSpec(
        language="python", target_hardware=("cpu",), entry_point="reference.py::run", destination_passing_style=False
    )
    return Solution(
        name="reference",
        definition=definition.name,
        author="definition",
        spec=spec,
        sources=(SourceFile("reference.py", definition.reference),),
    )


def _make_builder(point: EntryPoint) -> Builder | None:
    """The builder that an entry point names; None if this machine cannot use it.

    Raises:
        TypeError: It names something else; importing or calling it may raise anything.
    """
    kind = load_entry_point(point)
    if not (isinstance(kind, type) and issubclass(kind, Builder)):
        raise TypeError(f"{point.value} is of type {type(kind).__name__!r}, and no subclass of fib_compile.Builder")
    if not kind.is_available():
        return None
    builder = cast("type", kind)()  # a builder of an entry point takes no arguments
    for field in ("name", "package_prefix", "build_dir_name"):
        value = getattr(builder, field, None)
        if not isinstance(value, str) or not value:
            raise TypeError(f"{field} of {point.value} is {value!r}; it must be a name")
    return cast("Builder", builder)


def _with_builder(builders: list[Builder], new: Builder, before: str | None) -> list[Builder]:
    for old in builders:
        for field in ("name", "package_prefix", "build_dir_name"):
            if getattr(old, field) == getattr(new, field):
                wanted = f"another one than that of {_described(old)}"
                raise InvalidSetting(f"{field} of {_described(new)}", getattr(new, field), wanted)
    names = [old.name for old in builders]
    if before is not None and before not in names:
        raise UnknownName("builder", before, tuple(names))
    place = names.index(before) if before is not None else len(names)
    return [*builders[:place], new, *builders[place:]]


def _described(builder: Builder) -> str:
    kind = type(builder)
    return f"{kind.__module__}.{kind.__qualname__}"


os.register_at_fork(after_in_child=BuilderRegistry.renew_after_fork)
