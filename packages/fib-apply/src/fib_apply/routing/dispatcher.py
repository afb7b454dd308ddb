"""Dispatcher: routes the calls of one definition in one runtime.

A call takes the short way if its shapes have an entry whose check admits it: that is generated code
(see `codegen`). All others come to `resolve`: it guards, chooses, waits for builds and first runs, and
leaves an entry for the next call of the kind. Entries are tuples that are replaced, never edited, so
that the short way needs no lock.
"""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import torch
from fib_compile import Runnable
from fib_compile.device import hardware_from_device
from fib_schema import AxisError, Definition, FibError, Solution

from ..building.workshop import Workshop
from ..choosing.rules import Candidate, Choices, Ranking
from ..config import ApplyConfig, OnError
from ..key import ApplyKey, ApplyKeyBuilder
from ..log import logger
from ..stats import DefinitionStats, Ledger
from .codegen import Style, compiled, key_expression, route_source
from .guards import Check, Guard, Refusal, check_of, is_aligned
from .matching import Form
from .policy import ranking_for
from .shadow import Differs, compare_outputs
from .warming import first_run

Kernel: TypeAlias = Callable[..., Any]
Entry: TypeAlias = "tuple[Check | None, Kernel | None, Callable[[], int]]"
"""A check (None admits all calls of the shapes), a kernel (None is the fallback), and a tally."""

_MOST_ENTRIES = 8192
_MOST_ALIKE = 4
"""Patterns of calls with the same shapes: parameters and tensors, with and without gradients."""
_COMPILED_AT_FIRST_CALL = frozenset({"triton", "tilelang"})
_WANTS_ALIGNMENT = frozenset({"cuda", "cpp", "tilelang"})


@attrs.define
class _Way:
    """One way of calling: outputs are returned, or passed."""

    name: str
    guard: Guard
    shapes_of: Callable[..., Any]
    memo: dict[Any, Entry] = attrs.field(factory=dict)
    alike: dict[Any, tuple[Entry, ...]] = attrs.field(factory=dict)
    """Further entries of the same shapes."""
    kernels: dict[str, Kernel] = attrs.field(factory=dict)
    """By solution."""

    @property
    def is_passing(self) -> bool:
        """Whether outputs are among the arguments."""
        return self.name == "passing"

    def forget(self) -> None:
        """Have all calls resolved anew."""
        self.memo.clear()
        self.alike.clear()


@attrs.frozen
class _Chosen:
    """A solution that is built."""

    solution: str
    runnable: Runnable
    candidate: Candidate


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
    ) -> None:
        self.definition = definition
        self.config = config
        self.choices = choices
        self.ledger = Ledger()
        self.quarantined: Mapping[str, str] = quarantined or {}
        """Solutions that are not called any more, and why."""
        self._builder = builder
        self._workshop = workshop
        self._solution_of = solution_of
        self._lock = threading.Lock()
        self._generation = 0
        self._requested: set[str] = set()
        self._ready: set[tuple[str, ApplyKey, str]] = set()
        self._warming: set[tuple[str, ApplyKey, str]] = set()
        self._style = Style(
            is_memoised=builder.is_by_shape,
            is_counted=is_counted,
            catches=config.on_error is OnError.FALLBACK or is_counted,
            shadow_ratio=config.shadow_ratio,
        )
        self._ways = {name: self._way(name) for name in ("returning", "passing")}
        self._usual = torch.Tensor if len(definition.outputs) == 1 else tuple
        self.sources: dict[str, str] = {}
        """The generated code of routes, by the name of the function."""

    def _way(self, name: str) -> _Way:
        definition = self.definition
        inputs, outputs = tuple(definition.inputs), tuple(definition.outputs) if name == "passing" else ()
        prefixed = [f"_{argument}" for argument in (*inputs, *outputs)]
        expression = key_expression(definition, prefixed[: len(inputs)], prefixed[len(inputs) :])
        shapes_of = eval(f"lambda {', '.join(prefixed)}: {expression}")  # noqa: S307 made of identifiers
        return _Way(name, Guard(definition, has_outputs=bool(outputs)), shapes_of)

    # -- the short way -------------------------------------------------------------------------------

    def route(self, name: str, form: Form, fallback: Callable[..., Any]) -> Callable[..., Any]:
        """A function that routes calls, with the parameters of `form`, all of them to be passed.

        Args:
            name: What it is called in tracebacks.
            form: How its parameters make up a call.
            fallback: What serves all other calls; it has the same parameters.
        """
        source = route_source(name, self.definition, form, self._style)
        self.sources[name] = source
        scope: dict[str, Any] = {
            "_fib_fallback": fallback,
            "_fib_usual": self._usual,
            "_fib_unpack": self._unpack,
            "_fib_failed": self._failed,
            "_fib_compare": self._compare,
            "_fib_random": random.random,
        }
        for way in self._ways.values():
            scope[f"_fib_memo_{way.name}"] = way.memo.get
            scope[f"_fib_resolve_{way.name}"] = self._returning if not way.is_passing else self._passing
        for parameter in form.parameters:
            scope[f"_fib_extra_{parameter.name}"] = parameter.default
        return compiled(source, name, scope)

    def _returning(self, args: Sequence[Any]) -> Kernel | None:
        return self._resolve(self._ways["returning"], args)

    def _passing(self, args: Sequence[Any]) -> Kernel | None:
        return self._resolve(self._ways["passing"], args)

    def serve(self, args: Sequence[Any], fallback: Callable[[], Any]) -> Any:
        """Serve one call whose function is not known beforehand.

        Args:
            args: The definition's inputs, in order, and its outputs behind them or none.
            fallback: What serves the call if no solution does.
        """
        kernel = self._kernel_for(args)
        if kernel is None:
            return fallback()
        if self._style.shadow_ratio and random.random() < self._style.shadow_ratio:
            return self._compare(kernel, args, fallback)
        try:
            return self._result(kernel, args)
        except Exception as error:
            if not self._style.catches:
                raise
            self._failed(error, kernel)
            return fallback()

    def _kernel_for(self, args: Sequence[Any]) -> Kernel | None:
        way = self._ways["passing" if len(args) > len(self.definition.inputs) else "returning"]
        entry = way.memo.get(self._shapes(way, args)) if self._style.is_memoised else None
        if entry is not None:
            check, kernel, count = entry
            if (check is None and kernel is None) or (check is not None and check(*args)):
                self._count(count)
                return kernel
        return self._resolve(way, args)

    def _result(self, kernel: Kernel, args: Sequence[Any]) -> Any:
        found = kernel(*args)
        if len(args) > len(self.definition.inputs):
            return None
        return found if type(found) is self._usual else self._unpack(found)

    def _unpack(self, result: Any) -> Any:
        """What a solution returned, in the form that callers get: a tensor, or a tuple of all outputs."""
        if isinstance(result, Mapping):
            result = tuple(result[name] for name in self.definition.outputs)
        elif isinstance(result, list):
            result = tuple(result)
        is_single = len(self.definition.outputs) == 1 and isinstance(result, tuple) and len(result) == 1
        return result[0] if is_single else result

    # -- the long way --------------------------------------------------------------------------------

    def _resolve(self, way: _Way, args: Sequence[Any]) -> Kernel | None:
        """The kernel for a call that has no entry; None is the fallback."""
        generation = self._generation
        shapes = self._shapes(way, args)
        for entry in way.alike.get(shapes, ()) if shapes is not None else ():
            check, kernel, count = entry
            if check is not None and check(*args):
                self._count(count)
                return kernel
        refusal = way.guard.refusal(args)
        if refusal is not None:
            self._refuse(way, shapes, args, refusal, generation)
            return None
        inputs = args[: len(self.definition.inputs)]
        try:
            key = self._builder.build_from_args(inputs)
        except AxisError as error:
            self._refuse(way, shapes, args, Refusal("size", str(error)), generation)
            return None
        return self._choose(way, shapes, args, key, generation)

    def _shapes(self, way: _Way, args: Sequence[Any]) -> Any:
        try:
            return way.shapes_of(*args)
        except (AttributeError, TypeError):
            return None

    def _choose(self, way: _Way, shapes: Any, args: Sequence[Any], key: ApplyKey, generation: int) -> Kernel | None:
        device = next(arg.device for arg in args if isinstance(arg, torch.Tensor))
        ranking = ranking_for(self.choices_on(str(device)), key, self.config)
        if ranking is None or not ranking.candidates:
            tally = self.ledger.miss("not recorded" if ranking is None else "nothing chosen").add
            self._install(way, shapes, (None, None, tally), generation)
            self._count(tally)
            return None
        chosen = self._built(ranking)
        if chosen is None:
            self._count(self.ledger.miss(self._why_not(ranking)).add)
            return None
        if _wants_alignment(chosen.runnable) and not is_aligned(args):
            self._count(self.ledger.miss("unaligned").add)
            return None
        return self._ready_kernel(way, shapes, args, key, str(device), chosen, generation)

    def choices_on(self, device: str) -> Choices | None:
        """What to choose on a device: what was measured on its hardware, or on other hardware that settings name."""
        for hardware in (hardware_from_device(_indexed(device)), *self.config.other_hardware):
            if hardware in self.choices:
                return self.choices[hardware]
        return None

    def _built(self, ranking: Ranking) -> _Chosen | None:
        """The first candidate that can serve a plain call, if it is built; asks for it to be, if not."""
        for candidate in ranking.candidates:
            name = candidate.solution
            if candidate.has_setup or name in self.quarantined or self._workshop.problem(name) is not None:
                continue
            runnable = self._workshop.find(name)
            if runnable is None:
                self._request(name)
                return None
            if runnable.setup is None:
                return _Chosen(name, runnable, candidate)
        return None

    def _request(self, name: str) -> None:
        """Have a solution built in the background, once."""
        with self._lock:
            if name in self._requested:
                return
            self._requested.add(name)
        try:
            self._workshop.request(self.definition, self._solution_of(name))
        except FibError as error:
            self.quarantine(name, str(error))

    def _why_not(self, ranking: Ranking) -> str:
        """Why no candidate serves plain calls now."""
        plain = [candidate.solution for candidate in ranking.candidates if not candidate.has_setup]
        left = [n for n in plain if n not in self.quarantined and self._workshop.problem(n) is None]
        built = [runnable for name in left if (runnable := self._workshop.find(name)) is not None]
        if len(built) < len(left):
            return "being built"
        return "by plan only" if built or not plain else "nothing built"

    def _ready_kernel(
        self,
        way: _Way,
        shapes: Any,
        args: Sequence[Any],
        key: ApplyKey,
        device: str,
        chosen: _Chosen,
        generation: int,
    ) -> Kernel | None:
        """The kernel, if it has run for the key; if not, it runs now or in the background, and never in a capture."""
        run = chosen.solution, key, device
        kernel = self._kernel(way, chosen)
        tally = self.ledger.hit(str(key)).add
        may_capture = chosen.candidate.may_capture
        check = check_of(
            args,
            outputs=len(args) - len(self.definition.inputs),
            is_aligned=_wants_alignment(chosen.runnable),
            may_capture=may_capture,
        )
        entry = (check, kernel, tally)
        if _is_capturing(device) and not (may_capture and run in self._ready):
            self._count(self.ledger.miss("capturing").add)
            return None
        if run in self._ready:
            self._install(way, shapes, entry, generation)
            self._count(tally)
            return kernel
        if chosen.runnable.metadata.build_type in _COMPILED_AT_FIRST_CALL:
            self._warm_up(run, chosen, args)
            self._count(self.ledger.miss("being compiled").add)
            return None

        def first(*values: Any) -> Any:
            result = kernel(*values)
            self._ready.add(run)
            self._install(way, shapes, entry, generation)
            return result

        self._count(tally)
        return _named(first, chosen.solution)

    def _warm_up(self, run: tuple[str, ApplyKey, str], chosen: _Chosen, args: Sequence[Any]) -> None:
        """Have the first run made in the background, on copies of what decides where it reads."""
        with self._lock:
            if run in self._warming:
                return
            self._warming.add(run)
        make = first_run(self.definition, chosen.runnable, args)

        def job() -> None:
            try:
                make()
            except Exception as error:  # noqa: BLE001 a solution may raise whatever it likes
                self.quarantine(chosen.solution, f"its first run failed: {type(error).__name__}: {error}")
            else:
                self._ready.add(run)
            finally:
                self._warming.discard(run)

        self._workshop.submit(job, f"first run of {chosen.solution}")

    def mark_ready(self, solution: str, key: ApplyKey, device: str) -> None:
        """Say that a solution has run for a key."""
        self._ready.add((solution, key, device))

    def _kernel(self, way: _Way, chosen: _Chosen) -> Kernel:
        """What to call: the solution's own function where it has the right style."""
        kernel = way.kernels.get(chosen.solution)
        if kernel is None:
            kernel = way.kernels[chosen.solution] = _in_style(chosen.runnable, is_passing=way.is_passing)
        return kernel

    def _refuse(self, way: _Way, shapes: Any, args: Sequence[Any], refusal: Refusal, generation: int) -> None:
        tally = self.ledger.miss(refusal.kind).add
        if refusal.is_lasting and len(args) == way.guard.arity:
            self._install(way, shapes, (check_of(args), None, tally), generation)
        self._count(tally)

    def _install(self, way: _Way, shapes: Any, entry: Entry, generation: int) -> None:
        """Leave an entry, unless what it rests on is no more."""
        if shapes is None or not self._style.is_memoised:
            return
        with self._lock:
            if generation != self._generation:
                return
            if len(way.memo) >= _MOST_ENTRIES:
                way.forget()
            if way.memo.setdefault(shapes, entry) is not entry:
                way.alike[shapes] = (*way.alike.get(shapes, ()), entry)[-_MOST_ALIKE:]

    def _count(self, tally: Callable[[], int]) -> None:
        if self._style.is_counted:
            tally()

    # -- when something goes wrong -------------------------------------------------------------------

    def quarantine(self, solution: str, reason: str) -> None:
        """Do not call a solution any more; the next best one takes its place."""
        with self._lock:
            if solution in self.quarantined:
                return
            self.quarantined = {**self.quarantined, solution: reason}
            self._generation += 1
            for way in self._ways.values():
                way.forget()
        logger.warning("%s: %r is not called any more: %s", self.definition.name, solution, reason)

    def _failed(self, error: Exception, kernel: Kernel) -> None:
        """A solution has raised: count it, and quarantine it or let the caller see."""
        solution = self._solution_name(kernel)
        self.ledger.error(solution).add()
        if self.config.on_error is OnError.RAISE:
            raise error
        self.quarantine(solution, f"it raised {type(error).__name__}: {error}")

    def _solution_name(self, kernel: Kernel) -> str:
        for way in self._ways.values():
            for name, known in way.kernels.items():
                if known is kernel:
                    return name
        return getattr(kernel, _NAME, "unknown")

    def _compare(self, kernel: Kernel, args: Sequence[Any], fallback: Callable[[], Any]) -> Any:
        """Make a call both ways, and quarantine the solution if the results differ; returns the fallback's."""
        device = next(arg.device for arg in args if isinstance(arg, torch.Tensor))
        if _is_capturing(str(device)):
            return self._result(kernel, args)
        solution = self._solution_name(kernel)
        inputs, outputs = args[: len(self.definition.inputs)], args[len(self.definition.inputs) :]
        copies = tuple(output.clone() for output in outputs)
        try:
            found = self._result(kernel, (*inputs, *copies))
        except Exception as error:  # noqa: BLE001 a solution may raise whatever it likes
            self.ledger.error(solution).add()
            self.quarantine(solution, f"it raised {type(error).__name__}: {error}")
            return fallback()
        expected = fallback()
        try:
            tolerance = self._tolerance(solution, str(device))
            compare_outputs(self.definition, copies or found, tuple(outputs) or expected, tolerance)
        except Differs as difference:
            self.quarantine(solution, f"its results differ from the fallback's: {difference}")
        return expected

    def _tolerance(self, solution: str, device: str) -> Candidate | None:
        choices = self.choices_on(device)
        for ranking in choices.by_key.values() if choices is not None else ():
            for candidate in ranking.candidates:
                if candidate.solution == solution:
                    return candidate
        return None

    # -- planned calls -------------------------------------------------------------------------------

    def plan(self, *inputs: Any, fallback: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Run the ``setup`` of the best solution on inputs; returns what to call with inputs like these.

        Only calls that agree in shapes, dtypes and devices reach the solution. The caller answers for
        integer tensors and scalars: they must be those that were planned for.

        Args:
            inputs: The definition's inputs, in order.
            fallback: What serves all other calls; it takes the inputs, and outputs behind them or none.
        """
        chosen = self._plannable(inputs)
        if chosen is None:
            return fallback if fallback is not None else self._nothing
        planned = chosen.runnable.plan(*inputs)
        is_like_planned = check_of(inputs, is_aligned=_wants_alignment(chosen.runnable))
        count = len(self.definition.inputs)

        def run(*args: Any) -> Any:
            has_outputs = len(args) > count
            guard = self._ways["passing" if has_outputs else "returning"].guard
            if not is_like_planned(*args[:count]) or (has_outputs and guard.refusal(args) is not None):
                return (fallback or self._nothing)(*args)
            if has_outputs:
                return planned.call_destination_passing(*args)
            return planned.call_value_returning(*args)

        return run

    def _nothing(self, *args: Any) -> Any:
        from ..errors import NoKernel

        del args
        raise NoKernel(self.definition.name, "nothing can be planned for it")

    def _plannable(self, inputs: Sequence[Any]) -> _Chosen | None:
        """The best candidate that is built, those with ``setup`` included."""
        if self._ways["returning"].guard.refusal(inputs) is not None:
            return None
        device = next(arg.device for arg in inputs if isinstance(arg, torch.Tensor))
        ranking = ranking_for(self.choices_on(str(device)), self._builder.build_from_args(inputs), self.config)
        for candidate in ranking.candidates if ranking is not None else ():
            name = candidate.solution
            if name in self.quarantined or self._workshop.problem(name) is not None:
                continue
            runnable = self._workshop.find(name)
            if runnable is not None:
                return _Chosen(name, runnable, candidate)
            self._request(name)
        return None

    # -- telling -------------------------------------------------------------------------------------

    def stats(self) -> DefinitionStats:
        """What was counted so far."""
        return self.ledger.read(is_caught=self.config.on_error is OnError.FALLBACK)


_NAME = "fib_solution"


def _named(function: Callable[..., Any], solution: str) -> Callable[..., Any]:
    setattr(function, _NAME, solution)
    return function


def _in_style(runnable: Runnable, *, is_passing: bool) -> Kernel:
    is_own_style = runnable.metadata.destination_passing_style is is_passing
    if is_own_style:
        return runnable.function
    return runnable.call_destination_passing if is_passing else runnable.call_value_returning


def _wants_alignment(runnable: Runnable) -> bool:
    """Whether it may have vectorised loads that nothing checks: Triton compiles for what it is given."""
    return runnable.metadata.build_type in ("tvm_ffi", "torch", "tilelang")


def _is_capturing(device: str) -> bool:
    if not device.startswith("cuda"):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bool(torch.cuda.is_current_stream_capturing())


def _indexed(device: str) -> str:
    return "cuda:0" if device == "cuda" else device
