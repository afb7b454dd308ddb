"""Resolver: the slow path of one definition. Validates a call, selects its kernel and caches the result."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs
import torch
from fib_compile import Runnable
from fib_compile.forking import ForkSafeLock, renew_on_fork
from fib_schema import SupportedLanguages

from ..build_service.probe_process import Verdict
from ..key import ApplyKey, ApplyKeyBuilder, makes_keys_of_axes
from ..log import logger
from ..metrics import CallMetrics, Counter
from ..miss_reasons import BEING_BUILT, FALLBACK_IS_BEST, NOT_AGREED, not_chosen
from ..signal_errors import is_from_signal_handler
from .call_variant import CacheEntry, CallVariant, Kernel
from .candidates import CandidatePool, LoadedCandidate
from .guards import CallKinds, Guard, GuardOptions, are_aligned, specialization
from .validation import Rejection, call_strides, has_nested

_Run: TypeAlias = tuple[str, ApplyKey, str, tuple[Any, ...]]
"""A solution, a key, a device, and what kernels specialize on in scalars."""

_JIT_BUILD_TYPES = frozenset(language for language in SupportedLanguages if language.is_embedded)
_SOLUTION_ATTRIBUTE = "fib_solution"
_MAX_RUNS = 8_192
_BEING_COMPILED, _NOT_COMPILED, _NOT_CALLED = "being compiled", "not compiled", "not called yet"
_UNCOUNTED = Counter()
_OF_FALLBACK = {has_grad: GuardOptions(has_grad=has_grad) for has_grad in (False, True)}
"""Guards of calls that the fallback serves."""


@attrs.define
class _Call:
    """A call on the slow path."""

    variant: CallVariant
    args: Sequence[Any]
    generation: int
    """Of the variant; read before everything else, so that an invalidation meanwhile prevents caching."""
    shapes: Any
    """None if the call cannot be cached."""
    kinds: CallKinds | None = None
    """None if it is not a known call."""

    def guard(self, options: GuardOptions) -> Guard | None:
        return self.variant.guard(self.args, options, self.kinds)

    def cache(self, entry: CacheEntry) -> None:
        self.variant.install(self.shapes, entry, self.generation)


class _RecentRuns(dict[_Run, float]):
    """A bounded set of runs, each with the time when it became ready; the oldest are forgotten, and made again."""

    def add(self, run: _Run, ready_at: float) -> None:
        if len(self) >= _MAX_RUNS:
            for old in list(itertools.islice(self, _MAX_RUNS // 2)):
                self.pop(old, None)
        self[run] = ready_at


class Resolver:
    """Resolves the calls of one definition to kernels.

    Args:
        pool: The candidates.
        key_builder: Makes the keys of calls.
        metrics: Counts hits and misses.
        is_counted: Whether calls are counted.
    """

    def __init__(
        self, pool: CandidatePool, key_builder: ApplyKeyBuilder, metrics: CallMetrics, *, is_counted: bool
    ) -> None:
        self._pool = pool
        self._key_builder = key_builder
        self._makes_keys_of_axes = makes_keys_of_axes(key_builder)
        self._metrics = metrics
        self._is_counted = is_counted
        self._arity = len(pool.definition.inputs)
        self._lock = ForkSafeLock()
        self._logged: set[str] = set()
        self._warm = _RecentRuns()
        self._compiled = _RecentRuns()
        self._not_compiled = _RecentRuns()
        self._requested: set[_Run] = set()
        self._kernels: dict[tuple[str, bool], Kernel] = {}
        self._variants: dict[tuple[frozenset[str], str | None], tuple[CallVariant, CallVariant]] = {}
        renew_on_fork(self)

    def renew_after_fork(self) -> None:
        """Forget requested runs: no thread makes them in the child."""
        self._requested.clear()

    def variants(
        self, fallback_equivalents: frozenset[str] = frozenset(), padded_axis: str | None = None
    ) -> tuple[CallVariant, CallVariant]:
        """The value-returning and the destination-passing variant of calls whose fallback equals certain solutions.

        Args:
            fallback_equivalents: These solutions.
            padded_axis: The axis of padded indices; None if the inputs end at their totals.
        """
        kind = fallback_equivalents, padded_axis
        with self._lock:
            if kind not in self._variants:
                value_returning, destination_passing = (
                    CallVariant(
                        self._pool.definition,
                        is_destination_passing=is_destination_passing,
                        is_cached=self._key_builder.is_by_shape,
                        is_counted=self._is_counted,
                        fallback_equivalents=fallback_equivalents,
                        padded_axis=padded_axis,
                    )
                    for is_destination_passing in (False, True)
                )
                self._variants[kind] = value_returning, destination_passing
            return self._variants[kind]

    def resolve(self, variant: CallVariant, args: Sequence[Any]) -> Kernel | None:
        """The kernel for a call, from the cache if it has an entry; None is the fallback."""
        if variant.table is None and has_nested(args):  # a native table lets no nested tensor through
            return self._miss("tensor")
        call = _Call(variant, args, variant.generation, variant.shapes(args))
        if call.shapes is not None and (entry := variant.find(call.shapes, args)) is not None:
            _, kernel, count = entry
            if self._is_counted:
                count()
            return kernel
        if self._makes_keys_of_axes and (known := variant.known_call(args)) is not None:
            axes, call.kinds = known
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
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            problem = f"the key builder raised {type(error).__name__}: {error}"
            if problem not in self._logged:
                self._logged.add(problem)
                logger.warning("%s: %s", self._pool.definition.name, problem)
            return Rejection("key", problem)
        return key

    def _select(self, call: _Call, key: ApplyKey) -> Kernel | None:
        device = device_of(call.args)
        ranking = self._pool.ranking(key, device)
        if ranking is None or not ranking.candidates:
            return self._miss(not_chosen(ranking), call)
        loaded = self._pool.first_loaded(ranking, fallback_equivalents=call.variant.fallback_equivalents)
        if loaded is None and self._pool.miss_reason(ranking) == BEING_BUILT and self._has_waited(device):
            loaded = self._pool.first_loaded(ranking, fallback_equivalents=call.variant.fallback_equivalents)
        if loaded is None:
            reason = self._pool.miss_reason(ranking)
            return self._miss(reason, None if reason == BEING_BUILT else call)
        if loaded.solution in call.variant.fallback_equivalents:
            return self._miss(FALLBACK_IS_BEST, call)
        if needs_alignment(loaded.runnable) and not are_aligned(call.args):
            return self._miss("unaligned")
        specializations = tuple(map(specialization, call.args)) if compiles_when_called(loaded.runnable) else ()
        return self._warm_kernel(call, loaded, (loaded.solution, key, device, specializations))

    def _warm_kernel(self, call: _Call, loaded: LoadedCandidate, run: _Run) -> Kernel | None:
        """The kernel, if it may run now. Its first run is never captured. A child process first runs what compiles."""
        service = self._pool.build_service
        warm_at = self._warm.get(run)
        compiled_at = self._compiled.get(run) if self._compiled else None
        ready_at = warm_at or compiled_at or service.loaded_at(loaded.solution)
        is_warm = warm_at is not None
        may_capture = loaded.candidate.may_capture and ready_at <= service.capture_gate
        if is_capturing(run[2]) and not (may_capture and is_warm):
            return self._miss("capturing")
        is_jit = compiles_when_called(loaded.runnable)
        is_compiled = not is_jit or self._is_compiled(run, is_warm=is_warm)
        if not is_compiled:
            reason = None if self._was_run(run, call.args) else self._request_first_run(run, loaded.solution, call.args)
            if reason is not None and not (self._has_waited(run[2]) and run in self._compiled):
                return self._miss(reason)
            ready_at = self._compiled[run]
        kernel = self._kernel(loaded, is_destination_passing=call.variant.is_destination_passing)
        count = self._metrics.hit(run[1]).increment if self._is_counted else _UNCOUNTED.increment
        if self._is_counted:
            count()
        entry = None
        if call.shapes is not None:
            outputs = len(call.args) - self._arity
            options = _guard_options(outputs, needs_alignment(loaded.runnable), may_capture, is_jit)
            guard = call.guard(options)
            entry = None if guard is None else (guard, kernel, count)
        if is_warm:
            if entry is not None:
                call.cache(entry)
            return kernel

        def first_run(*values: Any) -> Any:
            result = kernel(*values)
            self._mark_warm(run, ready_at)
            if entry is not None:
                call.cache(entry)
            return result

        setattr(first_run, _SOLUTION_ATTRIBUTE, loaded.solution)
        return first_run

    def _was_run(self, run: _Run, args: Sequence[Any]) -> bool:
        """Whether an earlier process has made a run; asked where captures are prepared, as kernels may be deleted."""
        service, inputs = self._pool.build_service, args[: self._arity]
        is_known = self._pool.agreed is None and service.prepares_captures and service.was_run(run[0], inputs)
        if is_known:
            self._compiled.add(run, time.monotonic())
        return is_known

    def _has_waited(self, device: str) -> bool:
        """Wait for builds and first runs, if captures are prepared; whether all are finished."""
        return self._pool.agreed is None and not is_capturing(device) and self._pool.build_service.wait_for_captures()

    def _is_compiled(self, run: _Run, *, is_warm: bool) -> bool:
        """Whether the kernels of a run are compiled; of replicas, on all."""
        agreed = self._pool.agreed
        if agreed is None:
            return is_warm or run in self._compiled
        return self._run_name(run) in agreed.runs

    def _run_name(self, run: _Run) -> str:
        """The name of a run that is the same on all replicas: the device without its number."""
        solution, key, device, specializations = run
        kind = device.partition(":")[0]
        return "\0".join([solution, self._pool.definition.name, key.encode, kind, repr(specializations)])

    def compiled_runs(self) -> set[str]:
        """The names of the runs whose kernels are compiled."""
        return {self._run_name(run) for run in [*self._compiled, *self._warm]}

    def _mark_warm(self, run: _Run, ready_at: float) -> None:
        self._warm.add(run, ready_at)
        if self._compiled:
            self._compiled.pop(run, None)

    def _request_first_run(self, run: _Run, solution: str, args: Sequence[Any]) -> str:
        """Request the first run in a child process, once; returns the reason of the miss."""
        agreed = self._pool.agreed
        if agreed is not None and (run in self._compiled or self._run_name(run) in agreed.own_runs):
            return NOT_AGREED
        with self._lock:
            if run in self._not_compiled:
                return _NOT_COMPILED
            if run in self._requested:
                return _BEING_COMPILED
            self._requested.add(run)

        def on_done(verdict: Verdict | None) -> None:
            if verdict is not None and verdict.reason is None:
                self._compiled.add(run, time.monotonic())
            self._requested.discard(run)
            if verdict is None or verdict.reason is None:
                return
            if verdict.is_reproducible:
                self.quarantine(solution, f"its first run failed: {verdict.reason}")
            else:
                self._leave_uncompiled(run, verdict.reason)

        inputs = args[: self._arity]
        if self._pool.build_service.run_first(self._pool.definition, solution, inputs, on_done):
            return _BEING_COMPILED
        self._leave_uncompiled(run, "its integer inputs are too large to be copied")
        return _NOT_COMPILED

    def _leave_uncompiled(self, run: _Run, reason: str) -> None:
        """Leave calls like this to the fallback; the solution is not to blame."""
        self._not_compiled.add(run, time.monotonic())
        self._requested.discard(run)
        name, (solution, key, *_) = self._pool.definition.name, run
        logger.warning("%s: %s is not used for %s, because it could not be run first: %s", name, solution, key, reason)

    def _kernel(self, loaded: LoadedCandidate, *, is_destination_passing: bool) -> Kernel:
        """The function to call: the solution's own if it has the calling convention."""
        place = loaded.solution, is_destination_passing
        if place not in self._kernels:
            runnable = loaded.runnable
            adapted = runnable.call_destination_passing if is_destination_passing else runnable.call_value_returning
            is_native = runnable.metadata.destination_passing_style is is_destination_passing
            self._kernels[place] = runnable.function if is_native else adapted
        return self._kernels[place]

    def solution_of(self, kernel: Kernel) -> str:
        """The solution that a kernel is of."""
        named = getattr(kernel, _SOLUTION_ATTRIBUTE, "unknown")
        return next((solution for (solution, _), known in self._kernels.items() if known is kernel), named)

    def _miss(self, reason: str, call: _Call | None = None) -> Kernel | None:
        """Count a miss; with a call, cache the fallback for equal calls."""
        count = self._metrics.miss(reason).increment
        if self._is_counted:
            count()
        if call is not None and call.shapes is not None:
            guard = call.guard(_OF_FALLBACK[torch.is_grad_enabled()])
            if guard is not None:
                call.cache((guard, None, count))
        return None

    def quarantine(self, solution: str, reason: str) -> None:
        """Stop calling a solution; the next candidate replaces it."""
        if self._pool.quarantine(solution, reason):
            self.invalidate()

    def invalidate(self) -> None:
        """Drop all cached entries."""
        for variants in list(self._variants.values()):
            for variant in variants:
                variant.invalidate()

    def first_run_problem(self, solution: str, key: ApplyKey) -> str | None:
        """State of the kernels of a solution that are not compiled for a key; None if they are compiled."""
        states = (
            (None, (*self._warm.copy(), *self._compiled.copy())),
            (_BEING_COMPILED, self._requested.copy()),
            (_NOT_COMPILED, self._not_compiled.copy()),
        )
        for state, runs in states:
            if any(run[0] == solution and key in (run[1], self._pool.recorded_key(run[1], run[2])) for run in runs):
                return state
        return _NOT_CALLED


@functools.lru_cache(maxsize=256)
def _padded(key: ApplyKey, axis: str | None) -> ApplyKey:
    return key if axis is None else key.with_padding(axis)


def _guard_options(outputs: int, is_aligned: bool, may_capture: bool, is_specialized: bool) -> GuardOptions:
    """The options of a kernel's guard; looking them up takes a tenth of the time of making them."""
    return GuardOptions(outputs=outputs, is_aligned=is_aligned, may_capture=may_capture, is_specialized=is_specialized)


def device_of(args: Sequence[Any]) -> str:
    """The device of the first tensor."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            return _device_name(arg.device)
    raise ValueError("no argument is a tensor")


@functools.lru_cache(maxsize=256)
def _device_name(device: torch.device) -> str:
    return str(device)


def needs_alignment(runnable: Runnable) -> bool:
    """Whether a solution may only be called with aligned tensors.

    Kernels may have unchecked vectorised loads, or be compiled once more for other addresses.
    """
    return runnable.metadata.build_type != SupportedLanguages.PYTHON


def compiles_when_called(runnable: Runnable) -> bool:
    """Whether a solution compiles kernels for the arguments of its calls."""
    return runnable.metadata.build_type in _JIT_BUILD_TYPES


def is_capturing(device: str) -> bool:
    """Whether a CUDA graph is being captured in the current stream."""
    return device.startswith("cuda") and torch.cuda.is_current_stream_capturing()
