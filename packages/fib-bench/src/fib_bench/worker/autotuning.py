"""Compilation of autotuned Triton kernels without tuning them, and brief tuning; none on the CPU.

The first call of a solution compiles. Other judges time passes meanwhile, so kernels must not be tuned then: tuning
would disturb passes and be disturbed by them. Within `untuned_kernels` a kernel that is not tuned yet compiles all its
configurations, several at a time, and runs the first one that works. The choice is left for the next call, for
which the judge has the device alone; `tune_briefly` keeps it short.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch

_MODULE = "triton.runtime.autotuner"
_MAX_THREADS = 16
_WARM_UP_MS, _MEASURED_MS = 3, 12
"""Times of each configuration, for which Triton takes 25 and 100: some hundred launches of a kernel of microseconds."""
_SLOW_MS = 1.0
"""A kernel that takes longer is launched too few times in that time, and is measured as long as Triton does."""


@contextmanager
def untuned_kernels(device: torch.device) -> Iterator[list[object]]:
    """Compile all configurations of kernels that are not tuned yet, and list these, but tune none during a block."""
    found: list[object] = []
    module = sys.modules.get(_MODULE)
    if module is None:
        yield found
        return
    tuner = module.Autotuner
    run = tuner.run
    failures = (module.OutOfResources, getattr(module, "PTXASError", module.OutOfResources))

    def run_untuned(self: Any, *arguments: Any, **options: Any) -> Any:
        compilation = _Compilation(self, device)
        with compilation.in_place_of_tuning():
            while True:
                try:
                    return run(self, *arguments, **options)
                except failures:
                    if not compilation.drop_first():
                        raise
                finally:
                    if compilation.was_needed:
                        found.append(self)

    tuner.run = run_untuned
    try:
        yield found
    finally:
        tuner.run = run


def tune_briefly() -> None:
    """Shorten the measurement of each configuration in this process; kernels that say how to measure keep their way."""
    module = sys.modules.get(_MODULE)
    if module is not None and isinstance(vars(module.Autotuner).get("do_bench"), cached_property):
        module.Autotuner.do_bench = property(lambda tuner: tuner._do_bench or _measure_briefly)  # noqa: SLF001


def take_first_configuration() -> None:
    """Have autotuned kernels run their first configuration in this process, which has no device to measure on."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        prune = module.Autotuner.prune_configs
        module.Autotuner.prune_configs = lambda tuner, given: prune(tuner, given)[:1]
        module.Autotuner._bench = lambda *_, **__: [0.0] * 3  # noqa: SLF001 some versions measure a single one, too


def _measure_briefly(call: Callable[[], object], quantiles: Sequence[float]) -> Sequence[float]:
    """Quantiles of the milliseconds of a call, the median first as the autotuner asks for them."""
    from triton.testing import do_bench

    found: Sequence[float] = do_bench(call, warmup=_WARM_UP_MS, rep=_MEASURED_MS, quantiles=quantiles)
    return found if found[0] < _SLOW_MS else do_bench(call, quantiles=quantiles)


class _Compilation:
    """The compilation of one kernel's configurations, in place of benchmarks."""

    def __init__(self, tuner: Any, device: torch.device) -> None:
        self._tuner, self._device = tuner, device
        self._works: dict[Any, bool] = {}
        self._tuned = set(tuner.cache)

    @property
    def was_needed(self) -> bool:
        """Whether the kernel was not tuned yet."""
        return bool(self._works)

    def drop_first(self) -> bool:
        """Do without the configuration that was chosen; returns whether another one is left."""
        working = [config for config, works in self._works.items() if works]
        if working:
            self._works[working[0]] = False
        self._forget_choice()
        return len(working) > 1

    def _forget_choice(self) -> None:
        if self.was_needed:
            for key in set(self._tuner.cache) - self._tuned:
                del self._tuner.cache[key]

    @contextmanager
    def in_place_of_tuning(self) -> Iterator[None]:
        """Have the tuner compile instead of benchmark; it stores no choice on the disk, and forgets it at the end."""
        tuner = self._tuner
        is_stored, tuner.cache_results = getattr(tuner, "cache_results", False), False
        tuner._bench = self._bench  # noqa: SLF001 each benchmark of a configuration goes through it
        try:
            yield
        finally:
            tuner.cache_results = is_stored
            del tuner._bench  # noqa: SLF001
            self._forget_choice()

    def _bench(self, *arguments: Any, config: Any, **options: Any) -> list[float]:
        """Infinite durations of a configuration that does not compile, and 0 for the others."""
        if not self._works:
            self._works = self._compile_all(arguments, options)
        return [0.0 if self._works.get(config, False) else math.inf] * 3

    def _compile_all(self, arguments: Sequence[Any], options: Mapping[str, Any]) -> dict[Any, bool]:
        tuner = self._tuner
        configs = list(tuner.prune_configs(dict(options)))
        hooked = {config: self._compile(config, arguments, options) for config in configs if config.pre_hook}
        others = [config for config in configs if config not in hooked]
        threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)), len(configs))
        with ThreadPoolExecutor(threads, initializer=torch.cuda.set_device, initargs=(self._device,)) as pool:
            works = pool.map(lambda config: self._compile(config, arguments, options), others)
            found = {**hooked, **dict(zip(others, works, strict=True))}
        return {config: found[config] for config in configs}

    def _compile(self, config: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> bool:
        """Compile one configuration; returns whether it compiles. A hook can change what it is compiled for."""
        current = {**options, **config.all_kwargs()}
        try:
            if config.pre_hook:
                config.pre_hook({**self._tuner.nargs, **current})
            self._tuner.fn.run(*arguments, warmup=True, **current)
        except Exception:  # noqa: BLE001 the tuner meets the same error in its benchmark, and decides
            return False
        return True
