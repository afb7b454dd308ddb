"""Tests of padded indices: calls whose page numbers lie in a longer buffer, and what traces say about them."""

import itertools

import attrs
import pytest
import torch
from fib_bench import BenchmarkConfig
from fib_bench.inputs.generation import draw_padded_calls
from fib_bench.judge.evaluate import Judge
from fib_schema import BuildSpec, Evaluation

from .samples import make_definition, make_solution, make_workload

REFERENCE = """
import torch

def run(q, cache, kv_indptr, kv_indices):
    assert len(kv_indices) == int(kv_indptr[-1])
    rows = []
    for request in range(len(q)):
        first, stop = int(kv_indptr[request]), int(kv_indptr[request + 1])
        rows.append(q[request] + cache[kv_indices[first:stop].long()].sum(0))
    return torch.stack(rows)
"""
SAFE = REFERENCE.replace("    assert len(kv_indices) == int(kv_indptr[-1])\n", "")
ALL_PAGES = """
import torch

def run(q, cache, kv_indptr, kv_indices):
    sums = torch.nn.functional.pad(cache[kv_indices.long()].double().cumsum(0), (0, 0, 1, 0))
    return q + (sums[kv_indptr[1:].long()] - sums[kv_indptr[:-1].long()]).float()
"""
UNTIL_THE_END = SAFE.replace("int(kv_indptr[request + 1])", "[*kv_indptr[1:-1].tolist(), len(kv_indices)][request]")
PLANNED_ONCE = SAFE.replace("import torch\n", "import torch\n\nPLANS = {}\n").replace(
    "    rows = []\n",
    "    kv_indptr = PLANS.setdefault((kv_indptr.data_ptr(), len(kv_indices), len(cache)), kv_indptr.clone())\n"
    "    if len(kv_indices) == int(kv_indptr[-1]):\n        PLANS.clear()\n    rows = []\n",
)
ENDS = "import os\n" + SAFE.replace(
    "    rows = []\n", "    if len(kv_indices) != int(kv_indptr[-1]):\n        os._exit(3)\n    rows = []\n"
)
WITH_SETUP = "def setup(q, cache, kv_indptr, kv_indices):\n    return {}\n" + SAFE
AXES = {"batch": 3, "len_indptr": 4, "num_pages": 16, "num_kv_indices": 9}


PAGES = make_definition(
    {
        "q": "float32[batch,4]",
        "cache": "float32[num_pages,4]",
        "kv_indptr": "int32[len_indptr]",
        "kv_indices": "int32[num_kv_indices]",
    },
    {"y": "float32[batch,4]"},
    REFERENCE,
    constraints=("len_indptr == batch + 1", "num_kv_indices == kv_indptr[-1].item()"),
    name="pages",
)
"""The sums of the pages of each request."""


@pytest.fixture
def evaluate(make_judge):
    """Evaluate code on workloads of these totals; all pass."""

    def evaluate(code, *totals, batch=3, **settings):
        judge = make_judge(**settings)
        axes = {**AXES, "batch": batch, "len_indptr": batch + 1}
        workloads = [make_workload(PAGES, {**axes, "num_kv_indices": total}, f"t{total}") for total in totals]
        prepared = [judge.prepare(PAGES, workload) for workload in workloads]
        found = [found for _, found in judge.evaluate(PAGES, make_solution(code, definition="pages"), prepared)]
        assert all(isinstance(one, Evaluation) and one.status == "PASSED" for one in found), found
        return [one for one in found if isinstance(one, Evaluation)]

    return evaluate


def timing_of(evaluation):
    assert evaluation.performance is not None, evaluation.log
    timing = evaluation.performance.extra["timing"]
    return {name: value for name, value in timing.items() if name.startswith("padded")}


class TestDraws:
    @pytest.fixture
    def values(self):
        offsets, pages = torch.tensor([0, 4, 4, 9], dtype=torch.int32), torch.arange(9, dtype=torch.int32)
        return {"q": torch.ones(3, 4), "cache": torch.ones(16, 4), "kv_indptr": offsets, "kv_indices": pages}

    def test_totals_differ_in_one_buffer(self, values):
        draws = draw_padded_calls(PAGES, AXES, values, torch.Generator().manual_seed(0))
        lengths = {len(made["kv_indices"]) for draw in draws for made in (draw.stale, draw.poisoned)}
        assert lengths == {2 * 9 + 64}
        first, full, fewest, same = draws
        assert fewest.total < first.total <= same.total == 9 < full.total == 2 * 9 + 64
        assert torch.equal(same.exact["kv_indptr"], values["kv_indptr"])

    def test_only_what_is_behind_the_total_is_stale(self, values):
        for draw in draw_padded_calls(PAGES, AXES, values, torch.Generator().manual_seed(1)):
            for made in (draw.stale, draw.poisoned):
                assert torch.equal(made["kv_indptr"], draw.exact["kv_indptr"])
                assert int(made["kv_indptr"][-1]) == draw.total == len(draw.exact["kv_indices"])
                assert torch.equal(made["kv_indices"][: draw.total], draw.exact["kv_indices"])
                assert made["kv_indices"].dtype == torch.int32
            assert ((draw.stale["kv_indices"] >= 0) & (draw.stale["kv_indices"] < 16)).all()
            poison = draw.poisoned["kv_indices"][draw.total :]
            assert ((poison < 0) | (poison >= 16)).all()

    def test_engines_add_requests_without_pages(self, values):
        _, _, fewest, _ = draw_padded_calls(PAGES, AXES, values, torch.Generator().manual_seed(0))
        assert fewest.exact["kv_indptr"].tolist() == [0, 1, 1, 1]

    def test_lengths_that_depend_on_offsets_rule_them_out(self, values):
        def add(name):
            spec = attrs.evolve(PAGES.inputs["kv_indptr"], shape=("batch",))
            return attrs.evolve(PAGES, inputs={**PAGES.inputs, name: spec})

        lengths = torch.ones(3, dtype=torch.int32)
        generator = torch.Generator().manual_seed(0)
        assert draw_padded_calls(add("kv_last_page_len"), AXES, {**values, "kv_last_page_len": lengths}, generator)
        assert not draw_padded_calls(add("seq_lens"), AXES, {**values, "seq_lens": lengths}, generator)

    def test_empty_calls_have_none(self, values):
        empty = {"kv_indptr": torch.zeros(4, dtype=torch.int32), "kv_indices": torch.zeros(0, dtype=torch.int32)}
        assert not draw_padded_calls(PAGES, AXES, {**values, **empty}, torch.Generator())


class TestPreparation:
    def test_expected_outputs_are_those_of_the_exact_indices(self, make_judge):
        prepared = make_judge().prepare(PAGES, make_workload(PAGES, AXES))
        base = prepared.layout.input_tensors(prepared.trials[0].inputs)
        for draw, item in prepared.padded.input_sets(prepared, is_poisoned=True):
            given = prepared.padded.layout.input_tensors(item.inputs)
            offsets, pages = given["kv_indptr"], given["kv_indices"][: draw.total].long()
            sums = [base["cache"][pages[i:j]].sum(0) for i, j in itertools.pairwise(offsets)]
            expected = prepared.padded.layout.output_tensors(item.expected)["y"]
            torch.testing.assert_close(expected, base["q"] + torch.stack(sums))

    def test_other_definitions_have_none(self, make_judge):
        constraints = (*PAGES.constraints, "kv_indices.max().item() < num_pages")
        other = attrs.evolve(PAGES, constraints=constraints, reference=SAFE)
        assert make_judge().prepare(other, make_workload(other, AXES)).padded is None

    def test_a_reference_that_fails_on_them_is_no_obstacle(self, make_judge):
        picky = REFERENCE.replace("    rows = []\n", "    assert len(kv_indices) == 9\n    rows = []\n")
        picky_definition = attrs.evolve(PAGES, reference=picky)
        prepared = make_judge().prepare(picky_definition, make_workload(PAGES, AXES))
        assert prepared.padded is None
        assert "the reference failed" in prepared.left_out["padded"]


class TestTraces:
    def test_a_solution_that_reads_offsets_only_is_right(self, evaluate):
        (evaluation,) = evaluate(SAFE, 9)
        assert timing_of(evaluation) == {"padded_indices": True}

    @pytest.mark.parametrize(
        ("code", "reason"),
        [
            (UNTIL_THE_END, "pages of other requests behind them"),
            (ALL_PAGES, "IndexError"),
            (PLANNED_ONCE, "indices in a longer buffer"),
            (REFERENCE, "AssertionError"),
            (WITH_SETUP, "its setup makes a plan on the host"),
        ],
        ids=["until-the-end", "all-pages", "planned-once", "asserts", "setup"],
    )
    def test_others_pass_with_a_reason(self, evaluate, code, reason):
        timing = timing_of(*evaluate(code, 9))
        assert timing["padded_indices"] is False
        assert reason in str(timing["padded_indices_problem"])

    def test_one_wrong_request_of_many_is_found(self, evaluate):
        timing = timing_of(*evaluate(UNTIL_THE_END, 500, batch=200))
        assert "pages of other requests behind them" in str(timing["padded_indices_problem"])

    def test_a_solution_that_ends_its_worker_passes_everywhere(self, evaluate):
        evaluations = evaluate(ENDS, 9, 8, 7)
        assert len(evaluations) == 3
        for evaluation in evaluations:
            assert "its worker ended" in str(timing_of(evaluation)["padded_indices_problem"])

    def test_quick_runs_do_not_check(self, evaluate):
        assert timing_of(*evaluate(SAFE, 9, quick=True)) == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: graphs are captured there only")
@pytest.mark.parametrize(
    ("code", "is_right"),
    [
        ("counts = kv_indptr.diff().long()", True),
        ("counts = torch.cat([kv_indptr.diff()[:-1], len(kv_indices) - kv_indptr[-2:-1]]).long()", False),
    ],
    ids=["offsets", "length"],
)
def test_replays_of_one_capture_are_right_with_other_totals(code, is_right):
    """On a CUDA device the calls are replays of one capture."""
    body = (
        "import torch\n"
        "def run(q, cache, kv_indptr, kv_indices):\n"
        f"    {code}\n"
        "    ends = counts.cumsum(0)\n"
        "    places = torch.arange(len(kv_indices), device=q.device)\n"
        "    owner = torch.searchsorted(ends, places, right=True)\n"
        "    pages = torch.where(owner < len(q), kv_indices.long(), 0)\n"
        "    weights = (owner[None, :] == torch.arange(len(q), device=q.device)[:, None]).float()\n"
        "    return q + weights @ cache[pages]\n"
    )
    spec = BuildSpec("python", ("cuda",), "k.py::run", destination_passing_style=False)
    solution = attrs.evolve(make_solution(body, definition="pages"), spec=spec)
    judge = Judge(BenchmarkConfig(device="cuda:0", num_trials=2, measure_seconds=1.0))
    try:
        prepared = judge.prepare(PAGES, make_workload(PAGES, AXES))
        ((_, found),) = judge.evaluate(PAGES, solution, [prepared])
    finally:
        judge.close()
    assert isinstance(found, Evaluation)
    timing = timing_of(found)
    assert timing["padded_indices"] is is_right, timing


MEAN = """
import torch

def run(cache, seq_lens, block_table):
    y = torch.zeros(len(seq_lens), cache.shape[1])
    for request, length in enumerate(seq_lens.tolist()):
        if length:
            y[request] = cache[block_table[request, :length].long()].mean(0)
    return y
"""
MEANS = make_definition(
    {"cache": "float32[num_pages,4]", "seq_lens": "int32[batch]", "block_table": "int32[batch,max_num_pages]"},
    {"y": "float32[batch,4]"},
    MEAN,
    constraints=("seq_lens.max().item() <= max_num_pages", "seq_lens.min().item() >= 0"),
    name="means",
)
"""Requests may be empty, although no workload has such ones."""


@pytest.mark.parametrize(
    "instead", ["if length:", "if True:", "length = max(length, 1)\n        if True:"], ids=["right", "nan", "one-page"]
)
def test_solutions_are_called_with_empty_requests_where_a_constraint_allows_them(make_judge, instead):
    judge, code = make_judge(), MEAN.replace("if length:", instead)
    prepared = judge.prepare(MEANS, make_workload(MEANS, {"batch": 3, "num_pages": 64, "max_num_pages": 5}))
    ((_, found),) = judge.evaluate(MEANS, make_solution(code, definition="means"), [prepared])
    assert found.status == ("PASSED" if code == MEAN else "INCORRECT_NUMERICAL")
    assert code == MEAN or "moved pages or empty requests" in found.log
