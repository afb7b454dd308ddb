"""Plans of runs: the work for (definitions x solutions x workloads), and the reasons for skipped work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping

import attrs
from fib_schema import Definition, Evaluation, InvalidRecord, Solution, Trace, TraceSet, UnknownName, Workload
from fib_schema.display import counted
from fib_schema.hardware import Fit, architectures_of, fit_of, unknown_targets
from fib_schema.trace_facts import is_quick

from .config.model import BenchmarkConfig

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
        """The plan without pairs of a workload's uuid and a solution's name, of which None stands for all solutions."""
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


def make_plan(trace_set: TraceSet, config: BenchmarkConfig, hardware: str, *, resume: bool = False) -> Plan:
    """Select the work to run; `UnknownName` if a name in the configuration matches nothing.

    With `resume`, pairs are skipped that have a trace from this hardware, from the same version of the solution and
    with the layout of the workload. A trace with the flag ``quick`` counts in quick runs only.
    """
    check_names(trace_set, config)
    return _Planning(trace_set, config, hardware, resume).plan()


def check_names(trace_set: TraceSet, config: BenchmarkConfig) -> None:
    """Reject names of definitions and solutions that match nothing, by `UnknownName`; the plan skips bad files."""
    for kind, wanted, known in (
        ("definition", config.definitions, trace_set.definition_names()),
        ("solution", config.solutions, trace_set.solution_names()),
    ):
        for name in wanted or ():
            if name not in known:
                raise UnknownName(kind, name, known)


@attrs.define
class _Planning:
    trace_set: TraceSet
    config: BenchmarkConfig
    hardware: str
    resume: bool
    skipped: list[Skip] = attrs.field(factory=list)
    related: Counter[tuple[str, ...]] = attrs.field(factory=Counter)
    """Number of solutions that run because the device has the architecture of a target, by targets."""

    def plan(self) -> Plan:
        chosen = list(self._definitions())
        plans = [plan for definition in chosen if (plan := self._plan_definition(definition))]
        bad = {skip.definition for skip in self.skipped}
        self.skipped += self._crossed({definition.name for definition in chosen} | bad)
        if chosen and not plans and not self.skipped:
            self._skip("all definitions", None, None, "there are no solutions")
        return Plan(tuple(plans), tuple(self.skipped), tuple(self._notes(chosen)))

    def _skip(self, definition: str, solution: str | None, workload: str | None, reason: str, **kind: bool) -> None:
        self.skipped.append(Skip(definition, solution, workload, reason, **kind))

    def _notes(self, chosen: Iterable[Definition]) -> Iterator[str]:
        """One note for the solutions of the same targets, and one for all definitions without solutions."""
        for targets, count in self.related.items():
            (architecture,) = architectures_of(self.hardware)
            yield (
                f"{counted(count, 'solution')} made for {', '.join(targets)}: this device, {self.hardware!r}, has the "
                f"same architecture ({architecture})"
            )
        names = [definition.name for definition in chosen if not self.trace_set.solution_names(definition.name)]
        if names:
            who = "1 definition has" if len(names) == 1 else f"{len(names)} definitions have"
            more = ", ..." if len(names) > _SHOWN_NAMES else ""
            yield (
                f"{who} no solutions: {', '.join(names[:_SHOWN_NAMES])}{more}; --reference-as-solution adds their "
                "references, `fib-integrations baselines DIR` adds solutions that call FlashInfer"
            )

    def _crossed(self, chosen: Container[str]) -> Iterator[Skip]:
        """Requested names for which the other names leave no work."""
        wanted = self.config.solutions
        for name in self.config.definitions or ():
            solutions = self.trace_set.solution_names(name)
            if not solutions:
                yield Skip(name, None, None, "it has no solutions")
            elif name not in chosen:
                yield Skip(name, None, None, "its op_type was not requested")
            elif wanted is not None and not set(solutions) & set(wanted):
                yield Skip(name, None, None, "it has none of the requested solutions")
        for definition in self.trace_set.solutions:
            is_known = definition in self.trace_set.definition_names()
            reason = "its definition was not requested" if is_known else "its definition is missing"
            for name in self.trace_set.solution_names(definition):
                if definition not in chosen and name in (wanted or ()):
                    yield Skip(definition, name, None, reason, is_failure=not is_known)

    def _definitions(self) -> Iterator[Definition]:
        op_types = set()
        names = self.config.definitions
        for name in self.trace_set.definition_names() if names is None else names:
            try:
                definition = self.trace_set.definitions[name]
            except InvalidRecord as error:
                self._skip(name, None, None, str(error), is_failure=True)
                continue
            op_types.add(definition.op_type)
            if self.config.op_types is None or definition.op_type in self.config.op_types:
                yield definition
        for op_type in self.config.op_types or ():
            if op_type not in op_types:
                raise UnknownName("op_type", op_type, tuple(sorted(op_types)))

    def _plan_definition(self, definition: Definition) -> DefinitionPlan | None:
        name = definition.name
        solutions = [(solution, solution.hash()) for solution in self._solutions(definition)]
        if not solutions:
            return None
        workloads = list(self._workloads(name))[: self.config.max_workloads]
        if not workloads:
            self._skip(name, None, None, "it has no workloads")
            return None
        done = self._done(name) if self.resume else frozenset()
        pending: dict[str, tuple[Solution, ...]] = {}
        for uuid in [workload.uuid for workload in workloads]:
            for solution, content in solutions:
                if (uuid, solution.name, content) in done:
                    self._skip(name, solution.name, uuid, "a trace of it exists (resume)", is_done=True)
                else:
                    pending[uuid] = (*pending.get(uuid, ()), solution)
        return DefinitionPlan(definition, tuple(w for w in workloads if w.uuid in pending), pending)

    def _workloads(self, definition: str) -> Iterator[Workload]:
        """The workloads of a definition; those with the uuid of an earlier one cannot be told apart and are skipped."""
        seen: set[str] = set()
        for trace in self.trace_set.workloads.get(definition, []):
            uuid = trace.workload.uuid
            if uuid in seen:
                reason = "an earlier workload has the same uuid; give each a uuid of its own"
                self._skip(definition, None, uuid, reason, is_failure=True)
            else:
                seen.add(uuid)
                yield trace.workload

    def _solutions(self, definition: Definition) -> Iterator[Solution]:
        for name in self.trace_set.solution_names(definition.name):
            if self.config.solutions is not None and name not in self.config.solutions:
                continue
            try:
                solution = self.trace_set.get_solution(name)
            except InvalidRecord as error:
                self._skip(definition.name, name, None, str(error), is_failure=True)
                continue
            if solution is not None and self._runs_here(solution):
                yield solution

    def _runs_here(self, solution: Solution) -> bool:
        """Whether a solution runs on the device; if not, it is skipped with the reason."""
        targets = solution.spec.target_hardware
        match fit_of(targets, self.hardware):
            case Fit.NAMED:
                return True
            case Fit.SAME_ARCHITECTURE:
                self.related[targets] += 1
                return True
        unknown = unknown_targets(targets, self.hardware)
        problem = f"target_hardware: {'; '.join(map(str, unknown))}" if unknown else f"made for {', '.join(targets)}"
        reason = f"{problem}; this device is {self.hardware!r}"
        self._skip(solution.definition, solution.name, None, reason, is_failure=bool(unknown))
        return False

    def _done(self, definition: str) -> frozenset[tuple[str, str, str]]:
        """The keys of existing traces: workload, solution and the hash of the solution as it was."""
        return frozenset(
            (trace.workload.uuid, trace.solution, _solution_hash(trace.evaluation))
            for trace in self.trace_set.counting_traces(definition)
            if trace.solution and trace.evaluation and trace.evaluation.environment.hardware == self.hardware
            if self.config.quick or not is_quick(trace.evaluation)
        )


def _solution_hash(evaluation: Evaluation) -> str:
    return "" if evaluation.extra is None else str(evaluation.extra.get("solution_hash"))
