"""Inlining. Chooses, while Dynamo traces, the code that a compiled graph holds in place of an opaque operator.

With `ApplyConfig.inline_compiled`, a compile shim asks an `InliningPolicy` for each call whose sizes are constants of
the graph. If a Triton solution serves such calls, ran before and can be traced (`kernel_tracing`), the call becomes an
operator that AOTAutograd decomposes into the solution's launches, as it does with those of `torch.library.triton_op`.
If no solution is selected, or none is worth an opaque operator (`decide_opaque`), Dynamo traces the user's function.
No Python of ours runs in either case when the compiled graph runs. All other calls stay opaque operators, and
`explain` states why. Where ``fib-apply warm`` has measured a solution in a compiled graph (`CompiledTimes`), that
decides between the solution and the function.

The trace decides all that the guards of a route check, and the guards of Dynamo check it from then on. A graph with an
inlined call is traced again if another runtime or table becomes active, if listeners are added, or if the solution is
quarantined.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import attrs
import torch
from fib_compile.device import hardware_from_device, torch_dtype
from fib_schema import FibError, SupportedLanguages, TensorSpec

from ..compiled_times import CompiledTimes, CompiledTimesCache
from ..config import OnMiss
from ..key import ApplyKey, ApplyKeyBuilder
from ..log import logger
from ..metrics import CallMetrics
from ..miss_reasons import not_chosen
from ..opaque_cost import load_opaque_cost
from ..selection.rankings import Candidate, Ranking
from .candidates import CandidatePool, LoadedCandidate
from .kernel_tracing import Input, KernelGraph, NotInlined, TensorMeta, trace_kernels
from .opaque_decision import decide_opaque, not_graph_safe
from .resolver import Resolver
from .validation import Rejection

if TYPE_CHECKING:
    from .custom_operator import CustomOperator

_TracedCall: TypeAlias = tuple[str, tuple[Input, ...]]
"""A solution, and the inputs of a call."""

FUNCTION = "function"
"""The choice of the user's function."""
_MAX_SECONDS = 30.0
"""For one choice; the first trace imports parts of torch's compiler, in two seconds of processor time."""


class LeftToCompiler(NotInlined):
    """A call for which the graph holds the user's function; the message is the reason."""

    miss = "left to the compiler"
    """The reason in the counts."""


class _NothingSelected(LeftToCompiler):
    def __init__(self, ranking: Ranking | None) -> None:
        super().__init__("no solution is selected" if ranking is None else ranking.reason)
        self.miss = not_chosen(ranking)


@attrs.frozen
class InlinedCall:
    """A kind of call that was inlined into a graph, and the solution whose kernels the graph launches."""

    inputs: tuple[Input, ...]
    solution: str


class ValidOperators:
    """The names of inlined operators as attributes: whether their solutions still serve such calls."""


class InliningPolicy:
    """Chooses the inlined calls of one definition in one runtime.

    Args:
        pool: The candidates.
        key_builder: Makes the keys of calls.
        resolver: Knows which solutions ran before.
        metrics: Counts an inlined call once, when it is traced; None counts nothing.
    """

    def __init__(
        self, pool: CandidatePool, key_builder: ApplyKeyBuilder, resolver: Resolver, metrics: CallMetrics | None
    ) -> None:
        self.valid = ValidOperators()
        self.shims: dict[tuple[int, str], Any] = {}
        """The compile shims that ask this policy; `make_compile_shim` keeps them here."""
        self._pool = pool
        self._is_by_shape = key_builder.is_by_shape
        self._resolver = resolver
        self._metrics = metrics
        self._graphs: dict[_TracedCall, KernelGraph | str] = {}
        self._inlined: dict[str, InlinedCall] = {}
        self._notes: dict[str, str] = {}
        self._times_cache = CompiledTimesCache.in_folder()
        resolver.observers.append(self.revalidate)

    def choose(self, operator: CustomOperator, described: Sequence[Any]) -> str | None:
        """The name of the operator that is inlined for calls like one, `FUNCTION`, or None for the opaque operator.

        The choice is made in a thread of its own, because it runs key builders and functions of solutions, and Dynamo
        holds its lock: one of these that waits for a thread that compiles must not end in a deadlock.

        Args:
            operator: The opaque operator.
            described: For each of its arguments the scalar, or the sizes, strides and device of the tensor.
        """
        found: list[str | None] = []
        thread = threading.Thread(
            target=lambda: found.append(self._choose(operator, described)), name="fib-apply inlining", daemon=True
        )
        thread.start()
        thread.join(_MAX_SECONDS)
        if not found:
            self.note("a call of constant sizes", f"choosing failed, or took more than {_MAX_SECONDS:.0f} s")
        return found[0] if found else None

    def _choose(self, operator: CustomOperator, described: Sequence[Any]) -> str | None:
        label = "a call of constant sizes"
        try:
            inputs = self._inputs(operator, described)
            key = self._key(inputs)
            label = f"{key}"
            candidate, graph, times = self._traced(key, inputs)
        except LeftToCompiler as error:
            self._notes[label] = f"the function is compiled: {error}"
            if self._metrics is not None:
                self._metrics.miss(error.miss).increment()
            return FUNCTION
        except NotInlined as error:
            self.note(label, str(error))
            return None
        except Exception as error:  # noqa: BLE001 an engine goes on with the opaque operator
            logger.exception("%s: a traced call stays an opaque operator", self._pool.definition.name)
            self.note(label, f"{type(error).__name__}: {error}")
            return None
        name = operator.register_inlined(graph.digest, graph)
        self._inlined[name] = InlinedCall(inputs, candidate.solution)
        setattr(self.valid, name, True)
        measured = "" if times is None else f": {times}"
        self._notes[label] = f"the kernels of {candidate.solution} are inlined{measured}"
        if self._metrics is not None:
            self._metrics.hit(key).increment()
        return name

    def choose_for_all_sizes(self, device: torch.device) -> str | None:
        """The choice for calls of which a size, stride or scalar is not a constant of the graph: `FUNCTION` or None."""
        is_any_served = self._pool.config.on_miss_policy is OnMiss.USE_DEF_BEST
        rankings = [
            ranking
            for found in self._pool.rankings.values()
            for ranking in (*found.by_key.values(), found.best if is_any_served else None)
        ]
        served = [ranking.plain for ranking in rankings if ranking is not None and ranking.plain is not None]
        cost = load_opaque_cost(hardware_from_device(f"{device}"))
        decisions = [decide_opaque(candidate, f"{device}", self._pool.config, cost) for candidate in served]
        is_any_worth_it = any(decision.is_worth_it for decision in decisions)
        if is_any_worth_it or (served and self._has_to_stay_opaque() is not None):
            self.note("calls of other sizes", "a size, stride or scalar is not a constant of the graph")
            return None
        reason = decisions[0].reason if decisions else "no solution is selected for any size"
        self._notes["calls of other sizes"] = f"the function is compiled: {reason}"
        return FUNCTION

    @property
    def is_any_inlined(self) -> bool:
        """Whether a graph holds kernels of a solution."""
        return bool(self._inlined)

    def note(self, label: str, reason: str) -> None:
        """Note for `explain` why calls stay opaque operators."""
        self._notes[label] = f"an opaque operator: {reason}"

    def revalidate(self) -> None:
        """Let graphs be traced again whose inlined solution no longer serves its calls."""
        for name, call in self._inlined.copy().items():
            try:
                serving = self._candidate(self._key(call.inputs), call.inputs)
                is_valid = self._has_to_stay_opaque() is None and serving.solution == call.solution
            except NotInlined:
                is_valid = False
            setattr(self.valid, name, is_valid)

    def lines(self) -> list[str]:
        """The code that graphs hold for the traced calls, for explanations."""
        return [f"{label}: {note}" for label, note in sorted(self._notes.items())] or ["no call was traced"]

    def _inputs(self, operator: CustomOperator, described: Sequence[Any]) -> tuple[Input, ...]:
        """The definition's inputs; those that the function has no parameter for are None."""
        by_name = dict(zip(operator.argument_names, described, strict=True))
        return tuple(_to_input(by_name.get(name), spec) for name, spec in self._pool.definition.inputs.items())

    def _key(self, inputs: Sequence[Input]) -> ApplyKey:
        if not self._is_by_shape:
            raise NotInlined("its key depends on values")
        key = self._resolver.key([_without_memory(value) for value in inputs])
        if isinstance(key, Rejection):
            raise NotInlined(key.problem)
        return key

    def _traced(
        self, key: ApplyKey, inputs: tuple[Input, ...]
    ) -> tuple[LoadedCandidate, KernelGraph, CompiledTimes | None]:
        """The solution whose kernels a graph launches for a call, these kernels, and what was measured of them.

        Raises:
            LeftToCompiler: The graph should hold the function.
            NotInlined: It should hold the opaque operator.
        """
        if (reason := self._has_to_stay_opaque()) is not None:
            raise NotInlined(reason)
        selected = self._selected(key, inputs)
        try:
            candidate = self._candidate(key, inputs)
            graph = self._graph(candidate, inputs)
        except NotInlined as error:
            self._raise_not_inlined(selected, key, inputs, error)
        times = self._times(candidate.solution, key, inputs, is_inlined=True)
        if times is not None:
            cost = load_opaque_cost(hardware_from_device(_device_of(inputs)))
            if not times.is_worth_it(cost, is_captured=self._pool.config.captures_compiled):
                raise LeftToCompiler(f"{times}")
        return candidate, graph, times

    def _raise_not_inlined(
        self, selected: Candidate, key: ApplyKey, inputs: Sequence[Input], error: NotInlined
    ) -> NoReturn:
        """Raise the choice for a call that is not inlined, with what was compared.

        Raises:
            LeftToCompiler: The function is faster than an opaque operator, or may be in a larger graph.
            NotInlined: It is not.
        """
        device = _device_of(inputs)
        cost = load_opaque_cost(hardware_from_device(device))
        times = self._times(selected.solution, key, inputs, is_inlined=False)
        decision = decide_opaque(selected, device, self._pool.config, cost, times)
        reason = f"{error}" if decision.reason in ("", f"{error}") else f"{error}; {decision.reason}"
        raise (NotInlined if decision.is_worth_it else LeftToCompiler)(reason) from error

    def _times(
        self, solution: str, key: ApplyKey, inputs: Sequence[Input], *, is_inlined: bool
    ) -> CompiledTimes | None:
        """The measured times of a loaded solution in the same kind of graph; None if none count."""
        found = self._pool.build_service.loaded().get(solution)
        if found is None or not self._pool.config.require_speedup:
            return None
        hardware, name = hardware_from_device(_device_of(inputs)), self._pool.config.baseline
        try:
            baseline = None if name is None else self._pool.load_solution(name)
        except FibError:  # it was changed or removed: what was measured against it does not count
            return None
        times = self._times_cache.load(self._pool.definition, found[0], key, hardware, baseline)
        return None if times is None or times.is_inlined is not is_inlined else times

    def _selected(self, key: ApplyKey, inputs: Sequence[Input]) -> Candidate:
        """The solution that serves a call once it is ready.

        Raises:
            LeftToCompiler: There is none.
        """
        ranking = self._pool.ranking(key, _device_of(inputs))
        if ranking is None or not ranking.plain_candidates:
            raise _NothingSelected(ranking)
        selected = self._pool.first_usable(ranking)
        if selected is None:
            raise LeftToCompiler("no selected solution is usable")
        return selected

    def _candidate(self, key: ApplyKey, inputs: Sequence[Input]) -> LoadedCandidate:
        """The loaded solution that serves a call, if a graph may launch its kernels.

        Raises:
            NotInlined: It may not.
        """
        pool, device = self._pool, _device_of(inputs)
        ranking = pool.ranking(key, device)
        loaded = None if ranking is None else pool.first_loaded(ranking)
        if ranking is None or loaded is None:
            raise NotInlined("no solution is selected" if ranking is None else pool.miss_reason(ranking))
        if loaded.runnable.metadata.build_type != SupportedLanguages.TRITON:
            raise NotInlined(f"{loaded.solution} is not written in Triton")
        if not loaded.candidate.may_capture:
            raise NotInlined(not_graph_safe(loaded.solution))
        ready_at = self._resolver.ready_at(loaded.solution, key, device)
        if ready_at is None:
            raise NotInlined(f"{loaded.solution} did not run before the call was traced")
        if ready_at > pool.build_service.capture_gate:
            raise NotInlined(f"{loaded.solution} became ready after the warm-up")
        return loaded

    def _has_to_stay_opaque(self) -> str | None:
        """Reason for an opaque operator whatever it costs: routes do what no graph can. None if there is none."""
        if self._pool.agreed is not None:
            return "replicas agree on what each call is served by"
        if self._pool.config.shadow_ratio:
            return "calls are compared with the fallback"
        if torch.get_default_dtype() is not torch.float32:
            return "the default dtype is not torch.float32"
        return "exported programs cannot hold kernels" if torch.compiler.is_exporting() else None

    def _graph(self, candidate: LoadedCandidate, inputs: tuple[Input, ...]) -> KernelGraph:
        """The graph of a solution, traced once."""
        call = candidate.solution, inputs
        if call not in self._graphs:
            try:
                self._graphs[call] = trace_kernels(candidate.runnable, inputs)
            except NotInlined as error:
                self._graphs[call] = f"{candidate.solution}: {error}"
                logger.info("%s: %s is not inlined: %s", self._pool.definition.name, candidate.solution, error)
        graph = self._graphs[call]
        if isinstance(graph, str):
            raise NotInlined(graph)
        return graph


def _device_of(inputs: Sequence[Input]) -> str:
    return next(f"{value.device}" for value in inputs if isinstance(value, TensorMeta))


def _to_input(described: Any, spec: TensorSpec) -> Input:
    if not isinstance(described, tuple):
        scalar: bool | int | float | None = described
        return scalar
    sizes, strides, device = described
    return TensorMeta(sizes, strides, torch_dtype(spec.dtype), device)


def _without_memory(value: Input) -> Any:
    """A tensor of the same shape and strides for key builders, which read no values; scalars as they are."""
    return value.empty("meta") if isinstance(value, TensorMeta) else value
