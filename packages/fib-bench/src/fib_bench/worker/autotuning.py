"""Compilation of autotuned Triton kernels by child processes, without tuning, and brief tuning; none on the CPU.

The first call of a solution compiles. Other judges time passes meanwhile, so kernels must not be tuned then: tuning
would disturb passes and be disturbed by them. In such a call a kernel that is not tuned yet has all its configurations
compiled, each by a process that is killed at its limit, and runs the first one that works. The choice is left for the
next call, for which the judge has the device alone, and which is kept short. Later calls compile nothing.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from fib_schema import get_fib_cache_path
from fib_schema.display import shortened
from fib_schema.files import atomic_write

from ..sandbox.syscalls import PR_SET_PDEATHSIG, prctl
from ..transport.messages import COMPILE_SECONDS_VARIABLE, Compiling
from ..transport.protocol import send
from .host_reads import replaced

_MODULE = "triton.runtime.autotuner"
_MAX_PROCESSES, _NICENESS = 16, 5  # eager calls of other judges are timed meanwhile
_REMEMBERED_SECONDS = 3600.0  # that a configuration was too slow: the machine may have been busy
_LEFT_OUT = ("OutOfResources", "CompileTimeAssertionFailure", "PTXASError")
"""Errors of a configuration that Triton's autotuner leaves out; it raises all others."""
_WARM_UP_MS, _MEASURED_MS = 3, 12  # of each configuration: some hundred launches of microseconds; Triton: 25 and 100
_SLOW_MS = 1.0  # a kernel that takes longer is measured as long as Triton does, else it is launched too few times


class NotCompiled(BaseException):
    """A kernel is not compiled, and nothing may be compiled now. Solutions do not handle it."""


class Compiler:
    """Compiles the Triton kernels of this process, and has them tuned briefly, unless they say how to measure.

    The cache keeps the results for configurations of autotuned kernels, so that none that failed is compiled again. In
    a first call the judge gets a message each second in which kernels compile, and the reasons for failures.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._folder = channel, get_fib_cache_path() / "configurations"
        self._seconds = float(os.environ.get(COMPILE_SECONDS_VARIABLE, "30"))
        self._missing: dict[Path, Callable[[], object]] = {}
        self._works: dict[Any, dict[Any, bool]] = {}  # configurations that are to be benchmarked, by kernel
        self._tuned: dict[Any, set[Any]] = {}  # keys for which a kernel was tuned before this call
        self._is_first = self._is_held = False
        if (module := sys.modules.get(_MODULE)) is not None:
            base = getattr(module, "PTXASError", module.OutOfResources)
            self._left_out = type("LeftOut", (base,), {"__init__": Exception.__init__, "__str__": Exception.__str__})
            module.JITFunction.compile = property(  # which a kernel sets when it is called first
                lambda kernel: partial(self._compile, vars(kernel)["compile"]),
                lambda kernel, compile_: vars(kernel).update(compile=compile_),
            )
            if isinstance(vars(module.Autotuner).get("do_bench"), cached_property):
                module.Autotuner.do_bench = property(lambda tuner: tuner._do_bench or _measure_briefly)  # noqa: SLF001

    def call(self, call: Callable[[], object], *, is_first: bool) -> int:
        """Make a call; returns how many kernels are to be tuned, or to be compiled, before it does its work."""
        self._missing, self._works, self._tuned = {}, {}, {}
        self._is_first, self._is_held = is_first, not is_first
        tuner = getattr(sys.modules.get(_MODULE), "Autotuner", None)
        own = {
            "_bench": lambda *given, **options: self._bench(*given, **options),  # noqa: PLW0108 a method of the tuner
            "check_disk_cache": lambda *given: given[-1](),
        }
        present = {(tuner, name): function for name, function in own.items() if is_first and hasattr(tuner, name)}
        try:
            with suppress(NotCompiled), replaced(present):
                call()
        finally:
            self._is_first = self._is_held = False
            for kernel, keys in self._tuned.items():
                for key in set(kernel.cache) - keys:
                    del kernel.cache[key]
        return len(self._tuned) or len(self._missing)

    def _compile(self, compile_: Any, src: Any, target: object, options: dict[str, Any], **more: object) -> object:
        """Compile in place of Triton's function, unless it has failed or nothing may be compiled."""
        version, chosen = sys.modules["triton"].__version__, sorted(options.items())
        key = hashlib.sha256(f"{version} {target} {src.hash()} {chosen} {self._seconds:g}".encode()).hexdigest()
        path, work = self._folder / key, partial(compile_, src, target=target, options=options, **more)
        problem, is_left_out, end = json.loads(path.read_bytes()) if path.exists() else (None, False, math.inf)
        if problem and time.time() < end:
            raise (self._left_out if is_left_out else RuntimeError)(problem)
        if problem == "":
            return work()  # from Triton's cache
        if self._is_held:
            self._missing[path] = work
            raise NotCompiled
        self._report()  # before and after: the limit of the call begins anew
        found = work()
        self._report()
        return found

    def _report(self, problems: Iterable[str] = ()) -> None:
        if self._is_first:
            send(self._channel, Compiling(tuple(problems)))

    def _bench(self, tuner: Any, *arguments: Any, config: Any, **options: Any) -> list[float]:
        """Infinite durations of a configuration that does not work, and 0 for the others."""
        if config not in self._works.get(tuner, ()):
            self._tuned.setdefault(tuner, set(tuner.cache))
            self._works[tuner] = self._compile_all(tuner, arguments, options)
        return [0.0 if self._works[tuner].pop(config, False) else math.inf] * 3

    def _compile_all(self, tuner: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> dict[Any, bool]:
        """Compile the configurations of a kernel; returns for each whether it works."""

        def attempt(config: Any) -> str | None:
            """The reason that it does not work; empty if it does, None if it is not compiled yet."""
            current = {**options, **config.all_kwargs(), "warmup": True}
            try:
                if config.pre_hook:  # it can change what is compiled
                    config.pre_hook({**tuner.nargs, **current})
                getattr(tuner.fn.run(*arguments, **current), "run", None)  # loads it; the device may be too small
            except NotCompiled:
                return None
            except Exception as error:  # noqa: BLE001 the tuner meets the same error in its benchmark, and decides
                return str(error) or type(error).__name__
            return ""

        self._is_held = True
        problems = {config: attempt(config) for config in tuner.prune_configs(dict(options))}
        self._is_held = False
        self._compile_missing()
        problems |= {config: attempt(config) for config, text in problems.items() if text is None}
        name = tuner.base_fn.__name__
        self._report(shortened(f"{name} ({config}): {text}") for config, text in problems.items() if text)
        return {config: not text for config, text in problems.items()}

    def _compile_missing(self) -> None:
        """Compile in processes, as many at a time as there are CPUs; what all of them are lost with, in this one."""
        waiting, running = list(self._missing.items()), dict[int, tuple[Any, Path, float]]()
        count, lost = len(waiting), dict[Path, tuple[str, float]]()
        self._missing.clear()
        self._folder.mkdir(parents=True, exist_ok=True)
        while waiting or running:
            while waiting and len(running) < min(_MAX_PROCESSES, len(os.sched_getaffinity(0))):
                path, work = waiting.pop(0)
                process = get_context("fork").Process(target=_compile_in_child, args=(path, work))
                with suppress(OSError):  # of a limit of processes: it is compiled here then
                    process.start()
                    running[process.sentinel] = process, path, time.monotonic() + self._seconds
            self._report()
            ended = wait(list(running), timeout=1)
            for sentinel, (process, path, end) in list(running.items()):
                if sentinel in ended or time.monotonic() > end:
                    del running[sentinel]
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)  # with what it has started
                    process.kill()  # on a busy machine it may not have its group yet
                    process.join()
                    if sentinel not in ended:
                        lost[path] = f"not compiled within {self._seconds:g} s", time.time() + _REMEMBERED_SECONDS
                    elif process.exitcode:
                        lost[path] = f"its compiler ended with status {process.exitcode}", math.inf
        for path, (problem, end) in lost.items() if len(lost) < count else ():
            _keep(path, problem, end=end)


def _compile_in_child(path: Path, work: Callable[[], object]) -> None:
    """Compile a kernel into Triton's cache, without the device."""
    os.setpgid(0, 0)
    os.nice(_NICENESS)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    gc.disable()  # objects of the device would call the driver when they are collected
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Triton prints the code that ptxas refuses
    try:
        work()
        _keep(path, "")
    except Exception as error:  # noqa: BLE001 process border
        _keep(path, f"{type(error).__name__}: {error}", any(kind.__name__ in _LEFT_OUT for kind in type(error).__mro__))


def _keep(path: Path, problem: str, is_left_out: bool = True, end: float = math.inf) -> None:
    atomic_write(path, json.dumps([problem, is_left_out, end]).encode())


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
