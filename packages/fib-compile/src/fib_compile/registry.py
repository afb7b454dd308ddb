"""BuilderRegistry: finds the builder for a solution and keeps what was built."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from fib_schema import BuildSpec, Definition, Solution, SourceFile, UnknownName

from ._digest import interface_digest
from .builder import Builder, Limits
from .builders import builder_classes
from .errors import BuilderConflict, BuildError
from .forking import ForkSafeLock, renew_on_fork
from .runnable import Runnable

if TYPE_CHECKING:
    from .ahead import BuildOutcome

ENTRY_POINTS = "fib_compile.builders"
_MAX_KNOWN_OBJECTS = 8192
_Key: TypeAlias = tuple[str, str, str]


class BuilderRegistry:
    """Builders in the order of their priority, and the runnables that they built.

    Args:
        builders: At least one; the first that can build a solution does.

    Raises:
        ValueError: There is no builder.
    """

    _instance: BuilderRegistry | None = None
    _instance_lock = ForkSafeLock()

    def __init__(self, builders: Iterable[Builder]) -> None:
        self._builders = list(builders)
        if not self._builders:
            raise ValueError("a registry needs at least one builder")
        self._runnables: dict[_Key, Runnable] = {}
        self._lock = ForkSafeLock()
        self._in_progress: dict[_Key, threading.Lock] = {}
        # By the solution's id, which needs no hashing of sources. The records are held, so that their ids stay theirs.
        self._known: dict[int, tuple[Definition, Runnable, Solution]] = {}
        renew_on_fork(self)

    @classmethod
    def get_instance(cls) -> BuilderRegistry:
        """The registry of this process, with all builders that are available on this machine.

        Ours come first, then those of the entry points in the group ``fib_compile.builders``, in the order
        of their names: classes that are called without arguments.

        Raises:
            BuilderConflict: An entry point clashes with another builder.
        """
        with cls._instance_lock:
            if cls._instance is None:
                registry = cls([kind() for kind in builder_classes() if kind.is_available()])
                for kind in _entry_points():
                    if kind.is_available():
                        registry.register(kind())
                cls._instance = registry
            return cls._instance

    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Build a solution, once: the same content for the same interface gives the same runnable.

        Concurrent calls for one solution build it once.

        Raises:
            BuildError: No builder can build it, or the build failed.
        """
        try:
            known, runnable, _ = self._known[id(solution)]
        except KeyError:
            return self._build_and_remember(definition, solution)
        if known is definition and not runnable.is_cleaned:
            return runnable
        return self._build_and_remember(definition, solution)

    def build_reference(self, definition: Definition) -> Runnable:
        """Build a definition's own code.

        Raises:
            BuildError: It cannot be built.
        """
        return self._build_once(definition, reference_solution(definition))

    def build_many(
        self,
        pairs: Iterable[tuple[Definition, Solution]],
        *,
        jobs: int | None = None,
        limits: Limits | None = None,
        on_done: Callable[[BuildOutcome], None] | None = None,
    ) -> list[BuildOutcome]:
        """Build solutions into the cache ahead of time, several at once, without loading or running any.

        After an interrupt, or an error in `on_done`, nothing more is begun, and compilers that run are killed.

        Args:
            pairs: What to build.
            jobs: How many at once; all cores by default.
            limits: What each command of a compiler may use.
            on_done: Called in the calling thread whenever one is done.

        Returns:
            One outcome for each pair, in their order; failures are among them and are not raised.

        Raises:
            InvalidLimit: None at once.
        """
        from .ahead import build_ahead

        return build_ahead(self._builder_for, pairs, jobs=jobs, limits=limits, on_done=on_done)

    def register(self, builder: Builder, *, before: str | None = None) -> None:
        """Add a builder.

        Args:
            builder: Asked after all others, or
            before: before the builder of this name.

        Raises:
            BuilderConflict: A builder has the same name, package prefix or folder.
            UnknownName: There is no builder to put it before.
        """
        with self._lock:
            self._builders = _with_builder(self._builders, builder, before)

    @property
    def builders(self) -> tuple[Builder, ...]:
        """The builders, highest priority first."""
        return tuple(self._builders)

    def cleanup(self) -> None:
        """Clean up every runnable and forget it.

        Raises:
            ExceptionGroup: Runnables whose cleanup failed; the others are cleaned up all the same.
        """
        with self._lock:
            runnables = list(self._runnables.values())
            self._runnables.clear()
            self._known.clear()
            self._in_progress.clear()
        failures = [failure for runnable in runnables if (failure := _clean(runnable))]
        if failures:
            raise ExceptionGroup("some runnables could not be cleaned up", failures)

    def renew_after_fork(self) -> None:
        """Forget builds of the parent process, which this one would wait for."""
        self._in_progress.clear()

    def _build_and_remember(self, definition: Definition, solution: Solution) -> Runnable:
        runnable = self._build_once(definition, solution)
        with self._lock:
            if len(self._known) >= _MAX_KNOWN_OBJECTS:
                self._known.clear()
            self._known[id(solution)] = (definition, runnable, solution)
        return runnable

    def _build_once(self, definition: Definition, solution: Solution) -> Runnable:
        key = (solution.name, solution.hash(), interface_digest(definition))
        with self._lock:
            lock = self._in_progress.setdefault(key, threading.Lock())
        with lock:
            runnable = self._runnables.get(key)
            if runnable is None or runnable.is_cleaned:
                runnable = self._builder_for(solution).build(definition, solution)
                self._runnables[key] = runnable
        return runnable

    def _builder_for(self, solution: Solution) -> Builder:
        for builder in self._builders:
            if builder.can_build(solution):
                return builder
        raise BuildError(solution.name, None, self._no_builder(solution.spec))

    def _no_builder(self, spec: BuildSpec) -> str:
        binding = f" with binding '{spec.binding}'" if spec.binding else ""
        available = ", ".join(builder.name for builder in self._builders)
        missing = [(kind.name, kind.unavailable_reason()) for kind in builder_classes() if not kind.is_available()]
        unavailable = "".join(f"; {name} is unavailable: {reason}" for name, reason in missing)
        return f"no builder for language '{spec.language}'{binding} (available: {available}{unavailable})"


def reference_solution(definition: Definition) -> Solution:
    """A definition's own code as a solution."""
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


def _entry_points() -> list[Any]:
    from importlib.metadata import entry_points

    return [point.load() for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name)]


def _with_builder(builders: list[Builder], new: Builder, before: str | None) -> list[Builder]:
    for old in builders:
        for field in ("name", "package_prefix", "build_dir_name"):
            if getattr(old, field) == getattr(new, field):
                raise BuilderConflict(field, getattr(new, field), _described(old), _described(new))
    names = [old.name for old in builders]
    if before is not None and before not in names:
        raise UnknownName("builder", before, tuple(names))
    place = names.index(before) if before is not None else len(names)
    return [*builders[:place], new, *builders[place:]]


def _described(builder: Builder) -> str:
    kind = type(builder)
    return f"{kind.__module__}.{kind.__qualname__}"


def _clean(runnable: Runnable) -> Exception | None:
    try:
        runnable.cleanup()
    except Exception as error:  # noqa: BLE001 - reported together when all are done
        return error
    return None
