import attrs
import pytest
from fib_schema import InvalidField, SpeedupMetrics, TraceSet, UnknownName


@pytest.fixture
def leaderboard(definition, make_solution, make_trace):
    """Two definitions; baseline takes 4 ms everywhere."""
    other = attrs.evolve(definition, name="other", op_type="norm")

    def solutions(name):
        return [
            make_solution(f"{name}_{author}", author.rstrip("2"), definition=name)
            for author in ("baseline", "ada", "ada2", "bob")
        ]

    def trace(name, author, uuid, latency, **options):
        return make_trace(f"{name}_{author}", uuid, latency=latency, definition=name, **options)

    traces = {
        "gemm": [
            trace("gemm", "baseline", "a", 4.0),
            trace("gemm", "baseline", "b", 4.0),
            trace("gemm", "ada", "a", 3.0),
            trace("gemm", "ada", "a", 2.0),
            trace("gemm", "ada", "b", 1.0),
            trace("gemm", "ada", "c", 0.001),
            trace("gemm", "ada2", "a", 0.1),
            trace("gemm", "ada2", "b", 1.0, status="TIMEOUT"),
            trace("gemm", "bob", "a", 8.0),
        ],
        "other": [trace("other", "baseline", "a", 4.0), trace("other", "bob", "a", 1.0)],
    }
    return TraceSet(
        definitions={"gemm": definition, "other": other},
        solutions={"gemm": solutions("gemm"), "other": solutions("other")},
        traces=traces,
    )


def test_a_score_is_the_mean_speedup_of_the_fastest_traces_on_shared_workloads(leaderboard):
    assert leaderboard.get_solution_score("gemm_ada") == SpeedupMetrics((4 / 2 + 4 / 1) / 2, 2)
    assert leaderboard.get_solution_score("gemm_bob") == SpeedupMetrics(0.5, 1)


def test_one_failure_makes_the_score_zero(leaderboard):
    assert leaderboard.get_solution_score("gemm_ada2").avg_speedup == 0.0


def test_nothing_to_compare_is_no_score(leaderboard):
    assert leaderboard.get_solution_score("gemm_baseline") is None
    assert leaderboard.get_solution_score("nobody") is None
    assert leaderboard.get_solution_score("other_ada") is None


def test_an_author_counts_with_the_best_solution_of_each_definition(leaderboard):
    assert leaderboard.get_author_score("ada") == SpeedupMetrics(3.0, 2)
    assert leaderboard.get_author_score("bob").avg_speedup == (0.5 + 4.0) / 2
    assert leaderboard.get_author_score("bob", op_type="norm").avg_speedup == 4.0
    assert leaderboard.get_author_score("bob", definition_name="gemm").avg_speedup == 0.5
    assert leaderboard.get_author_score("baseline") is None
    assert leaderboard.get_author_score("nobody") is None


def test_authors_are_ranked_by_score_then_name(leaderboard):
    assert [name for name, _ in leaderboard.rank_authors()] == ["ada", "bob"]
    assert [name for name, _ in leaderboard.rank_authors(op_type="norm")] == ["bob"]
    assert [name for name, _ in leaderboard.rank_authors("bob", definition_name="gemm")] == ["ada", "baseline"]


def test_scopes_are_checked(leaderboard):
    with pytest.raises(UnknownName, match="did you mean 'gemm'"):
        leaderboard.rank_authors(definition_name="gem")
    with pytest.raises(KeyError):
        leaderboard.get_author_score("ada", definition_name="gem")
    with pytest.raises(ValueError, match="not both"):
        leaderboard.rank_authors(op_type="norm", definition_name="gemm")


def test_the_baseline_must_be_one_solution(leaderboard):
    with pytest.raises(InvalidField, match="'nobody' has no solution"):
        leaderboard.rank_authors("nobody")
    with pytest.raises(ValueError, match="'ada' has 2 solutions"):
        leaderboard.get_solution_score("gemm_bob", baseline_author="ada")


@pytest.mark.parametrize("latency", [0.0, float("nan"), float("inf")])
def test_an_impossible_latency_is_refused(leaderboard, make_trace, latency):
    leaderboard.add_traces([make_trace("other_ada", "a", latency=latency, definition="other")])
    with pytest.raises(InvalidField, match="not a positive number"):
        leaderboard.get_solution_score("other_ada")


def test_a_summary_counts_and_ranks_what_has_a_baseline(leaderboard):
    found = leaderboard.summary()
    assert (found.total, found.passed, found.failed) == (11, 10, 1)
    assert found.rankings == tuple(leaderboard.rank_authors())
    assert leaderboard.summary("nobody").rankings == ()
    assert leaderboard.summary(op_type="norm").total == 2


def test_scores_follow_additions(leaderboard, make_trace):
    before = leaderboard.get_solution_score("other_bob").avg_speedup
    leaderboard.add_traces([make_trace("other_bob", "a", latency=0.5, definition="other")])
    assert leaderboard.get_solution_score("other_bob").avg_speedup == 2 * before


def test_flagged_traces_take_no_part(leaderboard, make_trace):
    flagged = make_trace("gemm_bob", "b", latency=0.5, flags=["low_precision"])
    harmless = make_trace("gemm_bob", "a", latency=4.0, flags=["fixed_inputs"])
    leaderboard.add_traces([flagged, harmless])
    assert leaderboard.get_solution_score("gemm_bob") == SpeedupMetrics(1.0, 1)
    assert leaderboard.get_author_score("bob", definition_name="gemm") == SpeedupMetrics(1.0, 1)
    assert dict(leaderboard.rank_authors(definition_name="gemm"))["bob"].avg_speedup == 1.0
    assert dict(leaderboard.summary(definition_name="gemm").rankings)["bob"].avg_speedup == 1.0
