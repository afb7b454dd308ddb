"""Plans of runs: the work for (definitions x solutions x workloads), and the reasons for skipped work."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

import attrs
from fib_schema import (
    Definition,
    Evaluation,
    InvalidRecord,
    Solution,
    Trace,
    TraceSet,
    UnknownName,
    Workload,
)
from fib_schema.hardware import Fit, architectures_of, fit_of, unknown_targets
from fib_schema.trace_facts import counting_traces, is_quick

from .config.benchmark import BenchmarkConfig

_SHOWN_NAMES = 3


@attrs.frozen
class Skip:
    """Work that a run skips, with the reason."""

    definition: str
    solution: str | None
    workload: str | None
    reason: str
    is_failure: bool = False
    """Whether it should have run and could not, for instance because a blob is missing."""
    is_done: bool = False
    """Whether an earlier run has done it."""
    is_crash: bool = False
    """Whether the judge process died during it: it may succeed when it runs again."""

    @property
    def subject(self) -> str:
        """The names of what is skipped."""
        return " / ".join(part for part in (self.definition, self.solution, self.workload) if part)

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}"


@attrs.frozen
class DefinitionPlan:
    """The work on one definition: the solutions to run on each workload."""

    definition: Definition
    workloads: tuple[Workload, ...]
    pending: Mapping[str, tuple[Solution, ...]]
    """Solutions to run, by workload uuid."""
    cache_key: str = ""
    """Plans with different keys share no build caches of solutions."""

    @property
    def count(self) -> int:
        """The number of evaluations."""
        return sum(map(len, self.pending.values()))

    def without(self, done: Container[tuple[str, str | None]]) -> DefinitionPlan:
        """The plan without pairs that are done or skipped.

        Args:
            done: Pairs of a workload's uuid and a solution's name; None stands for all solutions.
        """
        pending: dict[str, tuple[Solution, ...]] = {}
        for uuid, solutions in self.pending.items():
            left = tuple(s for s in solutions if (uuid, s.name) not in done and (uuid, None) not in done)
            if left:
                pending[uuid] = left
        return attrs.evolve(self, pending=pending, workloads=tuple(w for w in self.workloads if w.uuid in pending))

    def shares(self, fractions: Iterable[float]) -> Iterator[DefinitionPlan]:
        """About these fractions of the workloads, one after the other; some may be empty."""
        begin, taken = 0, 0.0
        for fraction in fractions:
            taken += fraction
            end = round(taken * len(self.workloads))
            some, begin = self.workloads[begin:end], end
            yield attrs.evolve(self, workloads=some, pending={w.uuid: self.pending[w.uuid] for w in some})

    def split(self, pieces: int) -> Iterator[DefinitionPlan]:
        """Split the work into about this many pieces, each with some of the workloads and all their solutions.

        A workload is prepared once for all its solutions, so these are split only where there are too few workloads.
        Without any work there is no piece.
        """
        pieces = max(pieces, 1)
        size = max(-(-len(self.workloads) // pieces), 1)
        shares = max(pieces // max(len(self.workloads), 1), 1)
        for begin in range(0, len(self.workloads), size):
            some = self.workloads[begin : begin + size]
            for share in range(min(shares, max(len(self.pending[w.uuid]) for w in some))):
                pending = {w.uuid: left for w in some if (left := self.pending[w.uuid][share::shares])}
                yield attrs.evolve(self, workloads=tuple(w for w in some if w.uuid in pending), pending=pending)


@attrs.frozen
class Plan:
    """The work of a run."""

    definitions: tuple[DefinitionPlan, ...]
    skipped: tuple[Skip, ...]
    notes: tuple[str, ...] = ()
    """Notes for the owner of the run about work that is done."""

    @property
    def count(self) -> int:
        """The number of evaluations."""
        return sum(plan.count for plan in self.definitions)


def in_order_of(parts: Iterable[DefinitionPlan], traces: Iterable[Trace]) -> tuple[Trace, ...]:
    """Traces of these plans by definition, workload and solution, as the plans have them."""
    pairs = (
        (part.definition.name, uuid, solution.name)
        for part in parts
        for uuid, solutions in part.pending.items()
        for solution in solutions
    )
    places = {pair: place for place, pair in enumerate(pairs)}
    return tuple(sorted(traces, key=lambda t: places[t.definition, t.workload.uuid, t.solution or ""]))


@attrs.define
class _Findings:
    """Findings of making a plan."""

    hardware: str
    """The name of the device."""
    skipped: list[Skip] = attrs.field(factory=list)
    related: dict[tuple[str, ...], int] = attrs.field(factory=dict)
    """Number of solutions that run because the device has the architecture of a target, by targets."""

    def notes(self) -> Iterator[str]:
        """One note for the solutions of the same targets."""
        (architecture,) = architectures_of(self.hardware) if self.related else ("",)
        for targets, count in self.related.items():
            solutions = "1 solution" if count == 1 else f"{count} solutions"
            yield (
                f"{solutions} made for {', '.join(targets)}: this device, {self.hardware!r}, has the same architecture "
                f"({architecture}); --strict-hardware skips such solutions"
            )


def make_plan(trace_set: TraceSet, config: BenchmarkConfig, hardware: str, *, resume: bool = False) -> Plan:
    """Select the work to run.

    Args:
        trace_set: The data set.
        config: Names and limits.
        hardware: The device's name, as traces state it.
        resume: Skip pairs that have a trace from this hardware, from the same version of the solution and with the
            layout of the workload. A trace with the flag ``quick`` counts in quick runs only.

    Raises:
        UnknownName: A name in the configuration matches nothing.
    """
    check_names(trace_set, config)
    found = _Findings(hardware)
    chosen = list(_chosen_definitions(trace_set, config, found.skipped))
    plans = [plan for definition in chosen if (plan := _plan_definition(definition, trace_set, config, resume, found))]
    found.skipped += _crossed(trace_set, config, {definition.name for definition in chosen})
    if chosen and not plans and not found.skipped:
        found.skipped.append(Skip("all definitions", None, None, "there are no solutions"))
    notes = (*found.notes(), *_without_solutions(trace_set, chosen))
    return Plan(tuple(plans), tuple(found.skipped), notes)


def _without_solutions(trace_set: TraceSet, chosen: Iterable[Definition]) -> Iterator[str]:
    """A note about the definitions without solutions, and what gives them one."""
    names = [definition.name for definition in chosen if not trace_set.solution_names(definition.name)]
    if names:
        count = "1 definition has" if len(names) == 1 else f"{len(names)} definitions have"
        more = ", ..." if len(names) > _SHOWN_NAMES else ""
        yield (
            f"{count} no solutions: {', '.join(names[:_SHOWN_NAMES])}{more}; --reference-as-solution adds their "
            "references, `fib-integrations baselines DIR` adds solutions that call FlashInfer"
        )


def _crossed(trace_set: TraceSet, config: BenchmarkConfig, chosen: Container[str]) -> Iterable[Skip]:
    """Requested names for which the other names leave no work."""
    for name in config.definitions or ():
        solutions = trace_set.solution_names(name)
        if not solutions:
            yield Skip(name, None, None, "it has no solutions")
        elif name not in chosen:
            yield Skip(name, None, None, "its op_type was not requested")
        elif config.solutions is not None and not set(solutions) & set(config.solutions):
            yield Skip(name, None, None, "it has none of the requested solutions")
    for definition in trace_set.solutions:
        is_known = definition in trace_set.definition_names()
        reason = "its definition was not requested" if is_known else "its definition is missing"
        for name in trace_set.solution_names(definition):
            if definition not in chosen and name in (config.solutions or ()):
                yield Skip(definition, name, None, reason, is_failure=not is_known)


def check_names(trace_set: TraceSet, config: BenchmarkConfig) -> None:
    """Reject names that match nothing.

    Raises:
        UnknownName: A definition or solution that the configuration names does not exist.
    """
    for name in config.definitions or ():
        trace_set.get_definition(name)
    for name in config.solutions or ():
        if trace_set.get_solution(name) is None:
            raise UnknownName("solution", name, trace_set.solution_names())


def _chosen_definitions(trace_set: TraceSet, config: BenchmarkConfig, skipped: list[Skip]) -> Iterable[Definition]:
    names = config.definitions if config.definitions is not None else trace_set.definition_names()
    chosen, op_types = [], set()
    for name in names:
        try:
            definition = trace_set.definitions[name]
        except InvalidRecord as error:
            skipped.append(Skip(name, None, None, str(error), is_failure=True))
            continue
        op_types.add(definition.op_type)
        if config.op_types is None or definition.op_type in config.op_types:
            chosen.append(definition)
    for op_type in config.op_types or ():
        if op_type not in op_types:
            raise UnknownName("op_type", op_type, tuple(sorted(op_types)))
    return chosen


def _plan_definition(
    definition: Definition,
    trace_set: TraceSet,
    config: BenchmarkConfig,
    resume: bool,
    found: _Findings,
) -> DefinitionPlan | None:
    skipped = found.skipped
    solutions = list(_chosen_solutions(definition, trace_set, config, found))
    if not solutions:
        return None
    workloads = list(_distinct_workloads(definition.name, trace_set, skipped))
    if not workloads:
        skipped.append(Skip(definition.name, None, None, "it has no workloads"))
        return None
    workloads = workloads[: config.max_workloads]
    traces = counting_traces(trace_set, definition.name) if resume else []
    done = _done((trace for trace in traces if config.quick or not is_quick(trace.evaluation)), found.hardware)
    hashes = [solution.hash() for solution in solutions]
    pending: dict[str, tuple[Solution, ...]] = {}
    for workload in workloads:
        left = []
        for solution, content in zip(solutions, hashes, strict=True):
            if (workload.uuid, solution.name, content) in done:
                reason = "a trace of it exists (resume)"
                skipped.append(Skip(definition.name, solution.name, workload.uuid, reason, is_done=True))
            else:
                left.append(solution)
        if left:
            pending[workload.uuid] = tuple(left)
    return DefinitionPlan(definition, tuple(w for w in workloads if w.uuid in pending), pending)


def _distinct_workloads(definition: str, trace_set: TraceSet, skipped: list[Skip]) -> Iterator[Workload]:
    """The workloads of a definition; those with the uuid of an earlier one cannot be told apart and are skipped."""
    seen: set[str] = set()
    for trace in trace_set.workloads.get(definition, []):
        uuid = trace.workload.uuid
        if uuid in seen:
            reason = "an earlier workload has the same uuid; give each a uuid of its own"
            skipped.append(Skip(definition, None, uuid, reason, is_failure=True))
        else:
            seen.add(uuid)
            yield trace.workload


def _chosen_solutions(
    definition: Definition,
    trace_set: TraceSet,
    config: BenchmarkConfig,
    found: _Findings,
) -> Iterable[Solution]:
    is_strict = config.resolve_eval_config(definition).strict_hardware
    for name in trace_set.solution_names(definition.name):
        if config.solutions is not None and name not in config.solutions:
            continue
        try:
            solution = trace_set.get_solution(name)
        except InvalidRecord as error:
            found.skipped.append(Skip(definition.name, name, None, str(error), is_failure=True))
            continue
        if solution is not None and _runs_here(solution, found, is_strict=is_strict):
            yield solution


def _runs_here(solution: Solution, found: _Findings, *, is_strict: bool) -> bool:
    """Whether a solution runs on the device; if not, the reason is added to the findings."""
    targets = solution.spec.target_hardware
    match fit_of(targets, found.hardware):
        case Fit.NAMED:
            return True
        case Fit.SAME_ARCHITECTURE if not is_strict:
            found.related[targets] = found.related.get(targets, 0) + 1
            return True
    unknown = () if is_strict else unknown_targets(targets, found.hardware)
    reason = f"made for {', '.join(targets)}; this device is {found.hardware!r}"
    if unknown:
        reason = f"target_hardware: {'; '.join(map(str, unknown))}; this device is {found.hardware!r}"
    found.skipped.append(Skip(solution.definition, solution.name, None, reason, is_failure=bool(unknown)))
    return False


def _done(traces: Iterable[Trace], hardware: str) -> frozenset[tuple[str, str, str]]:
    """The key of an existing trace: workload, solution and the hash of the solution as it was."""
    return frozenset(
        (trace.workload.uuid, trace.solution, _solution_hash(trace.evaluation))
        for trace in traces
        if trace.solution and trace.evaluation and trace.evaluation.environment.hardware == hardware
    )


def _solution_hash(evaluation: Evaluation) -> str:
    return "" if evaluation.extra is None else str(evaluation.extra.get("solution_hash"))
