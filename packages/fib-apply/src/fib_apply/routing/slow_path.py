"""Slow path of the calls of one definition. Validates a call, selects its kernel and caches the result.

A `CandidatePool` holds the selected solutions that are loaded and not quarantined. A `RunTracker` knows which kernels
may be called now, as a state machine: a `Run` is a solution together with everything that its kernels are compiled for.
A kernel that compiles when it is called is first run in a child process, and called here only after that; nothing is
recorded in a CUDA graph before it was called once. Each run is in one `RunState`, see `EARLIER_STATES`.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import attrs
import torch
from fib_compile import Runnable
from fib_compile.device import hardware_from_device
from fib_compile.runnable import ordered_results
from fib_schema import Definition, FibError, Solution, SupportedLanguages

from ..build_service.probe import ProbeResult
from ..build_service.service import BuildService
from ..config import ApplyConfig, OnMiss
from ..events import (
    BEING_BUILT,
    FALLBACK_IS_BEST,
    NOTHING_BUILT,
    QUARANTINED,
    UNREADABLE,
    CallMetrics,
    Counter,
    emit,
    logger,
    quarantined,
)
from ..key import ApplyKey, ApplyKeyBuilder, makes_keys_of_axes
from ..selection.rankings import Candidate, HardwareRankings, Ranking, number_text
from .call_variant import CacheEntry, CallVariant, Kernel
from .guards import GuardOptions, are_aligned
from .native.module import loaded_guards
from .validation import Rejection, call_strides, has_nested
from .watched_run import WRITES_INPUTS, WatchedInputs, own_results

_SOLUTION_ATTRIBUTE = "fib_solution"
_UNCOUNTED = Counter()
_OF_ITSELF = "called by a solution"
_JIT_BUILD_TYPES = frozenset(language for language in SupportedLanguages if language.is_embedded)


@attrs.frozen
class LoadedCandidate:
    """A candidate whose solution is loaded."""

    solution: str
    runnable: Runnable
    candidate: Candidate

    @property
    def needs_alignment(self) -> bool:
        """Whether the solution may only be called with aligned tensors.

        Kernels may have unchecked vectorised loads, or be compiled once more for other addresses.
        """
        return self.runnable.metadata.build_type != SupportedLanguages.PYTHON

    @property
    def compiles_when_called(self) -> bool:
        """Whether the solution compiles kernels for the arguments of its calls."""
        return self.runnable.metadata.build_type in _JIT_BUILD_TYPES


class _FirstRuns(threading.local):
    """The solutions that this thread runs for the first time for a key, and whether each was to be called again."""

    def __init__(self) -> None:
        self.solutions: dict[str, bool] = {}


_first_runs = _FirstRuns()


# -- runs -------------------------------------------------------------------------------------------

_MAX_RUNS = 8_192


class RunState(StrEnum):
    """States of a run; the values are reasons of misses."""

    NEW = "not called yet"
    """Nothing, or it was forgotten: of too many runs the oldest are."""
    COMPILING = "being compiled"
    """A child process will make it, or makes it."""
    NOT_COMPILED = "not compiled"
    """It could not be made in a child process, for no fault of the solution: the fallback serves its calls."""
    COMPILED = "compiled"
    """Its kernels are in a cache; of languages that compile ahead of time, since the solution was loaded."""
    CALLED = "called"
    """The engine has made it."""


EARLIER_STATES = {
    RunState.NEW: (RunState.COMPILING,),
    RunState.COMPILING: (RunState.NEW,),
    RunState.NOT_COMPILED: (RunState.NEW, RunState.COMPILING),  # new if it was forgotten meanwhile
    RunState.COMPILED: (RunState.NEW, RunState.COMPILING, RunState.NOT_COMPILED),
    RunState.CALLED: (RunState.COMPILED,),
}
"""The states from which a run may go to a state; from others it does not: a run that was called stays so."""

_READY = (RunState.COMPILED, RunState.CALLED)


class Run(NamedTuple):
    """A solution and what its kernels are compiled for."""

    solution: str
    key: ApplyKey
    device: str
    specializations: tuple[Any, ...] | None = None
    """Properties of scalars on which kernels specialize; None for languages that compile ahead of time."""

    @property
    def compiles_when_called(self) -> bool:
        """Whether the first call compiles kernels."""
        return self.specializations is not None


class _Record(NamedTuple):
    state: RunState
    ready_at: float
    """Time of `time.monotonic` since which it is compiled; captures record what was ready at the last warm-up."""


class RunTracker:
    """The runs of one definition."""

    def __init__(
        self, definition: Definition, build_service: BuildService, quarantine: Callable[[str, str], None]
    ) -> None:
        self._definition, self._service = definition, build_service
        self._quarantine = quarantine
        self._arity = len(definition.inputs)
        self._records: dict[Run, _Record] = {}
        self._lock = threading.RLock()  # reentrant: a signal handler may make calls

    def refusal(self, run: Run, args: Sequence[Any], *, may_capture: bool) -> str | None:
        """Reason why the engine must not make a run now; None if it may. Requests a first run that is missing."""
        is_ready = self.state(run) is RunState.CALLED and self.is_before_captures(run)
        if is_capturing(run.device) and not (may_capture and is_ready):
            return "capturing"
        if not run.compiles_when_called:
            return None
        state = self.state(run)
        may_be_known = state not in _READY and self._service.prepares_captures  # its kernels may have been deleted
        if may_be_known and self._service.was_run(run.solution, args[: self._arity]):
            state = self._advance(run, RunState.COMPILED)
        if state is RunState.NEW:
            state = self._request(run, args)
        if state is RunState.COMPILING and self.has_waited(run.device):
            state = self.state(run)
        return None if state in _READY else state.value

    def state(self, run: Run) -> RunState:
        """The state of a run."""
        return self._record(run).state

    def is_before_captures(self, run: Run) -> bool:
        """Whether a run was ready at the last warm-up, so that captures may record it once it was made."""
        return self._record(run).ready_at <= self._service.capture_gate

    def mark_called(self, run: Run) -> None:
        """Note that the engine has made a run."""
        self._advance(run, RunState.CALLED)

    def has_waited(self, device: str) -> bool:
        """Wait for builds and first runs, if captures are prepared; whether all are finished."""
        return not is_capturing(device) and self._service.wait_for_captures()

    def problem(self, solution: str, is_asked: Callable[[Run], bool]) -> str | None:
        """State of the kernels of a solution that are not compiled; None if they are."""
        records = self._records.copy().items()
        states = {record.state for run, record in records if run.solution == solution and is_asked(run)}
        if states.intersection(_READY):
            return None
        for state in (RunState.COMPILING, RunState.NOT_COMPILED):
            if state in states:
                return state.value
        return RunState.NEW.value

    def _record(self, run: Run) -> _Record:
        """The state of a run. A solution that compiles ahead of time is compiled since it was loaded."""
        found = self._records.get(run)
        if found is not None:
            return found
        state = RunState.NEW if run.compiles_when_called else RunState.COMPILED
        return _Record(state, self._service.loaded_at(run.solution))

    def _advance(self, run: Run, state: RunState, ready_at: float | None = None) -> RunState:
        """Move a run to another state, if it may go there; returns its state."""
        with self._lock:
            found = self._record(run)
            if found.state not in EARLIER_STATES[state]:
                return found.state
            if len(self._records) >= _MAX_RUNS and run not in self._records:
                for old in list(itertools.islice(self._records, _MAX_RUNS // 2)):
                    self._records.pop(old, None)
            self._records[run] = _Record(state, found.ready_at if ready_at is None else ready_at)
            return state

    def _request(self, run: Run, args: Sequence[Any]) -> RunState:
        """Request the first run in a child process, if no other thread did."""
        with self._lock:
            is_first = self.state(run) is RunState.NEW
            state = self._advance(run, RunState.COMPILING)
        if not is_first:
            return state

        def on_done(verdict: ProbeResult | None) -> None:
            if verdict is None:
                self._advance(run, RunState.NEW)
            elif verdict.reason is None:
                self._advance(run, RunState.COMPILED, time.monotonic())
            elif verdict.is_reproducible:
                self._advance(run, RunState.NEW)
                self._quarantine(run.solution, f"its first run failed: {verdict.reason}")
            else:
                self._leave_uncompiled(run, verdict.reason)

        if self._service.run_first(self._definition, run.solution, args[: self._arity], on_done):
            return state
        self._leave_uncompiled(run, "its integer inputs are too large to be copied")
        return RunState.NOT_COMPILED

    def _leave_uncompiled(self, run: Run, reason: str) -> None:
        """Leave calls like this to the fallback; the solution is not to blame."""
        self._advance(run, RunState.NOT_COMPILED)
        what = f"{self._definition.name}: {run.solution} is not used for {run.key}"
        logger.warning("%s, because it could not be run first: %s", what, reason)


def is_capturing(device: str) -> bool:
    """Whether a CUDA graph is being captured in the current stream."""
    return device.startswith("cuda") and torch.cuda.is_current_stream_capturing()


class CandidatePool:
    """The solutions of one definition."""

    def __init__(
        self,
        definition: Definition,
        rankings: Mapping[str, HardwareRankings],
        config: ApplyConfig,
        *,
        build_service: BuildService,
        load_solution: Callable[[str], Solution],
        quarantined: Mapping[str, str],
        wait_seconds: float = 0.0,
    ) -> None:
        self.definition = definition
        self.rankings = rankings
        self.config = config
        self.build_service = build_service
        self.quarantined = quarantined
        """Solutions that are no longer called, each with the reason; replaced on change, never edited."""
        self.load_solution = load_solution
        self._wait_seconds = wait_seconds
        self._requested: set[str] = set()
        self._numbers = [
            (name, place) for place, (name, spec) in enumerate(definition.inputs.items()) if spec.shape is None
        ]
        self._rankings_of: dict[str, HardwareRankings | None] = {}
        """By device, behind which a process finds the same hardware for as long as it runs."""
        self._lock = threading.RLock()  # reentrant: a signal handler may make calls

    def ranking(self, key: ApplyKey, device: str) -> Ranking | None:
        """The ranking that serves a key on a device now; None if only the fallback may.

        In a `fib_apply.capture_phase` it is that of captured calls, if any solution serves these.
        """
        rankings = self._rankings_on(device)
        if rankings is None:
            return None
        found = rankings.find(key, uses_best=self.config.on_miss_policy is OnMiss.USE_DEF_BEST)
        if found is None or not self.build_service.prepares_captures:
            return found
        return found.of_captured()

    def _rankings_on(self, device: str) -> HardwareRankings | None:
        """The rankings of a device's hardware."""
        if device not in self._rankings_of:
            hardware = hardware_from_device("cuda:0" if device == "cuda" else device)
            self._rankings_of[device] = self.rankings.get(hardware)
        return self._rankings_of[device]

    def numbers_of(self, args: Sequence[Any]) -> dict[str, str]:
        """The number inputs of a call, as `Candidate.was_measured_with` takes them."""
        return {name: number_text(args[place]) for name, place in self._numbers if args[place] is not None}

    def first_loaded(
        self,
        ranking: Ranking,
        numbers: Mapping[str, str],
        *,
        is_planned: bool = False,
        fallback_equivalents: frozenset[str] = frozenset(),
    ) -> LoadedCandidate | None:
        """The first usable candidate if it is loaded; requests its build and returns None if it is not built in time.

        Equivalents of the fallback also serve calls without a plan, because callers call the fallback instead. Others
        that are not faster than these are skipped, unless `ApplyConfig.require_speedup` is off.
        """
        is_equivalent = fallback_equivalents.__contains__
        equivalents = [c for c in ranking.candidates if is_equivalent(c.solution)] if fallback_equivalents else []
        serving = ranking.candidates if is_planned else ranking.plain_candidates
        for candidate in self._usable(ranking, numbers):
            if candidate not in serving and candidate not in equivalents:
                continue
            if equivalents and self._is_no_speedup(candidate, equivalents):
                continue
            runnable = self.build_service.find(candidate.solution)
            if runnable is None:
                self._request(candidate.solution)
                if self._wait_seconds and self.build_service.wait(self._wait_seconds):
                    runnable = self.build_service.find(candidate.solution)
                    if runnable is None and self.build_service.problem(candidate.solution) is not None:
                        continue  # its build failed
            if runnable is None:
                return None
            if runnable.setup is None or is_planned or candidate in equivalents:
                return LoadedCandidate(candidate.solution, runnable, candidate)
        return None

    def may_have_setup(self) -> bool:
        """Whether any candidate of any key may have a ``setup``, which its sources must name."""
        rankings = [ranking for one in self.rankings.values() for ranking in (*one.by_key.values(), one.best)]
        candidates = [c for ranking in rankings if ranking is not None for c in ranking.candidates]
        return any(c.has_setup for c in candidates) or any(map(self._names_setup, {c.solution for c in candidates}))

    def _names_setup(self, name: str) -> bool:
        try:
            return any("setup" in source.content for source in self.load_solution(name).sources)
        except FibError:
            return False  # it cannot be built either

    def first_usable(self, ranking: Ranking, numbers: Mapping[str, str]) -> Candidate | None:
        """The candidate that serves calls without a plan as soon as it is loaded; None if all are left out."""
        return next((found for found in self._usable(ranking, numbers) if found in ranking.plain_candidates), None)

    def _is_no_speedup(self, candidate: Candidate, equivalents: Sequence[Candidate]) -> bool:
        if candidate in equivalents or not self.config.require_speedup:
            return False
        return not all(candidate.is_faster_than_equivalent(other, self.config.margin) for other in equivalents)

    def miss_reason(self, ranking: Ranking, numbers: Mapping[str, str]) -> str:
        """Reason why no candidate serves plain calls now."""
        plain = ranking.plain_candidates
        if not plain:
            return ranking.plain_problem
        if not any(candidate.was_measured_with(numbers) for candidate in plain):
            return "numbers"
        loaded = [self.build_service.find(c.solution) for c in self._usable(ranking, numbers) if c in plain]
        if None in loaded:
            return BEING_BUILT
        if loaded:
            return "by plan only"
        return QUARANTINED if any(c.solution in self.quarantined for c in plain) else NOTHING_BUILT

    def _usable(self, ranking: Ranking, numbers: Mapping[str, str]) -> Iterator[Candidate]:
        """The candidates that are neither quarantined nor left out, and were measured with the numbers of a call."""
        for candidate in ranking.candidates:
            is_called = candidate.solution not in self.quarantined and candidate.was_measured_with(numbers)
            if is_called and self.build_service.problem(candidate.solution) is None:
                yield candidate

    def _request(self, name: str) -> None:
        """Request the build of a solution once."""
        with self._lock:
            if name in self._requested:
                return
            self._requested.add(name)
        try:
            self.build_service.request(self.definition, self.load_solution(name))
        except FibError as error:
            self.quarantine(name, f"{UNREADABLE}{error}")

    def quarantine(self, solution: str, reason: str) -> bool:
        """Exclude a solution; returns False if it was excluded before."""
        with self._lock:
            if solution in self.quarantined:
                return False
            self.quarantined = {**self.quarantined, solution: reason}
        emit(quarantined(self.definition.name, solution, reason))
        return True

    def candidate(self, solution: str, key: ApplyKey, device: str) -> Candidate | None:
        """Recorded facts about a solution at a key, e.g. its tolerance; None without a record."""
        ranking = self.ranking(key, device)
        return next((c for c in ranking.candidates if c.solution == solution), None) if ranking is not None else None


class _SlowCall(NamedTuple):
    """A call on the slow path."""

    variant: CallVariant
    args: Sequence[Any]
    generation: int
    """Of the variant; read before everything else, so that an invalidation meanwhile prevents caching."""

    def cache(self, entry: CacheEntry) -> None:
        """Let the fast path serve calls like this."""
        self.variant.install(entry, self.args, self.generation)


class SlowPath:
    """Resolves the calls of one definition to kernels."""

    def __init__(
        self, pool: CandidatePool, key_builder: ApplyKeyBuilder, metrics: CallMetrics, *, is_counted: bool
    ) -> None:
        self._pool = pool
        self._key_builder = key_builder
        self._makes_keys_of_axes = makes_keys_of_axes(key_builder)
        self._metrics = metrics
        self._is_counted = is_counted
        self._arity = len(pool.definition.inputs)
        self._make_variant = functools.partial(
            CallVariant, pool.definition, is_cached=key_builder.is_by_shape, is_counted=is_counted
        )
        self._lock = threading.RLock()  # reentrant: a signal handler may make calls
        self._logged: set[str] = set()
        self.runs = RunTracker(pool.definition, pool.build_service, self.quarantine)
        """The states of runs, which decide what may be called now."""
        self._kernels: dict[tuple[str, bool], Kernel] = {}
        self._variants: dict[tuple[frozenset[str], str | None], tuple[CallVariant, CallVariant]] = {}
        self._plan_variants: dict[frozenset[str], CallVariant] = {}

    def variants(
        self, fallback_equivalents: frozenset[str] = frozenset(), padded_axis: str | None = None
    ) -> tuple[CallVariant, CallVariant]:
        """The value-returning and the destination-passing variant of calls whose fallback equals certain solutions."""
        kind = fallback_equivalents, padded_axis
        with self._lock:
            if kind not in self._variants:
                made = [self._make_variant(*kind, is_destination_passing=passes) for passes in (False, True)]
                self._variants[kind] = made[0], made[1]
            return self._variants[kind]

    def plan_variant(self, fallback_equivalents: frozenset[str]) -> CallVariant:
        """The variant that remembers selections for plans."""
        found = self._plan_variants.get(fallback_equivalents)
        if found is None:
            found = self._plan_variants.setdefault(fallback_equivalents, self._make_variant(fallback_equivalents))
        if not found.is_native and (native := loaded_guards()) is not None:
            found.use_native_table(native)
        return found

    def resolve(self, variant: CallVariant, args: Sequence[Any]) -> Kernel | None:
        """The kernel for a call, from the cache if it has an entry; None is the fallback."""
        if not variant.is_native and has_nested(args):  # a native table lets no nested tensor through
            return self._miss("tensor")
        call = _SlowCall(variant, args, variant.generation)
        if (entry := variant.find(args)) is not None:
            _, kernel, count = entry
            if self._is_counted:
                count()
            return kernel
        if self._makes_keys_of_axes and (axes := variant.known_call(args)) is not None:
            return self._select(call, _padded(ApplyKey.of_axes(axes), variant.padded_axis))
        rejection = variant.validator.rejection(args)
        key = self.key(args, variant.padded_axis) if rejection is None else rejection
        if not isinstance(key, Rejection):
            if self._makes_keys_of_axes:
                variant.remember_call(args)
            return self._select(call, key)
        is_cached = key.is_cacheable and len(args) == variant.validator.arity
        return self._miss(key.reason, call if is_cached else None)

    def key(self, args: Sequence[Any], padded_axis: str | None = None) -> ApplyKey | Rejection:
        """The key of a valid call."""
        try:
            key = self._key_builder.build_from_args(args[: self._arity])
            key = key.with_layout(call_strides(self._pool.definition, args))
            key = _padded(key, padded_axis)
            hash(key)
        except Exception as error:  # noqa: BLE001 - a key builder may be any code
            problem = f"the key builder raised {type(error).__name__}: {error}"
            if problem not in self._logged:
                self._logged.add(problem)
                logger.warning("%s: %s", self._pool.definition.name, problem)
            return Rejection("key", problem)
        return key

    def _select(self, call: _SlowCall, key: ApplyKey) -> Kernel | None:
        device = device_of(call.args)
        ranking = self._pool.ranking(key, device)
        if ranking is None or not ranking.candidates:
            return self._miss(not_chosen(ranking), call)
        pool, numbers, equivalents = self._pool, self._pool.numbers_of(call.args), call.variant.fallback_equivalents
        loaded = pool.first_loaded(ranking, numbers, fallback_equivalents=equivalents)
        if loaded is None and pool.miss_reason(ranking, numbers) == BEING_BUILT and self.runs.has_waited(device):
            loaded = pool.first_loaded(ranking, numbers, fallback_equivalents=equivalents)
        depends_on_numbers = any(candidate.numbers for candidate in ranking.candidates)
        if loaded is None:
            reason = pool.miss_reason(ranking, numbers)
            return self._miss(reason, None if reason == BEING_BUILT else call, compares_numbers=depends_on_numbers)
        if loaded.solution in equivalents:
            return self._miss(FALLBACK_IS_BEST, call, compares_numbers=depends_on_numbers)
        if loaded.needs_alignment and not are_aligned(call.args):
            return self._miss("unaligned")
        if loaded.solution in _first_runs.solutions:
            _first_runs.solutions[loaded.solution] = True
            return self._miss(_OF_ITSELF)
        specializations = tuple(map(_specialization, call.args)) if loaded.compiles_when_called else None
        run = Run(loaded.solution, key, device, specializations)
        refusal = self.runs.refusal(run, call.args, may_capture=loaded.candidate.may_capture)
        if refusal is not None:
            return self._miss(refusal)
        return self._hit(call, loaded, run, compares_numbers=depends_on_numbers or run.compiles_when_called)

    def _hit(self, call: _SlowCall, loaded: LoadedCandidate, run: Run, *, compares_numbers: bool) -> Kernel:
        """The kernel of a run that may be made. The entry of its calls is cached once it was made."""
        kernel = self._kernel(loaded, is_destination_passing=call.variant.is_destination_passing)
        count = self._metrics.hit(run.key).increment if self._is_counted else _UNCOUNTED.increment
        if self._is_counted:
            count()
        outputs = len(call.args) - self._arity
        may_capture = loaded.candidate.may_capture and self.runs.is_before_captures(run)
        options = _guard_options(outputs, loaded.needs_alignment, may_capture, compares_numbers)
        guard = call.variant.guard(call.args, options)
        if self.runs.state(run) is RunState.CALLED:
            if guard is not None:
                call.cache((guard, kernel, count))
            return kernel

        def first_run(*values: Any) -> Any:
            result, is_sound = self.run_watched(loaded.solution, kernel, values)
            if is_sound:
                self.runs.mark_called(run)
            if is_sound and guard is not None:
                call.cache((guard, kernel, count))
            return result

        setattr(first_run, _SOLUTION_ATTRIBUTE, loaded.solution)
        return first_run

    def run_watched(self, solution: str, kernel: Kernel, values: Sequence[Any]) -> tuple[Any, bool]:
        """The result of the first run of a key, and whether the solution may be called again, else it is quarantined.

        Raises:
            TypeError: The result does not fit the definition.
        """
        inputs, results = WatchedInputs(values[: self._arity]), list[Any]()
        _first_runs.solutions[solution], problem = False, None
        try:
            if len(values) > self._arity:
                kernel(*values)
            else:
                problem = self._own_results(kernel, values, results)
        finally:
            is_asked_again, is_written = _first_runs.solutions.pop(solution), inputs.restore()
        if is_asked_again:
            problem = "it calls the function that it replaces"
        if problem := WRITES_INPUTS if is_written else problem:
            self.quarantine(solution, problem)
        return (*results, None)[0] if len(results) < 2 else tuple(results), problem is None

    def _own_results(self, kernel: Kernel, values: Sequence[Any], results: list[Any]) -> str | None:
        """Append the results of a value-returning run, of memory of their own; returns what was wrong with them."""
        definition = self._pool.definition
        results.extend(ordered_results(kernel(*values), definition))
        if problem := self.variants()[0].validator.result_problem(values, results):
            raise TypeError(f"{definition.name}: the first result does not fit the definition: {problem}")
        return own_results(results, may_be_strided=bool(call_strides(definition, values)))

    def _kernel(self, loaded: LoadedCandidate, *, is_destination_passing: bool) -> Kernel:
        """The function to call: the solution's own if it has the calling convention."""
        place = loaded.solution, is_destination_passing
        if place not in self._kernels:
            runnable = loaded.runnable
            adapted = runnable.call_destination_passing if is_destination_passing else runnable.call_value_returning
            is_native = runnable.metadata.destination_passing_style is is_destination_passing
            self._kernels[place] = runnable.function if is_native else adapted
        return self._kernels[place]

    def first_run_problem(self, solution: str, key: ApplyKey) -> str | None:
        """State of the kernels of a solution that are not compiled for a key; None if they are compiled."""
        return self.runs.problem(solution, lambda run: key in (run.key, run.key.recorded))

    def solution_of(self, kernel: Kernel | str) -> str:
        """The solution that a kernel is of, or that a name is of."""
        if isinstance(kernel, str):
            return kernel
        named = getattr(kernel, _SOLUTION_ATTRIBUTE, "unknown")
        return next((solution for (solution, _), known in self._kernels.items() if known is kernel), named)

    def _miss(self, reason: str, call: _SlowCall | None = None, *, compares_numbers: bool = False) -> Kernel | None:
        """Count a miss; with a call, cache the fallback for equal calls."""
        count = self._metrics.miss(reason).increment
        if self._is_counted:
            count()
        if call is not None:
            options = GuardOptions(has_grad=torch.is_grad_enabled(), compares_numbers=compares_numbers)
            guard = call.variant.guard(call.args, options)
            if guard is not None:
                call.cache((guard, None, count))
        return None

    def quarantine(self, solution: str, reason: str) -> None:
        """Stop calling a solution; the next candidate replaces it."""
        if self._pool.quarantine(solution, reason):
            self.invalidate()

    def invalidate(self) -> None:
        """Drop all cached entries."""
        for variant in (*itertools.chain(*self._variants.copy().values()), *self._plan_variants.copy().values()):
            variant.invalidate()


@functools.lru_cache(maxsize=256)
def _padded(key: ApplyKey, axis: str | None) -> ApplyKey:
    return key if axis is None else key.with_padding(axis)


@functools.lru_cache(maxsize=256)
def _guard_options(outputs: int, is_aligned: bool, may_capture: bool, compares_numbers: bool) -> GuardOptions:
    """The options of a kernel's guard; looking them up takes a tenth of the time of making them."""
    return GuardOptions(outputs, is_aligned, may_capture, compares_numbers=compares_numbers)


def _specialization(value: Any) -> Any:
    """The properties of a scalar that Triton compiles for: whether an integer is 1, a multiple of 16, and small."""
    if isinstance(value, bool):
        return value
    return (value == 1, value % 16 == 0, -(1 << 31) <= value < 1 << 31) if isinstance(value, int) else None


def device_of(args: Sequence[Any]) -> str:
    """The device of the first tensor."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            return _device_name(arg.device)
    raise ValueError("no argument is a tensor")


@functools.lru_cache(maxsize=256)
def _device_name(device: torch.device) -> str:
    return str(device)


def not_chosen(ranking: Ranking | None) -> str:
    """The reason for a miss without a candidate: there is no ranking, or it is empty."""
    return "not recorded" if ranking is None else "nothing chosen"
