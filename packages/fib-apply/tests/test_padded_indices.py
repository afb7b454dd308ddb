"""Padded indices: calls with page numbers in a longer buffer go to solutions that were verified with such calls."""

from inspect import Parameter

import apply_samples as samples
import pytest
import torch
from apply_samples import new_solution, new_trace
from fib_apply import ApplyConfig, ApplyKey, OnMiss, enable_apply
from fib_apply.routing.codegen import ParameterMap
from fib_apply.selection.table import ApplyTable
from fib_schema import AxisConst, AxisVar, Definition, TensorSpec

pytestmark = pytest.mark.usefixtures("without_probes")

PAGES = Definition(
    "pages",
    "paged_sum",
    {"batch": AxisVar(), "len_indptr": AxisVar(), "num_pages": AxisVar(), "total": AxisVar(), "dim": AxisConst(2)},
    {
        "cache": TensorSpec(("num_pages", "dim"), "float32"),
        "kv_indptr": TensorSpec(("len_indptr",), "int32"),
        "kv_indices": TensorSpec(("total",), "int32"),
        "q": TensorSpec(("batch", "dim"), "float32"),
    },
    {"y": TensorSpec(("batch", "dim"), "float32")},
    "def run(cache, kv_indptr, kv_indices, q): ...",
    constraints=("len_indptr == batch + 1", "total == kv_indptr[-1].item()"),
)
CODE = "def run(cache, kv_indptr, kv_indices, q):\n    return q + {}\n"
SAFE = {"graph_safe": True, "padded_indices": True}
NOT_PADDED = {"graph_safe": True, "padded_indices": False, "padded_indices_problem": "IndexError"}


def trace(name, latency, timing, total=8, batch=2):
    axes = {"batch": batch, "len_indptr": batch + 1, "num_pages": 16, "total": total}
    return new_trace(name, latency, axes=axes, inputs=PAGES.inputs, timing=timing, definition="pages")


def data_set(traces):
    """Each solution adds another number, so that results tell them apart."""
    solutions = [
        new_solution(name, content=CODE.format(place), definition="pages", passing=False)
        for place, name in enumerate(("fast", "slow", "third"), start=1)
    ]
    return samples.data_set(*traces, solutions=solutions, definition=PAGES)


MIXED = (
    trace("fast", 1.0, NOT_PADDED),
    trace("fast", 1.0, NOT_PADDED, total=12),
    trace("slow", 2.0, SAFE),
    trace("slow", 2.0, SAFE, total=12),
)
PADDED_KEY = ApplyKey({"batch": 2, "len_indptr": 3, "num_pages": 16}).with_padding("total")


def exact_key(total):
    return ApplyKey({"batch": 2, "len_indptr": 3, "num_pages": 16, "total": total})


class TestSelection:
    def rankings(self, *traces, config=None):
        return ApplyTable.load_or_build(data_set(traces), config).rankings("pages")["cpu"]

    def test_totals_share_a_key_beside_the_others(self):
        rankings = self.rankings(*MIXED)
        assert set(rankings.by_key) == {exact_key(8), exact_key(12), PADDED_KEY}
        assert rankings.by_key[PADDED_KEY].plain.solution == "slow"
        assert rankings.by_key[exact_key(8)].plain.solution == "fast"
        assert rankings.best.plain.solution == "fast"

    def test_a_call_has_that_key_whatever_its_buffer(self):
        for length in (8, 1000):
            assert exact_key(length).with_padding("total").recorded == PADDED_KEY
        assert exact_key(8).recorded == exact_key(8)

    def test_traces_without_the_field_make_no_key(self):
        found = self.rankings(trace("fast", 1.0, {"graph_safe": True}), trace("slow", 2.0, NOT_PADDED))
        assert set(found.by_key) == {exact_key(8)}

    def test_one_evaluation_without_it_disqualifies(self):
        found = self.rankings(*MIXED, trace("third", 1.0, SAFE), trace("third", 1.0, NOT_PADDED, total=12))
        assert found.by_key[PADDED_KEY].plain.solution == "slow"

    def test_a_solution_must_have_run_at_all_totals(self):
        ranking = self.rankings(*MIXED, trace("third", 0.5, SAFE)).by_key[PADDED_KEY]
        assert ranking.plain.solution == "slow"
        assert "not measured on all workloads" in dict(ranking.left_out)["third"]

    def test_nothing_is_selected_that_is_slower_than_the_fallback(self):
        slow = [trace("slow", 2000.0, SAFE), trace("slow", 2.0, SAFE, total=12)]
        assert self.rankings(*slow).by_key[PADDED_KEY].plain is None

    def test_other_keys_do_not_serve_them(self):
        config = ApplyConfig(on_miss_policy=OnMiss.USE_DEF_BEST)
        with enable_apply(data_set([trace("fast", 1.0, SAFE, batch=4)]), config) as runtime:
            assert route(runtime)(*arguments(8)).tolist() == FALLBACK


FALLBACK = [[-1.0, -1.0], [-1.0, -1.0]]


def arguments(length):
    offsets, indices = torch.tensor([0, 3, 8], dtype=torch.int32), torch.full((length,), -1, dtype=torch.int32)
    return torch.zeros(16, 2), offsets, indices, torch.zeros(2, 2)


def route(runtime, *, is_padded=True, equivalents=frozenset()):
    """A route to the solutions; the fallback returns `FALLBACK`."""
    dispatcher = runtime.dispatcher("pages")

    parameters = tuple(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in PAGES.inputs)
    form = ParameterMap(parameters, tuple(PAGES.inputs), ())
    fallback = lambda *_: torch.tensor(FALLBACK)  # noqa: E731
    return dispatcher.route(
        f"padded_{is_padded}", form, fallback, fallback_equivalents=equivalents, is_padded=is_padded
    )


class TestRouting:
    def test_only_verified_solutions_serve_them(self):
        """From the second size on, keys are made without validating the call again."""
        with enable_apply(data_set(MIXED)) as runtime:
            serve = route(runtime)
            found = {str(serve(*arguments(length)).tolist()) for length in (*range(8, 30), 500) for _ in range(3)}
        assert found == {"[[2.0, 2.0], [2.0, 2.0]]"}

    def test_exact_calls_have_entries_of_their_own(self):
        with enable_apply(data_set(MIXED)) as runtime:
            padded, exact = route(runtime), route(runtime, is_padded=False)
            for _ in range(2):
                assert padded(*arguments(8)).tolist() == [[2.0, 2.0], [2.0, 2.0]]
                assert exact(*arguments(8)).tolist() == [[1.0, 1.0], [1.0, 1.0]]

    def test_misses_are_counted_with_the_reason(self):
        unsafe = [trace("fast", 1.0, SAFE), trace("fast", 1.0, NOT_PADDED, total=12)]
        with enable_apply(data_set(unsafe), stats=True) as runtime:
            assert route(runtime)(*arguments(500)).tolist() == FALLBACK
            assert runtime.stats()["pages"].misses == {"not verified with padded indices": 1}

    def test_without_evidence_the_key_is_not_recorded(self):
        with enable_apply(data_set([trace("fast", 1.0, NOT_PADDED)]), stats=True) as runtime:
            assert route(runtime)(*arguments(8)).tolist() == FALLBACK
            assert runtime.stats()["pages"].misses == {"not recorded": 1}

    def test_the_fallback_in_another_form_is_compared_although_it_cannot_serve(self):
        with enable_apply(data_set(MIXED)) as runtime:
            assert route(runtime, equivalents=frozenset({"fast"}))(*arguments(8)).tolist() == FALLBACK

    def test_a_definition_without_padded_indices_is_refused(self):
        with enable_apply(samples.data_set(new_trace("a"), solutions=[new_solution("a")])) as runtime:
            found = runtime.dispatcher("scale")
            with pytest.raises(ValueError, match="no padded indices"):
                found.route("f", ParameterMap((), ("x",), ()), lambda x: x, is_padded=True)


class TestCapture:
    @pytest.mark.parametrize(
        ("timing", "served"),
        [(SAFE, [[2.0, 2.0], [2.0, 2.0]]), ({"padded_indices": True}, FALLBACK)],
        ids=["graph-safe", "not-graph-safe"],
    )
    def test_a_capture_needs_both_properties(self, capturing, timing, served):
        traces = [trace("slow", 2.0, timing)]
        with enable_apply(data_set(traces)) as runtime:
            serve = route(runtime)
            assert serve(*arguments(20)).tolist() == [[2.0, 2.0], [2.0, 2.0]]
            runtime.dispatcher("pages").invalidate()
            capturing[0] = True
            assert serve(*arguments(20)).tolist() == served


def test_states_of_keys_see_first_runs_of_any_buffer():
    """A first run is of one buffer; the recorded key has none."""
    with enable_apply(data_set(MIXED)) as runtime:
        dispatcher = runtime.dispatcher("pages")
        assert dispatcher.slow_path.first_run_problem("slow", PADDED_KEY) == "not called yet"
        route(runtime)(*arguments(500))
        assert dispatcher.slow_path.first_run_problem("slow", PADDED_KEY) is None
        assert dispatcher.slow_path.first_run_problem("slow", exact_key(8)) == "not called yet"


def test_explanations_name_what_is_not_verified():
    with enable_apply(data_set(MIXED)) as runtime:
        text = runtime.explain("pages")
    assert "padded=total" in text
    assert "1. fast: 1000.00 us, not verified with padded indices" in text
