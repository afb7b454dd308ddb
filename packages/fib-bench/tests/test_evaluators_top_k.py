"""Tests of the evaluator of chosen indices: sets, ties, padding, values beside them, and whole evaluations."""

import pytest
import torch
from fib_bench import ResolvedEvalConfig
from fib_bench.evaluators.protocol import Case
from fib_bench.evaluators.top_k import TopK
from hypothesis import given, settings
from hypothesis import strategies as st

from .samples import judged, make_definition

INDEXER, UNSCORED = (
    make_definition(inputs, {"topk_indices": "int32[n,k]"}, "def run(*x): torch.topk(x, 3)\n", op_type="dsa_indexer")
    for inputs in ({"scores": "float32[n,v]", "seq_lens": "int32[n]"}, {"q": "bfloat16[n,d]"})
)
"""Definitions that get scores, and that get none."""
PLAIN = make_definition({"scores": "float32[n,v]"}, {"topk_indices": "int64[n,k]"}, "def run(x): ...\n", op_type="topk")


def check_of(definition, inputs, expected, config=None):
    config = config or ResolvedEvalConfig()
    return TopK().check(Case(definition=definition, inputs=inputs, expected=expected, config=config))


def shuffled(indices):
    """Each row in an order of its own; padding stays where it is."""
    keys = torch.rand(indices.shape).masked_fill(indices < 0, 2.0)
    return indices.gather(1, keys.argsort(dim=1))


class TestByScore:
    @pytest.fixture
    def scores(self):
        torch.manual_seed(0)
        return torch.randn(6, 100)

    @pytest.fixture
    def expected(self, scores):
        return {"topk_indices": scores.topk(8).indices.int()}

    @pytest.fixture
    def check(self, scores, expected):
        return check_of(INDEXER, {"scores": scores}, expected)

    def problems(self, check, found, expected):
        return check.compare({"topk_indices": found}, expected).problems

    def test_any_order_is_right(self, check, expected):
        assert check.to_extra()["topk_indices"] == {"compared_by": "score"}
        assert not self.problems(check, shuffled(expected["topk_indices"]), expected)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda i, s: s.topk(9).indices[:, 1:], "48 of 48 indices have other scores than the best; worst in row 0"),
            (lambda i, s: torch.cat([i[:, :7], s.topk(9).indices[:, 8:]], dim=1), "6 of 48 indices have other scores"),
            (lambda i, s: torch.zeros_like(i), "42 indices occur twice in their row"),
            (lambda i, s: torch.cat([i[:, :1], i[:, :-1]], dim=1), "6 indices occur twice in their row"),
            (lambda i, s: i + 100, "48 indices lie beyond all candidates"),
            (lambda i, s: torch.where(i == i[0, 0], -1, i), "entries are padding where the reference has none"),
            (lambda i, s: i.roll(1, 0), "indices have other scores than the best"),
            (lambda i, s: torch.full_like(i, -7), "48 entries are padding where the reference has none"),
        ],
    )
    def test_wrong_indices_are_told(self, check, scores, expected, change, said):
        problems = self.problems(check, change(expected["topk_indices"], scores).int(), expected)
        assert any(said in problem for problem in problems), problems

    def test_scores_beyond_a_rows_length_do_not_count(self):
        torch.manual_seed(0)
        scores, lengths = torch.randn(3, 10), torch.tensor([10, 4, 2])
        masked = scores.masked_fill(torch.arange(10) >= lengths[:, None], -torch.inf)
        indices = masked.topk(4).indices.int()
        indices[masked.gather(1, indices.long()).isinf()] = -1
        expected = {"topk_indices": indices}
        check = check_of(INDEXER, {"scores": scores, "seq_lens": lengths}, expected)
        assert check.rows["topk_indices"].scores is not None
        assert not self.problems(check, shuffled(indices), expected)
        first = self.problems(check, indices.clamp(min=0), expected)[0]
        assert "2 entries are padding where the reference has none, or the reverse" in first
        beyond = torch.tensor([indices[0].tolist(), indices[1].tolist(), [0, 9, -1, -1]])
        assert self.problems(check, beyond, expected)

    @given(st.data())
    @settings(max_examples=50, deadline=None)
    def test_it_agrees_with_the_definition_of_a_best_set(self, data):
        """Few different scores, so that there are ties."""
        count = data.draw(st.integers(2, 8))
        row = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        k = data.draw(st.integers(1, count - 1))
        found = data.draw(st.permutations(range(count)))[:k]
        scores = torch.tensor([row], dtype=torch.float32)
        expected = {"topk_indices": scores.topk(k).indices}
        check = check_of(PLAIN, {"scores": scores}, expected)
        is_best = sorted(row[i] for i in found) == sorted(row, reverse=True)[:k][::-1]
        problems = check.compare({"topk_indices": torch.tensor([found])}, expected).problems
        assert bool(problems) != is_best


class TestByOverlap:
    @pytest.fixture
    def scores(self):
        torch.manual_seed(0)
        return torch.randn(4, 8192)

    @pytest.fixture
    def expected(self, scores):
        return {"topk_indices": scores.topk(2048).indices.int()}

    @pytest.fixture
    def check(self, expected):
        return check_of(UNSCORED, {"q": torch.randn(4, 8)}, expected)

    def test_scores_that_are_rounded_a_little_are_right(self, check, scores, expected):
        assert check.to_extra()["topk_indices"] == {"compared_by": "overlap", "required_overlap": 0.98}
        found = scores.bfloat16().float().topk(2048).indices.int()
        assert set(found[0].tolist()) != set(expected["topk_indices"][0].tolist())
        verdict = check.compare({"topk_indices": found}, expected)
        assert not verdict.problems
        assert 0.99 < verdict.comparisons[0].matched_ratio < 1

    @pytest.mark.parametrize("noise", [0.1, 0.5])
    def test_other_scores_are_wrong(self, check, scores, expected, noise):
        found = (scores + noise * torch.randn_like(scores)).topk(2048).indices.int()
        (problem,) = check.compare({"topk_indices": found}, expected).problems
        assert "of 8192 indices are not among the reference's" in problem
        assert "required: 0.98" in problem

    def test_a_single_bad_row_is_wrong(self):
        torch.manual_seed(0)
        scores = torch.randn(100, 512)
        expected = {"topk_indices": scores.topk(64).indices.int()}
        check = check_of(UNSCORED, {"q": torch.randn(100, 8)}, expected)
        found = expected["topk_indices"].clone()
        found[17] = (-scores[17]).topk(64).indices.int()
        (problem,) = check.compare({"topk_indices": found}, expected).problems
        assert "worst in row 17, where 64 are" in problem

    def test_the_share_is_a_setting(self, scores, expected):
        found = (scores + 0.1 * torch.randn_like(scores)).topk(2048).indices.int()
        config = ResolvedEvalConfig(required_matched_ratio=0.8)
        check = check_of(UNSCORED, {"q": torch.randn(4, 8)}, expected, config)
        assert not check.compare({"topk_indices": found}, expected).problems


class TestValuesBeside:
    @pytest.fixture
    def definition(self):
        outputs = {"weights": "float32[n,k]", "topk_ids": "int32[n,k]", "count": "int64[]"}
        return make_definition({"logits": "float32[n,v]"}, outputs, "def run(x): x.topk(3)\n", op_type="moe_routing")

    @pytest.fixture
    def expected(self):
        torch.manual_seed(0)
        best = torch.randn(5, 64).topk(8)
        return {"weights": best.values.softmax(-1), "topk_ids": best.indices.int(), "count": torch.tensor(40)}

    def test_they_follow_their_indices(self, definition, expected):
        check = check_of(definition, {"logits": torch.randn(5, 64)}, expected)
        order = torch.rand(5, 8).argsort(dim=1)
        found = {name: expected[name].gather(1, order) for name in ("weights", "topk_ids")}
        assert not check.compare({**expected, **found}, expected).problems
        (problem,) = check.compare({**expected, "topk_ids": found["topk_ids"]}, expected).problems
        assert problem.startswith("weights: ")
        assert check.compare({**expected, "weights": expected["weights"] * 1.1}, expected).problems
        assert check.compare({**expected, "count": torch.tensor(41)}, expected).problems


REFERENCE = """
import torch
def run(q, k, weights):
    scores = (torch.relu(torch.einsum("nhd,md->nhm", q.float(), k.float())) * weights[:, :, None]).sum(1)
    return torch.topk(scores, 16).indices.int()
"""
DOT = "torch.einsum('nhd,md->nhm', q.float(), k.float())"
SOLUTIONS = {
    "sorted by index": "best = torch.topk(scores, 16).indices.int().sort(1).values",
    "without relu": f"best = torch.topk(({DOT} * weights[:, :, None]).sum(1), 16).indices.int()",
    "the best, over and over": "best = torch.topk(scores, 1).indices.int().expand(-1, 16).contiguous()",
}


@pytest.mark.parametrize("name", SOLUTIONS)
def test_an_indexer_is_judged(name):
    inputs = {"q": "bfloat16[n,4,32]", "k": "bfloat16[m,32]", "weights": "float32[n,4]"}
    definition = make_definition(inputs, {"topk_indices": "int32[n,16]"}, REFERENCE, op_type="dsa_indexer")
    torch.manual_seed(0)
    tensors = torch.randn(8, 4, 32).bfloat16(), torch.randn(200, 32).bfloat16(), torch.randn(8, 4)
    code = REFERENCE.replace("return torch.topk(scores, 16).indices.int()", f"{SOLUTIONS[name]}\n    return best")
    found = judged(definition, dict(zip(inputs, tensors, strict=True)), code)
    assert bool(found) != (name == "sorted by index")
