"""Dispatcher: routes the calls of one definition in one runtime.

A call takes the short way if its shapes have an entry whose check admits it: that is generated code
(see `codegen`). All others come to `_resolve`: it guards, chooses, sees that first runs happen where they
may, and leaves an entry for the next call of the kind.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from fib_compile import Runnable
from fib_compile.forking import ForkSafeLock
from fib_compile.signatures import default_values
from fib_schema import Definition, Solution

from ..building.workshop import Workshop
from ..choosing.rules import Choices
from ..config import ApplyConfig, OnError
from ..errors import NoKernel
from ..key import ApplyKey, ApplyKeyBuilder
from ..log import logger
from ..stats import DefinitionStats, Ledger, Tally
from .codegen import Style, compiled, route_source
from .guards import Check, Refusal, check_of, is_aligned
from .matching import Form
from .shadow import Differs, compare_outputs
from .supply import BEING_BUILT, Supplied, Supply
from .warming import first_run
from .ways import Kernel, Way

Run: TypeAlias = tuple[str, ApplyKey, str]
"""A solution, a key and a device."""

_COMPILED_AT_FIRST_CALL = frozenset({"triton", "tilelang"})
_WANTS_ALIGNMENT = frozenset({"tvm_ffi", "torch", "tilelang"})
"""May have vectorised loads that nothing checks; Triton compiles for what it is given."""
_NAME = "fib_solution"
_ERRORS = (Exception, SystemExit)
"""What a solution may raise: ending the engine is no answer either."""
_MOST_READY = 65_536
_UNCOUNTED = Tally()


class Dispatcher:
    """Routes the calls of one definition.

    Args:
        definition: What is computed.
        choices: By hardware, what to choose.
        config: The settings of this definition.
        builder: Makes keys.
        workshop: Builds solutions.
        solution_of: Loads a solution by its name.
        is_counted: Whether calls are counted.
        quarantined: Solutions that are not to be called, and why.
        ledger: What was counted before.
    """

    def __init__(
        self,
        definition: Definition,
        choices: Mapping[str, Choices],
        config: ApplyConfig,
        *,
        builder: ApplyKeyBuilder,
        workshop: Workshop,
        solution_of: Callable[[str], Solution],
        is_counted: bool = False,
        quarantined: Mapping[str, str] | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.definition = definition
        self.config = config
        self.supply = Supply(definition, choices, config, workshop, solution_of, quarantined or {})
        self.sources: dict[str, str] = {}
        """The generated code of routes, by the name of the function."""
        self.ledger = Ledger() if ledger is None else ledger
        """What was counted so far."""
        self._builder = builder
        self._workshop = workshop
        self._lock = ForkSafeLock()
        self._logged: set[str] = set()
        self._ready: set[Run] = set()
        self._warming: set[Run] = set()
        self._kernels: dict[tuple[str, bool], Kernel] = {}
        self._style = Style(
            is_memoised=builder.is_by_shape,
            is_counted=is_counted,
            catches=config.on_error is OnError.FALLBACK or is_counted,
            shadow_ratio=config.shadow_ratio,
        )
        self._ways: dict[frozenset[str], tuple[Way, Way]] = {}
        self._returning, self._passing = self._ways_beside(frozenset())
        self._arity = len(definition.inputs)
        self._usual = torch.Tensor if len(definition.outputs) == 1 else tuple

    # -- the short way -------------------------------------------------------------------------------

    def route(
        self, name: str, form: Form, fallback: Callable[..., Any], *, own: frozenset[str] = frozenset()
    ) -> Callable[..., Any]:
        """A function that routes calls, with the parameters of `form`, all of them to be passed.

        Args:
            name: What it is called in tracebacks.
            form: How its parameters make up a call; the fallback gets those as well that are neither inputs nor
                outputs nor extras.
            fallback: What serves all other calls; it has the same parameters.
            own: Solutions that are the fallback in another form: where one of them is the best, the fallback serves.
        """
        source = self.sources[name] = route_source(name, self.definition, form, self._style)
        returning, passing = self._ways_beside(own)
        scope: dict[str, Any] = {
            "_fib_fallback": fallback,
            "_fib_usual": self._usual,
            "_fib_type": type,
            "_fib_no_shapes": (AttributeError, TypeError),
            "_fib_errors": _ERRORS,
            "_fib_count_extra": self.ledger.miss("arguments").add,
            "_fib_unpack": self._unpack,
            "_fib_failed": self._failed,
            "_fib_compare": self._compare,
            "_fib_random": random.random,
            "_fib_favourite_returning": returning.favourite,
            "_fib_favourite_passing": passing.favourite,
            "_fib_memo_returning": returning.entries.get,
            "_fib_memo_passing": passing.entries.get,
            "_fib_is_time_returning": returning.is_time,
            "_fib_is_time_passing": passing.is_time,
            "_fib_favour_returning": returning.favour,
            "_fib_favour_passing": passing.favour,
            "_fib_resolve_returning": lambda args: self._resolve(returning, args),
            "_fib_resolve_passing": lambda args: self._resolve(passing, args),
        }
        return compiled(source, name, {**scope, **default_values(form.parameters)})

    def _ways_beside(self, own: frozenset[str]) -> tuple[Way, Way]:
        """The ways of calls whose fallback is certain solutions itself."""
        with self._lock:
            if own not in self._ways:
                is_memoised = self._builder.is_by_shape
                self._ways[own] = (
                    Way(self.definition, is_passing=False, is_memoised=is_memoised, own=own),
                    Way(self.definition, is_passing=True, is_memoised=is_memoised, own=own),
                )
            return self._ways[own]

    def _all_ways(self) -> list[Way]:
        return [way for pair in list(self._ways.values()) for way in pair]

    def serve(self, args: Sequence[Any], fallback: Callable[[], Any]) -> Any:
        """Serve one call whose function is not known beforehand.

        Args:
            args: The definition's inputs, in order, and its outputs behind them or none.
            fallback: What serves the call if no solution does.
        """
        kernel = self._resolve(self._passing if len(args) > self._arity else self._returning, args)
        if kernel is None:
            return fallback()
        if self._style.shadow_ratio and random.random() < self._style.shadow_ratio:
            return self._compare(kernel, args, fallback)
        try:
            return self._result(kernel, args)
        except _ERRORS as error:
            if not self._style.catches:
                raise
            self._failed(error, kernel)
            return fallback()

    def _result(self, kernel: Kernel, args: Sequence[Any]) -> Any:
        found = kernel(*args)
        if len(args) > self._arity:
            return None
        return found if type(found) is self._usual else self._unpack(found)

    def _unpack(self, result: Any) -> Any:
        """What a solution returned, in the form that callers get: a tensor, or a tuple of all outputs."""
        if isinstance(result, Mapping):
            result = self._in_order(result)
        elif isinstance(result, list):
            result = tuple(result)
        is_single = len(self.definition.outputs) == 1 and isinstance(result, tuple) and len(result) == 1
        return result[0] if is_single else result

    def _in_order(self, result: Mapping[str, Any]) -> tuple[Any, ...]:
        missing = [name for name in self.definition.outputs if name not in result]
        if missing:
            raise TypeError(f"{self.definition.name}: the solution returned {list(result)}, without {missing[0]!r}")
        return tuple(result[name] for name in self.definition.outputs)

    # -- the long way --------------------------------------------------------------------------------

    def _resolve(self, way: Way, args: Sequence[Any]) -> Kernel | None:
        """The kernel for a call, from its entry if it has one; None is the fallback."""
        generation, shapes = way.generation, way.shapes(args)
        if shapes is not None and (entry := way.find(shapes, args)) is not None:
            _, kernel, tally = entry
            self._count(tally)
            return kernel
        refusal = way.guard.refusal(args)
        key = self._key(args) if refusal is None else refusal
        if isinstance(key, Refusal):
            is_lasting = key.is_lasting and len(args) == way.guard.arity
            return self._miss(key.kind, way, shapes if is_lasting else None, args, generation)
        return self._choose(way, shapes, args, key, generation)

    def _key(self, args: Sequence[Any]) -> ApplyKey | Refusal:
        try:
            key = self._builder.build_from_args(args[: self._arity])
            hash(key)
        except Exception as error:  # noqa: BLE001 a key builder may be somebody else's: the engine must go on
            self._log_once(f"no key could be made: {type(error).__name__}: {error}")
            return Refusal("key", str(error))
        return key

    def _choose(self, way: Way, shapes: Any, args: Sequence[Any], key: ApplyKey, generation: int) -> Kernel | None:
        device = _device_of(args)
        ranking = self.supply.ranking(key, device)
        if ranking is None or not ranking.candidates:
            reason = "not recorded" if ranking is None else "nothing chosen"
            return self._miss(reason, way, shapes, args, generation)
        supplied = self.supply.first(ranking)
        if supplied is None:
            reason = self.supply.why_none(ranking)
            return self._miss(reason, way, None if reason == BEING_BUILT else shapes, args, generation)
        if supplied.solution in way.own:
            return self._miss("the fallback is the best", way, shapes, args, generation)
        if _wants_alignment(supplied.runnable) and not is_aligned(args):
            return self._miss("unaligned")
        return self._ready_kernel(way, shapes, args, (supplied.solution, key, device), supplied, generation)

    def _ready_kernel(
        self, way: Way, shapes: Any, args: Sequence[Any], run: Run, supplied: Supplied, generation: int
    ) -> Kernel | None:
        """The kernel, if it has run for the key; if not, it runs now or in the background, and never in a capture."""
        may_capture = supplied.candidate.may_capture
        if _is_capturing(run[2]) and not (may_capture and run in self._ready):
            return self._miss("capturing")
        is_ready = run in self._ready
        if not is_ready and supplied.runnable.metadata.build_type in _COMPILED_AT_FIRST_CALL:
            self._warm_up(run, supplied, args)
            return self._miss("being compiled")
        kernel = self._kernel(way, supplied)
        tally = self.ledger.hit(str(run[1])).add if self._style.is_counted else _UNCOUNTED.add
        self._count(tally)
        entry = None if shapes is None else (self._check(supplied, args), kernel, tally)
        if is_ready:
            if entry is not None:
                way.install(shapes, entry, generation)
            return kernel

        def first(*values: Any) -> Any:
            result = kernel(*values)
            self._mark_ready(run)
            if entry is not None:
                way.install(shapes, entry, generation)
            return result

        setattr(first, _NAME, supplied.solution)
        return first

    def _check(self, supplied: Supplied, args: Sequence[Any]) -> Check:
        return check_of(
            args,
            outputs=len(args) - self._arity,
            is_aligned=_wants_alignment(supplied.runnable),
            may_capture=supplied.candidate.may_capture,
        )

    def _mark_ready(self, run: Run) -> None:
        if len(self._ready) >= _MOST_READY:
            self._ready.clear()  # they run once more in the long way
        self._ready.add(run)

    def _warm_up(self, run: Run, supplied: Supplied, args: Sequence[Any]) -> None:
        """Have the first run made in the background, on copies of what decides where it reads."""
        with self._lock:
            if run in self._warming:
                return
            self._warming.add(run)
        make = first_run(self.definition, supplied.runnable, args)

        def job() -> None:
            try:
                make()
            except Exception as error:  # noqa: BLE001 a solution may raise whatever it likes
                self.quarantine(supplied.solution, f"its first run failed: {type(error).__name__}: {error}")
            else:
                self._mark_ready(run)
            finally:
                self._warming.discard(run)

        self._workshop.submit(job, f"first run of {supplied.solution}")

    def _kernel(self, way: Way, supplied: Supplied) -> Kernel:
        """What to call: the solution's own function where it has the right style."""
        place = supplied.solution, way.is_passing
        if place not in self._kernels:
            self._kernels[place] = _in_style(supplied.runnable, is_passing=way.is_passing)
        return self._kernels[place]

    def _miss(
        self, reason: str, way: Way | None = None, shapes: Any = None, args: Sequence[Any] = (), generation: int = 0
    ) -> Kernel | None:
        """Count a miss; with shapes, leave an entry for calls of the kind."""
        tally = self.ledger.miss(reason).add
        self._count(tally)
        if way is not None and shapes is not None:
            has_grad = torch.is_grad_enabled()
            way.install(shapes, (check_of(args, has_grad=has_grad), None, tally), generation)
        return None

    def _log_once(self, problem: str) -> None:
        if problem not in self._logged:
            self._logged.add(problem)
            logger.warning("%s: %s", self.definition.name, problem)

    def _count(self, tally: Callable[[], int]) -> None:
        if self._style.is_counted:
            tally()

    # -- when something goes wrong -------------------------------------------------------------------

    def quarantine(self, solution: str, reason: str) -> None:
        """Do not call a solution any more; the next best one takes its place."""
        if self.supply.give_up(solution, reason):
            for way in self._all_ways():
                way.forget()

    def _failed(self, error: BaseException, kernel: Kernel) -> None:
        """A solution has raised: count it, and quarantine it or let the caller see."""
        solution = self._solution_of(kernel)
        self.ledger.error(solution).add()
        if self.config.on_error is OnError.RAISE:
            raise error
        self.quarantine(solution, f"it raised {type(error).__name__}: {error}")

    def _solution_of(self, kernel: Kernel) -> str:
        named = getattr(kernel, _NAME, "unknown")
        return next((solution for (solution, _), known in self._kernels.items() if known is kernel), named)

    def _compare(self, kernel: Kernel, args: Sequence[Any], fallback: Callable[[], Any]) -> Any:
        """Make a call both ways, and quarantine the solution if the results differ; returns the fallback's."""
        device = _device_of(args)
        if _is_capturing(device):
            return self._result(kernel, args)
        solution = self._solution_of(kernel)
        inputs, outputs = args[: self._arity], args[self._arity :]
        copies = tuple(output.clone() for output in outputs)
        try:
            found = self._result(kernel, (*inputs, *copies))
        except _ERRORS as error:
            self.ledger.error(solution).add()
            self.quarantine(solution, f"it raised {type(error).__name__}: {error}")
            return fallback()
        expected = fallback()
        key = self._key(args)
        try:
            recorded = None if isinstance(key, Refusal) else self.supply.recorded(solution, key, device)
            compare_outputs(self.definition, copies or found, tuple(outputs) or expected, recorded)
        except Differs as difference:
            self.quarantine(solution, f"its results differ from the fallback's: {difference}")
        return None if outputs else expected

    # -- planned calls -------------------------------------------------------------------------------

    def plan(self, *inputs: Any, fallback: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Run the ``setup`` of the best solution on inputs; returns what to call with inputs like these.

        Only calls that agree in shapes, dtypes and devices reach the solution. The caller answers for
        integer tensors and scalars: they must be those that were planned for.

        Args:
            inputs: The definition's inputs, in order.
            fallback: What serves all other calls; it takes the inputs, and outputs behind them or none.
        """
        supplied, key = self._plannable(inputs)
        otherwise = fallback or self._nothing
        return otherwise if supplied is None else self._planned(supplied, key, inputs, otherwise)

    def plan_setup(
        self, *inputs: Any, fallback: Callable[..., Any], own: frozenset[str] = frozenset()
    ) -> Callable[..., Any] | None:
        """What `plan` returns where the best solution has a ``setup``; None where calls can be routed instead.

        Args:
            inputs: The definition's inputs, in order.
            fallback: What serves all other calls; it takes the inputs, and outputs behind them or none.
            own: Solutions that are the fallback in another form: where one of them is the best, the fallback is it.
        """
        supplied, key = self._plannable(inputs)
        if supplied is None or supplied.runnable.setup is None:
            return None
        return fallback if supplied.solution in own else self._planned(supplied, key, inputs, fallback)

    def _planned(
        self, supplied: Supplied, key: ApplyKey | None, inputs: Sequence[Any], otherwise: Callable[..., Any]
    ) -> Callable[..., Any]:
        tally = self.ledger.hit(f"{key}, planned").add
        named = _named(supplied.solution)
        try:
            planned = supplied.runnable.plan(*inputs)
        except _ERRORS as error:
            if not self._style.catches:
                raise
            self._failed(error, named)
            return otherwise
        is_like_planned = check_of(inputs, is_aligned=_wants_alignment(supplied.runnable))
        count, guard, is_given_up = self._arity, self._passing.guard, self.supply.quarantined

        def run(*args: Any) -> Any:
            is_passing = len(args) > count
            if (
                not is_like_planned(*args[:count])
                or (is_passing and guard.refusal(args))
                or self.supply.quarantined is not is_given_up
            ):
                return otherwise(*args)
            self._count(tally)
            try:
                if is_passing:
                    return planned.call_destination_passing(*args)
                return self._unpack(planned.call_value_returning(*args))
            except _ERRORS as error:
                if not self._style.catches:
                    raise
                self._failed(error, named)
                return otherwise(*args)

        return run

    def _plannable(self, inputs: Sequence[Any]) -> tuple[Supplied | None, ApplyKey | None]:
        """The best solution for inputs, those with ``setup`` included."""
        if self._returning.guard.refusal(inputs) is not None or isinstance(key := self._key(inputs), Refusal):
            return None, None
        ranking = self.supply.ranking(key, _device_of(inputs))
        return (None if ranking is None else self.supply.first(ranking, is_planned=True)), key

    def _nothing(self, *args: Any) -> Any:
        del args
        raise NoKernel(self.definition.name, "nothing can be planned for it")

    # -- telling -------------------------------------------------------------------------------------

    def stats(self) -> DefinitionStats:
        """What was counted so far."""
        is_caught = self.config.on_error is OnError.FALLBACK or self.config.shadow_ratio > 0
        return self.ledger.read(is_caught=is_caught)

    def count_arguments(self) -> None:
        """Count a call whose arguments are not the definition's."""
        self._miss("arguments")

    def renew_after_fork(self) -> None:
        """Forget what threads of the parent process were about to do."""
        self._warming.clear()
        self.supply.renew_after_fork()


def _named(solution: str) -> Callable[..., Any]:
    """Stands for a kernel of a solution."""

    def kernel(*args: Any) -> Any:
        raise AssertionError(args)

    setattr(kernel, _NAME, solution)
    return kernel


def _device_of(args: Sequence[Any]) -> str:
    return next(str(arg.device) for arg in args if isinstance(arg, torch.Tensor))


def _in_style(runnable: Runnable, *, is_passing: bool) -> Kernel:
    if runnable.metadata.destination_passing_style is is_passing:
        return runnable.function
    return runnable.call_destination_passing if is_passing else runnable.call_value_returning


def _wants_alignment(runnable: Runnable) -> bool:
    return runnable.metadata.build_type in _WANTS_ALIGNMENT


def _is_capturing(device: str) -> bool:
    return device.startswith("cuda") and torch.cuda.is_current_stream_capturing()
