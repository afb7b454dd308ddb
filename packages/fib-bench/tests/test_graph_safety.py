"""Tests of graph safety: what a timing must have done for a solution to be called safe in CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from fib_bench import BenchmarkConfig
from fib_bench.inputs.variation import Variation
from fib_bench.judge.evaluate import Judge
from fib_bench.judge.graph_safety import GraphEvidence, graph_fields, graph_problem
from fib_bench.judge.linked_passes import LinkedPasses, linked_inputs
from fib_bench.judge.linked_timing import LinkedTimer
from fib_bench.judge.prepared import MOVED
from fib_bench.judge.solution_run import SolutionRun
from fib_bench.transport.slots import CallLayout, Slots, layout_of
from fib_schema import BuildSpec, Definition, Solution, Workload

CPU = torch.device("cpu")
SAFE = GraphEvidence(
    method="linked",
    has_setup=False,
    verified_calls=90,
    discrete=("kv_indptr", "kv_indices"),
    changed=("q", "kv_indptr", "kv_indices"),
    kept_integers=False,
)


def test_verified_replays_with_changed_integers_are_safe() -> None:
    assert graph_problem(SAFE) is None
    assert graph_fields(SAFE) == {"graph_safe": True}


def test_integers_may_have_changed_in_padded_calls() -> None:
    """Of requests with one page each, no other offsets have the same total."""
    padded = attrs.evolve(SAFE, changed=("q", "kv_indices"), changed_in_padded_calls=("kv_indptr", "kv_indices"))
    assert graph_problem(padded) is None
    others = attrs.evolve(padded, discrete=("kv_indptr", "kv_indices", "slots"))
    assert graph_problem(others) == "integer or boolean inputs were not redrawn: slots"
    assert "replays were compared" in str(graph_problem(attrs.evolve(padded, verified_calls=9)))


def test_a_definition_without_integers_needs_none() -> None:
    assert graph_problem(attrs.evolve(SAFE, discrete=(), changed=("x",))) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"method": "host"}, "it was timed by the method 'host'"),
        ({"method": "unlinked"}, "it was timed by the method 'unlinked'"),
        ({"has_setup": True}, "its setup makes a plan on the host"),
        ({"kept_integers": True}, "its integers were not redrawn, because the baseline has a setup"),
        ({"changed": ("q", "kv_indices")}, "integer or boolean inputs were not redrawn: kv_indptr"),
        ({"changed": ("q",)}, "integer or boolean inputs were not redrawn: kv_indices, kv_indptr"),
        ({"verified_calls": 9}, "only 9 replays were compared"),
    ],
)
def test_without_evidence_it_is_not(change: dict[str, Any], reason: str) -> None:
    evidence = attrs.evolve(SAFE, **change)
    assert reason in str(graph_problem(evidence))
    assert graph_fields(evidence)["graph_safe"] is False
    assert reason in str(graph_fields(evidence)["graph_unsafe_reason"])


class TestEvidence:
    """Evidence of a linked timing."""

    @pytest.fixture
    def definition(self, make_definition: Callable[..., Definition]) -> Definition:
        return make_definition(
            {"x": "float32[n]", "at": "int64[m]", "seen": "int32[m]"}, {"y": "float32[n]"}, "def run(x, at, seen): ..."
        )

    @pytest.fixture
    def layout(self, definition: Definition) -> CallLayout:
        integers = torch.arange(3)
        return layout_of(definition, {"n": 4, "m": 3}, {"x": torch.ones(4), "at": integers, "seen": integers.int()})

    def fields(
        self,
        definition: Definition,
        layout: CallLayout,
        redrawn: tuple[str, ...],
        determined: tuple[str, ...] = (),
        replayed: tuple[str, ...] = (),
        padded: tuple[str, ...] = (),
        padding_problem: str = "",
        **function: Any,
    ) -> Any:
        with Slots(layout, 1, CPU) as slots:
            bound: Any = SimpleNamespace(
                layout=layout, slots=slots, **{"keeps_integers": False, "has_setup": False, **function}
            )
            prepared: Any = SimpleNamespace(
                layout=layout,
                varying={"x": Variation.MIXED},
                integer_sets=[dict.fromkeys(redrawn, torch.zeros(3)), {}] if redrawn else (),
                determined_integers=frozenset(determined),
                moved_integers=frozenset({"seen"}),
                padded_integers=frozenset(padded),
            )
            passes = LinkedPasses.__new__(LinkedPasses)
            passes._function, passes._inputs = bound, linked_inputs(bound, prepared)
        timer = LinkedTimer.__new__(LinkedTimer)
        timer.method, timer._passes, timer.verifier = "linked", passes, SimpleNamespace(fresh=90)  # type: ignore[assignment]
        timer._verification = SimpleNamespace(distributions=set(replayed))  # type: ignore[assignment]
        run: Any = SimpleNamespace(definition=definition, candidate=SimpleNamespace(padding_problem=padding_problem))
        return SolutionRun._graph_fields(run, bound, timer, prepared)

    def test_all_integers_are_linked(self, definition: Definition, layout: CallLayout) -> None:
        assert self.fields(definition, layout, ("at", "seen")) == {"graph_safe": True}

    def test_some_integers_cannot_be_redrawn(self, definition: Definition, layout: CallLayout) -> None:
        found = self.fields(definition, layout, ("at",))
        assert found["graph_unsafe_reason"] == "integer or boolean inputs were not redrawn: seen"

    def test_integers_that_the_sizes_determine_need_not_change(
        self, definition: Definition, layout: CallLayout
    ) -> None:
        assert self.fields(definition, layout, ("at",), determined=("seen",)) == {"graph_safe": True}

    def test_a_mask_is_never_redrawn(self, make_definition: Callable[..., Definition]) -> None:
        """A solution may have kept what an earlier call read from the mask, and a graph repeats that."""
        masked = make_definition(
            {"x": "float32[n]", "mask": "bool[n]"}, {"y": "float32[n]"}, "def run(x, mask): return x * mask"
        )
        layout = layout_of(masked, {"n": 4}, {"x": torch.ones(4), "mask": torch.ones(4, dtype=torch.bool)})
        found = self.fields(masked, layout, ())
        assert found["graph_safe"] is False
        assert found["graph_unsafe_reason"] == "integer or boolean inputs were not redrawn: mask"

    def test_offsets_may_change_in_a_pass_of_their_own(self, definition: Definition, layout: CallLayout) -> None:
        assert self.fields(definition, layout, ("at",), replayed=("zeros", MOVED)) == {"graph_safe": True}
        found = self.fields(definition, layout, ("at",), replayed=("zeros",))
        assert found["graph_unsafe_reason"] == "integer or boolean inputs were not redrawn: seen"

    def test_a_padding_check_that_has_failed_shows_nothing(self, definition: Definition, layout: CallLayout) -> None:
        assert self.fields(definition, layout, ("at",), padded=("seen",)) == {"graph_safe": True}
        found = self.fields(definition, layout, ("at",), padded=("seen",), padding_problem="it raised an error")
        assert found["graph_unsafe_reason"] == "integer or boolean inputs were not redrawn: seen"

    def test_integers_stay_for_plans(self, definition: Definition, layout: CallLayout) -> None:
        found = self.fields(definition, layout, ("at", "seen"), keeps_integers=True, has_setup=True)
        assert found["graph_unsafe_reason"] == "its setup makes a plan on the host"
        found = self.fields(definition, layout, ("at", "seen"), keeps_integers=True)
        assert "because the baseline has a setup" in found["graph_unsafe_reason"]


GATHER = "def run(table, kv_indices):\n    return table[kv_indices.long()]\n"
LAST_PAGES = """
import torch

def run(table, kv_indptr, kv_indices, kv_last_page_len):
    pages = table[kv_indices[kv_indptr[1:].long() - 1].long()]
    places = torch.arange(table.shape[1], device=table.device)
    return torch.where(places < kv_last_page_len[:, None], pages, 0.0)
"""


@pytest.fixture
def timing_of(
    make_definition: Callable[..., Definition],
    make_workload: Callable[..., Workload],
    make_solution: Callable[..., Solution],
) -> Callable[..., Mapping[str, Any]]:
    """A function that evaluates a definition's reference as its solution, and returns the timing of the trace."""

    def timing_of(
        inputs: Mapping[str, str],
        output: str,
        code: str,
        sizes: Mapping[str, int],
        constraints: tuple[str, ...] = (),
        setup: str = "",
        device: str = "cuda:0",
    ) -> Mapping[str, Any]:
        definition = make_definition(dict(inputs), {"y": output}, code, name="gather")
        definition = attrs.evolve(definition, constraints=constraints)
        spec = BuildSpec("python", ("cuda", "cpu"), "k.py::run", destination_passing_style=False)
        solution = attrs.evolve(make_solution(setup + code, definition="gather"), spec=spec)
        judge = Judge(BenchmarkConfig(device=device, num_trials=2, measure_seconds=1.0))
        try:
            prepared = judge.prepare(definition, make_workload(definition, dict(sizes)))
            ((_, found),) = judge.evaluate(definition, solution, [prepared])
        finally:
            judge.close()
        assert found.performance is not None, found.log
        assert found.performance.extra is not None
        timing: Mapping[str, Any] = found.performance.extra["timing"]
        return timing

    return timing_of


TABLE = {"table": "float32[num_pages,64]", "kv_indices": "int32[n]"}
DECODE = {
    "table": "float32[num_pages,page_size]", "kv_indptr": "int32[len_indptr]", "kv_indices": "int32[n]",
    "kv_last_page_len": "int32[batch_size]",
}  # fmt: skip
DECODE_CONSTRAINTS = ("len_indptr == batch_size + 1", "n == kv_indptr[-1].item()")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: graphs are captured there only")
class TestOnCuda:
    def test_a_solution_without_setup_is_safe(self, timing_of: Callable[..., Mapping[str, Any]]) -> None:
        assert timing_of(TABLE, "float32[n,64]", GATHER, {"num_pages": 256, "n": 64})["graph_safe"] is True

    def test_a_solution_with_a_setup_is_not(self, timing_of: Callable[..., Mapping[str, Any]]) -> None:
        setup = "def setup(table, kv_indices):\n    return {}\n"
        timing = timing_of(TABLE, "float32[n,64]", GATHER, {"num_pages": 256, "n": 64}, setup=setup)
        assert timing["graph_safe"] is False

    def test_large_tensors_are_no_reason(self, timing_of: Callable[..., Mapping[str, Any]]) -> None:
        timing = timing_of(TABLE, "float32[n,64]", GATHER, {"num_pages": 1_400_000, "n": 64})  # 358 MB
        assert timing["graph_safe"] is True, timing["graph_unsafe_reason"]

    @pytest.mark.parametrize("batch", [1, 3, 9])
    def test_a_single_request_or_page_is_no_reason(
        self, timing_of: Callable[..., Mapping[str, Any]], batch: int
    ) -> None:
        sizes = {"num_pages": 64, "page_size": 16, "len_indptr": batch + 1, "n": 9, "batch_size": batch}
        timing = timing_of(DECODE, "float32[batch_size,page_size]", LAST_PAGES, sizes, DECODE_CONSTRAINTS)
        assert timing["graph_safe"] is True, timing["graph_unsafe_reason"]


@pytest.mark.slow
def test_the_solutions_of_the_tests_on_cuda_pass(timing_of: Callable[..., Mapping[str, Any]]) -> None:
    sizes = {"num_pages": 64, "page_size": 16, "len_indptr": 2, "n": 9, "batch_size": 1}
    timing = timing_of(DECODE, "float32[batch_size,page_size]", LAST_PAGES, sizes, DECODE_CONSTRAINTS, device="cpu")
    assert "graph_safe" not in timing  # nothing is captured there
