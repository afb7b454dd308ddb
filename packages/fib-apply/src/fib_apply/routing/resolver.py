"""Resolver: the slow path of one definition. Validates a call, selects its kernel and caches the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs
import torch
from fib_compile import Runnable
from fib_compile.forking import ForkSafeLock, renew_on_fork
from fib_schema import SupportedLanguages

from ..key import ApplyKey, ApplyKeyBuilder
from ..log import logger
from ..metrics import CallMetrics, Counter
from .call_variant import CacheEntry, CallVariant, Kernel
from .candidates import BEING_BUILT, CandidatePool, LoadedCandidate
from .guards import are_aligned, compile_guard
from .validation import Rejection
from .warm_up import warm_up_job

_Run: TypeAlias = tuple[str, ApplyKey, str]
"""A solution, a key and a device."""

_JIT_BUILD_TYPES = frozenset(language for language in SupportedLanguages if language.is_embedded)
_ALIGNED_BUILD_TYPES = frozenset({"tvm_ffi", "torch", "tilelang", "cute_dsl"})
"""Solutions with possibly unchecked vectorised loads. Triton, Helion and cuTile specialize on the alignment."""
_SOLUTION_ATTRIBUTE = "fib_solution"
_MAX_WARM_RUNS = 65_536
_UNCOUNTED = Counter()


@attrs.define
class _Call:
    """A call on the slow path."""

    variant: CallVariant
    args: Sequence[Any]
    generation: int
    """Of the variant; read before everything else, so that an invalidation meanwhile prevents caching."""
    shapes: Any
    """None if the call cannot be cached."""

    def cache(self, entry: CacheEntry) -> None:
        self.variant.install(self.shapes, entry, self.generation)


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
        self._metrics = metrics
        self._is_counted = is_counted
        self._arity = len(pool.definition.inputs)
        self._lock = ForkSafeLock()
        self._logged: set[str] = set()
        self._warm: set[_Run] = set()
        self._warming_up: set[_Run] = set()
        self._kernels: dict[tuple[str, bool], Kernel] = {}
        self._variants: dict[frozenset[str], tuple[CallVariant, CallVariant]] = {}
        renew_on_fork(self)

    def renew_after_fork(self) -> None:
        """Forget warm-ups: no thread finishes them in the child."""
        self._warming_up.clear()

    def variants(self, fallback_equivalents: frozenset[str] = frozenset()) -> tuple[CallVariant, CallVariant]:
        """The value-returning and the destination-passing variant of calls whose fallback equals certain solutions."""
        with self._lock:
            if fallback_equivalents not in self._variants:
                value_returning, destination_passing = (
                    CallVariant(
                        self._pool.definition,
                        is_destination_passing=is_destination_passing,
                        is_cached=self._key_builder.is_by_shape,
                        fallback_equivalents=fallback_equivalents,
                    )
                    for is_destination_passing in (False, True)
                )
                self._variants[fallback_equivalents] = value_returning, destination_passing
            return self._variants[fallback_equivalents]

    def resolve(self, variant: CallVariant, args: Sequence[Any]) -> Kernel | None:
        """The kernel for a call, from the cache if it has an entry; None is the fallback."""
        call = _Call(variant, args, variant.generation, variant.shapes(args))
        if call.shapes is not None and (entry := variant.find(call.shapes, args)) is not None:
            _, kernel, count = entry
            if self._is_counted:
                count()
            return kernel
        rejection = variant.validator.rejection(args)
        key = self.key(args) if rejection is None else rejection
        if not isinstance(key, Rejection):
            return self._select(call, key)
        is_cached = key.is_cacheable and len(args) == variant.validator.arity
        return self._miss(key.reason, call if is_cached else None)

    def key(self, args: Sequence[Any]) -> ApplyKey | Rejection:
        """The key of a valid call."""
        try:
            key = self._key_builder.build_from_args(args[: self._arity])
            hash(key)
        except Exception as error:  # noqa: BLE001 a registered key builder may raise anything: the engine must go on
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
            return self._miss("not recorded" if ranking is None else "nothing chosen", call)
        loaded = self._pool.first_loaded(ranking)
        if loaded is None:
            reason = self._pool.miss_reason(ranking)
            return self._miss(reason, None if reason == BEING_BUILT else call)
        if loaded.solution in call.variant.fallback_equivalents:
            return self._miss("the fallback is the best", call)
        if needs_alignment(loaded.runnable) and not are_aligned(call.args):
            return self._miss("unaligned")
        return self._warm_kernel(call, loaded, (loaded.solution, key, device))

    def _warm_kernel(self, call: _Call, loaded: LoadedCandidate, run: _Run) -> Kernel | None:
        """The kernel, if it may run now; its first run is never captured, and in the background if it compiles."""
        is_warm, may_capture = run in self._warm, loaded.candidate.may_capture
        if is_capturing(run[2]) and not (may_capture and is_warm):
            return self._miss("capturing")
        if not is_warm and loaded.runnable.metadata.build_type in _JIT_BUILD_TYPES:
            self._warm_up(run, loaded, call.args)
            return self._miss("being compiled")
        kernel = self._kernel(loaded, is_destination_passing=call.variant.is_destination_passing)
        count = self._metrics.hit(str(run[1])).increment if self._is_counted else _UNCOUNTED.increment
        if self._is_counted:
            count()
        entry = None
        if call.shapes is not None:
            guard = compile_guard(
                call.args,
                outputs=len(call.args) - self._arity,
                is_aligned=needs_alignment(loaded.runnable),
                may_capture=may_capture,
            )
            entry = guard, kernel, count
        if is_warm:
            if entry is not None:
                call.cache(entry)
            return kernel

        def first_run(*values: Any) -> Any:
            result = kernel(*values)
            self._mark_warm(run)
            if entry is not None:
                call.cache(entry)
            return result

        setattr(first_run, _SOLUTION_ATTRIBUTE, loaded.solution)
        return first_run

    def _mark_warm(self, run: _Run) -> None:
        if len(self._warm) >= _MAX_WARM_RUNS:
            self._warm.clear()  # they become warm again with their next run
        self._warm.add(run)

    def _warm_up(self, run: _Run, loaded: LoadedCandidate, args: Sequence[Any]) -> None:
        """Make the first run in the background, once."""
        with self._lock:
            if run in self._warming_up:
                return
            self._warming_up.add(run)
        warm_up = warm_up_job(self._pool.definition, loaded.runnable, args)

        def job() -> None:
            try:
                warm_up()
            except Exception as error:  # noqa: BLE001 a solution may raise anything
                self.quarantine(loaded.solution, f"its first run failed: {type(error).__name__}: {error}")
            else:
                self._mark_warm(run)
            finally:
                self._warming_up.discard(run)

        self._pool.build_service.submit(job, f"first run of {loaded.solution}")

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
            call.cache((compile_guard(call.args, has_grad=torch.is_grad_enabled()), None, count))
        return None

    def count_invalid_arguments(self) -> None:
        """Count a call whose arguments do not match the definition."""
        self._miss("arguments")

    def quarantine(self, solution: str, reason: str) -> None:
        """Stop calling a solution; the next candidate replaces it."""
        if self._pool.quarantine(solution, reason):
            for variants in list(self._variants.values()):
                for variant in variants:
                    variant.invalidate()


def device_of(args: Sequence[Any]) -> str:
    """The device of the first tensor."""
    return next(str(arg.device) for arg in args if isinstance(arg, torch.Tensor))


def needs_alignment(runnable: Runnable) -> bool:
    """Whether a solution may only be called with aligned tensors."""
    return runnable.metadata.build_type in _ALIGNED_BUILD_TYPES


def is_capturing(device: str) -> bool:
    """Whether a CUDA graph is being captured in the current stream."""
    return device.startswith("cuda") and torch.cuda.is_current_stream_capturing()
