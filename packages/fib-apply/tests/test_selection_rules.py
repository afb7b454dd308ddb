import math

import pytest
from apply_samples import SCALE, new_solution, new_trace
from fib_apply.config import ApplyConfig
from fib_apply.key import ApplyKey, AxesOnlyKeyBuilder
from fib_apply.selection import rules
from fib_apply.selection.rankings import Candidate, HardwareRankings, Ranking
from fib_apply.selection.rules import SolutionFacts
from hypothesis import given
from hypothesis import strategies as st


def facts_on(*names, language="python", source_bytes=10):
    return [SolutionFacts(name, language, source_bytes, f"hash of {name}") for name in names]


REFERENCE = {"method": "handshake", "call_ms": 2000.0}


def names_of(ranking):
    return [] if ranking is None else [candidate.solution for candidate in ranking.candidates]


def candidate(name, latency_ms):
    """A candidate of one trace, with the reference's time of the factory."""
    return Candidate(name, latency_ms, fallback_ms=pytest.approx(1000.0))


def key_of(m):
    return ApplyKey({"M": m})


def select(traces, facts=None, builder=AxesOnlyKeyBuilder, **settings):
    listed = list(traces)
    known = facts_on(*sorted({t.solution for t in listed if t.solution})) if facts is None else facts
    return rules.select(SCALE, listed, known, ApplyConfig(**settings), builder(SCALE))


def on_cpu(*traces, **settings):
    return select(traces, **settings).rankings["cpu"]


def rank(traces, facts=None, **settings):
    """The ranking at the key M=1 on the CPU."""
    return select(traces, facts, **settings).rankings["cpu"].by_key[key_of(1)]


def test_facts_are_those_of_the_solution():
    solution = new_solution("s", "triton", "é")
    assert SolutionFacts.from_solution(solution) == SolutionFacts("s", "triton", 2, solution.hash())


class TestEvaluationsThatCount:
    def test_the_fastest_that_passed_wins(self):
        ranking = rank([new_trace("slow", 3.0), new_trace("fast", 1.0), new_trace("bad", status="RUNTIME_ERROR")])
        assert ranking == Ranking(
            (candidate("fast", 1.0), candidate("slow", 3.0)),
            "the fastest of 2",
            (("bad", "RUNTIME_ERROR on workload w1"),),
            "the reference",
        )

    def test_without_a_passing_evaluation_there_is_no_candidate(self):
        ranking = rank([new_trace("a", status="TIMEOUT")])
        assert (ranking.candidates, ranking.reason) == ((), "no solution is eligible here")

    def test_traces_of_unknown_solutions_do_not_count(self):
        ranking = rank([new_trace("gone", 0.1), new_trace("a")], facts_on("a"))
        assert names_of(ranking) == ["a"]
        assert ranking.left_out == (("gone", "the solution is missing, or its file is damaged"),)

    def test_traces_of_other_definitions_do_not_count(self):
        assert names_of(rank([new_trace("b", 0.1, definition="other"), new_trace("a")])) == ["a"]

    @pytest.mark.parametrize("flag", ["low_precision", "fixed_inputs", "interpreted"])
    def test_flagged_traces_do_not_count(self, flag):
        ranking = rank([new_trace("a", 0.1, extra={"flags": ["unsealed", flag]}), new_trace("b")])
        assert names_of(ranking) == ["b"]
        assert ranking.left_out == (("a", f"flagged {flag} on workload w1"),)

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_a_quick_pass_never_replaces_a_full_evaluation(self, order):
        full = new_trace("a", 2.0, timestamp="2026-01-01")
        quick = new_trace("a", 0.1, extra={"flags": ["quick"]}, timestamp="2026-01-02")
        ranking = rank([(full, quick)[index] for index in order])
        assert ranking.candidates == (candidate("a", 2.0),)
        ranking = rank([quick, new_trace("b", 3.0)])
        assert names_of(ranking) == ["b"]
        assert ranking.left_out == (("a", "only a quick run measured it"),)

    def test_evaluations_of_another_version_do_not_count(self):
        old = {"solution_hash": "of another"}
        ranking = rank([new_trace("a", 0.1, extra=old), new_trace("b", extra={"solution_hash": "hash of b"})])
        assert names_of(ranking) == ["b"]
        assert ranking.left_out == (("a", "only another version was measured"),)

    def test_a_failure_of_another_version_is_ignored(self):
        old = new_trace("a", status="REWARD_HACK", extra={"solution_hash": "of another"}, timestamp="2027-01-01")
        ranking = rank([new_trace("a"), old])
        assert (names_of(ranking), ranking.left_out) == (["a"], ())

    @pytest.mark.parametrize("latency", [0.0, math.nan, math.inf])
    def test_invalid_latencies_do_not_count(self, latency):
        ranking = rank([new_trace("a", latency), new_trace("b")])
        assert names_of(ranking) == ["b"]
        assert ranking.left_out[0][0] == "a"

    @pytest.mark.parametrize("errors", [(0.2, 0.0), (0.0, 0.2), (math.nan, 0.0), (0.0, math.nan)])
    def test_errors_beyond_the_bounds_do_not_count(self, errors):
        traces = [new_trace("a", 0.1, errors=errors), new_trace("b", errors=(0.1, 0.1))]
        assert names_of(rank(traces, max_atol=0.1, max_rtol=0.1)) == ["b"]
        assert names_of(rank(traces)) == ["a", "b"]

    def test_a_reward_hack_anywhere_counts_everywhere(self):
        hack = new_trace("a", m=2, status="REWARD_HACK", hardware="gpu", timestamp="2020-01-01")
        later = new_trace("a", 0.1, m=2, hardware="gpu")
        rankings = select([new_trace("a"), new_trace("b"), hack, later]).rankings
        assert names_of(rankings["cpu"].by_key[key_of(1)]) == ["b"]
        assert names_of(rankings["gpu"].by_key[key_of(2)]) == []
        assert rankings["cpu"].best is not None
        assert names_of(rankings["cpu"].best) == ["b"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("settings", "names"),
        [
            ({"exclude": "a"}, ["b", "c"]),
            ({"exclude": ["a", "b"]}, ["c"]),
            ({"only": "b"}, ["b"]),
            ({"only": ["b", "c"], "exclude": "b"}, ["c"]),
            ({"enabled": False}, []),
            ({"exclude": "unknown"}, ["a", "b", "c"]),
        ],
    )
    def test_the_settings_refuse_solutions(self, settings, names):
        ranking = rank([new_trace("a", 1.0), new_trace("b", 2.0), new_trace("c", 3.0)], **settings)
        assert names_of(ranking) == names
        assert {name for name, _ in ranking.left_out} == {"a", "b", "c"} - set(names)

    def test_what_is_refused_is_not_the_best_over_all_keys(self):
        best = select([new_trace("a", 1.0), new_trace("b", 2.0)], exclude="a").rankings["cpu"].best
        assert names_of(best) == ["b"]

    def test_the_baseline_still_has_the_time_of_the_fallback(self):
        traces = [new_trace("fast", 1.0), new_trace("slow", 3.0), new_trace("engine", 2.0)]
        ranking = rank(traces, baseline="engine", exclude="engine")
        assert names_of(ranking) == ["fast"]
        assert ranking.fallback == "the baseline 'engine'"


class TestLatestEvaluation:
    def test_by_time(self):
        late, early = (new_trace("a", latency, timestamp=f"2026-01-0{day}") for latency, day in ((1.0, 2), (5.0, 1)))
        assert rank([late, early]).candidates == (candidate("a", 1.0),)

    def test_a_later_failure_replaces_an_earlier_success(self):
        assert names_of(rank([new_trace("a"), new_trace("a", status="RUNTIME_ERROR")])) == []
        assert names_of(rank([new_trace("a", status="RUNTIME_ERROR"), new_trace("a")])) == ["a"]

    def test_a_failure_on_one_workload_of_a_key_is_enough(self):
        traces = [new_trace("a", 0.1, uuid="u"), new_trace("a", status="TIMEOUT", uuid="v"), new_trace("b", uuid="u")]
        ranking = rank(traces)
        assert names_of(ranking) == ["b"]
        assert ranking.left_out == (("a", "TIMEOUT on workload v"),)


class TestSeveralWorkloads:
    def test_latencies_and_intervals_are_geometric_means(self):
        traces = [
            new_trace("a", 1.0, uuid="u", timing={"interval_ms": [0.5, 2.0]}),
            new_trace("a", 4.0, uuid="v", timing={"interval_ms": [2.0, 8.0], "setup_ms": 1.0}),
        ]
        (candidate,) = rank(traces).candidates
        assert candidate.latency_ms == pytest.approx(2.0)
        assert candidate.interval_ms == pytest.approx((1.0, 4.0))
        assert (candidate.has_setup, candidate.workloads) == (True, 2)

    def test_one_without_interval_leaves_none(self):
        traces = [new_trace("a", 1.0, uuid="u", timing={"interval_ms": [1, 1]}), new_trace("a", 1.0, uuid="v")]
        assert rank(traces).candidates[0].interval_ms is None

    def test_running_only_easy_workloads_is_no_advantage(self):
        traces = [
            new_trace("lazy", 1.1, uuid="easy"),
            new_trace("keen", 1.0, uuid="easy"),
            new_trace("keen", 100.0, uuid="hard"),
        ]
        assert names_of(rank(traces)) == ["keen", "lazy"]

    def test_of_equally_fast_solutions_the_one_with_more_workloads_wins(self):
        traces = [new_trace("a", uuid="u"), new_trace("b", uuid="u"), new_trace("b", uuid="v")]
        assert names_of(rank(traces, [*facts_on("a"), *facts_on("b", language="cuda")])) == ["b", "a"]

    def test_tolerances_are_the_loosest(self):
        first = {"atol": 0.1, "rtol": 0.5, "required_matched_ratio": 0.9}
        second = {"atol": 0.2, "rtol": "odd", "required_matched_ratio": 1}
        traces = [new_trace("a", uuid="u", tolerance=first), new_trace("a", uuid="v", tolerance=second)]
        (candidate,) = rank(traces).candidates
        assert (candidate.atol, candidate.rtol, candidate.required_matched_ratio) == (0.2, 0.5, 0.9)

    def test_two_workloads_with_one_uuid_are_kept_apart(self):
        rankings = select([new_trace("a", m=1, uuid="u"), new_trace("b", m=2, uuid="u")]).rankings["cpu"]
        assert {key: names_of(ranking) for key, ranking in rankings.by_key.items()} == {
            key_of(1): ["a"],
            key_of(2): ["b"],
        }


class TestWinner:
    def test_is_the_simplest_within_the_margin(self):
        facts = [
            *facts_on("cuda", language="cuda"),
            *facts_on("triton", language="triton"),
            *facts_on("slow", language="python"),
            *facts_on("odd", language="abacus"),
        ]
        latencies = {"cuda": 1.0, "odd": 1.01, "triton": 1.03, "slow": 1.04}
        ranking = rank([new_trace(name, latency) for name, latency in latencies.items()], facts)
        assert names_of(ranking) == ["triton", "cuda", "odd", "slow"]
        assert ranking.reason == "the simplest of 3 that are as fast as 'cuda'"

    def test_fewer_bytes_then_names_decide_within_a_language(self):
        facts = [*facts_on("a", "z", source_bytes=5), *facts_on("b", source_bytes=4)]
        traces = [new_trace("a", 1.0), new_trace("b", 1.01), new_trace("z", 0.99)]
        assert names_of(rank(traces, facts)) == ["b", "z", "a"]
        assert names_of(rank([traces[0], traces[2]], facts)) == ["a", "z"]

    def test_intervals_decide_where_both_have_one(self):
        facts = [*facts_on("cuda", language="cuda"), *facts_on("python")]
        fast = new_trace("cuda", 1.0, timing={"interval_ms": [0.9, 1.5]})
        overlapping = new_trace("python", 1.5, timing={"interval_ms": [1.4, 1.6]})
        apart = new_trace("python", 1.01, timing={"interval_ms": [1.005, 1.02]})
        assert names_of(rank([fast, overlapping], facts)) == ["python", "cuda"]
        narrow = new_trace("cuda", 1.0, timing={"interval_ms": [0.99, 1.001]})
        assert names_of(rank([narrow, apart], facts)) == ["cuda", "python"]

    def test_with_setup_is_followed_by_the_best_without(self):
        facts = [*facts_on("planned", "simple"), *facts_on("fast", language="cuda")]
        traces = [new_trace("planned", 0.5, timing={"setup_ms": 3}), new_trace("fast", 1.0), new_trace("simple", 1.01)]
        ranking = rank(traces, facts)
        assert names_of(ranking) == ["planned", "simple", "fast"]
        assert ranking.plain == candidate("simple", 1.01)


class TestCapture:
    @pytest.mark.parametrize(
        ("timing", "may_capture"),
        [
            (None, False),
            ({"method": "handshake"}, False),
            ({"method": "handshake", "graph_safe": False, "graph_unsafe_reason": "its setup ..."}, False),
            ({"method": "handshake", "graph_safe": "true"}, False),
            ({"method": "handshake", "graph_safe": True}, True),
        ],
        ids=["no timing", "no evidence", "unsafe", "a text", "safe"],
    )
    def test_only_a_solution_whose_replays_were_verified_may_be_captured(self, timing, may_capture):
        ranking = rank([new_trace("a", timing=timing)])
        assert ranking.candidates[0].may_capture is may_capture

    def test_it_was_verified_on_all_workloads_of_the_key(self):
        safe = {"method": "handshake", "graph_safe": True}
        ranking = rank([new_trace("a", timing=safe), new_trace("a", uuid="other", timing={"method": "handshake"})])
        assert ranking.candidates[0].may_capture is False

    def test_calls_are_ranked_by_what_the_mode_pays(self):
        def timed(name, latency, call, method="handshake", **more):
            timing = {"method": method, "call_ms": call, "graph_safe": method == "handshake", **more}
            return new_trace(name, latency, timing=timing, performance={"reference_timing": REFERENCE})

        traces = [timed("a", 1.0, 30.0), timed("b", 2.0, 20.0), timed("eager", 10.0, 10.0, "eager")]
        ranking = rank(traces)
        assert [(c.solution, c.latency_ms) for c in ranking.candidates] == [("eager", 10.0), ("b", 20.0), ("a", 30.0)]
        assert ranking.candidates[1].fallback_ms == pytest.approx(2000.0)
        captured = ranking.of_captured().candidates
        assert [(c.solution, c.latency_ms) for c in captured] == [("a", 1.0), ("b", 2.0)]
        assert captured[0].fallback_ms == pytest.approx(1000.0)
        # a baseline with a setup ranks here for comparison only: it serves no captured call
        planned = timed("planned", 0.5, 50.0, graph_safe=False, setup_ms=3)
        ranking = rank([*traces, planned]).of_captured()
        assert (names_of(ranking), ranking.plain.solution) == (["planned", "a", "b"], "a")
        alone = rank([planned, timed("b", 2.0, 20.0, graph_safe=False)])
        assert alone.of_captured() is alone

    def test_an_evaluation_without_a_call_latency_leaves_one_order(self):
        without = new_trace("a", 2.0, timing={"method": "handshake"})
        ranking = rank([without, new_trace("b", 1.0, timing={"method": "handshake", "call_ms": 50.0})])
        assert [(c.solution, c.latency_ms) for c in ranking.candidates] == [("b", 1.0), ("a", 2.0)]
        assert ranking.of_captured() is ranking


class TestBaseline:
    def test_only_faster_solutions_remain(self):
        traces = [new_trace("ours", 1.0), new_trace("fast", 0.9), new_trace("same", 0.99), new_trace("slow", 2.0)]
        ranking = rank(traces, baseline="ours")
        assert names_of(ranking) == ["fast"]
        reason = "not faster than the baseline 'ours'"
        uncertain = f"{reason}: 990.00 us against 1000.00 us, a difference within the uncertainty"
        assert ranking.left_out == (("same", uncertain), ("slow", f"{reason}: 2000.00 us against 1000.00 us"))

    def test_nothing_is_selected_without_its_measurement(self):
        ranking = rank([new_trace("fast")], baseline="ours")
        assert (ranking.candidates, ranking.reason) == ((), "the baseline 'ours' has no passing evaluation here")

    def test_error_bounds_do_not_apply_to_it(self):
        traces = [new_trace("ours", 1.0, errors=(9.0, 9.0)), new_trace("fast", 0.5)]
        assert names_of(rank(traces, baseline="ours", max_atol=1.0)) == ["fast"]

    def test_it_is_compared_on_shared_workloads(self):
        traces = [
            new_trace("ours", 1.0, uuid="u"),
            new_trace("ours", 1.0, uuid="v"),
            new_trace("part", 0.9, uuid="u"),
            new_trace("other", 0.1, uuid="w"),
        ]
        assert names_of(rank(traces, baseline="ours")) == ["part"]

    def test_the_best_over_all_keys_is_faster_everywhere(self):
        traces = [new_trace("ours", m=m) for m in (1, 2)]
        traces += [new_trace("mixed", 0.1, m=1), new_trace("mixed", 5.0, m=2), new_trace("good", 0.5, m=1)]
        best = select(traces, baseline="ours").rankings["cpu"].best
        assert names_of(best) == ["good"]


class TestBest:
    def test_most_keys_count_first_then_ratios(self):
        traces = [new_trace("few", 0.1, m=1)]
        traces += [new_trace("good", latency, m=m) for m, latency in ((1, 1.0), (2, 2.0))]
        traces += [new_trace("fair", latency, m=m) for m, latency in ((1, 2.0), (2, 1.5))]
        best = select(traces).rankings["cpu"].best
        assert names_of(best) == ["good", "fair", "few"]
        assert best.candidates[0].latency_ms == pytest.approx(math.sqrt(2))
        assert best.reason == "serves 2 of 2 keys, at 3.65 times the latency of the fastest"

    def test_a_solution_that_failed_at_a_key_is_left_out(self):
        traces = [new_trace("a", m=1), new_trace("a", m=2, status="RUNTIME_ERROR"), new_trace("b", 9.0, m=1)]
        best = select(traces).rankings["cpu"].best
        assert (names_of(best), best.left_out) == (["b"], (("a", "not eligible at a key"),))

    def test_there_may_be_none(self):
        rankings = select([new_trace("a", status="TIMEOUT")]).rankings["cpu"]
        assert rankings == HardwareRankings("cpu", {key_of(1): rankings.by_key[key_of(1)]}, None)


class TestKeys:
    def test_workloads_without_key_are_left_out_and_reported(self):
        class Picky(AxesOnlyKeyBuilder):
            def build_from_workload(self, workload):
                if workload.axes["M"] == 7:
                    raise KeyError("seven")
                return super().build_from_workload(workload)

        selection = select([new_trace("a", m=7), new_trace("b", m=7), new_trace("a", m=1)], builder=Picky)
        assert list(selection.rankings["cpu"].by_key) == [key_of(1)]
        assert selection.problems == ("scale: workload 'w7' has no key: KeyError: 'seven'",)

    @pytest.mark.parametrize("feature", [[1], math.nan, {}])
    def test_invalid_keys_are_reported(self, feature):
        class Odd(AxesOnlyKeyBuilder):
            is_by_shape = False

            def build_from_workload(self, workload):
                return ApplyKey(feats={"f": feature})

        selection = select([new_trace("a")], builder=Odd)
        assert dict(selection.rankings["cpu"].by_key) == {}
        assert "invalid key" in selection.problems[0]

    def test_a_builder_that_reads_values_sees_each_workload(self):
        class ByUuid(AxesOnlyKeyBuilder):
            is_by_shape = False

            def build_from_workload(self, workload):
                return ApplyKey(feats={"uuid": workload.uuid})

        rankings = select([new_trace("a", uuid="u"), new_trace("a", uuid="v")], builder=ByUuid).rankings["cpu"]
        assert set(rankings.by_key) == {ApplyKey(feats={"uuid": "u"}), ApplyKey(feats={"uuid": "v"})}


class TestReference:
    def test_a_slower_solution_is_left_to_the_fallback(self):
        ranking = rank([new_trace("a", 3.0, reference=2.0), new_trace("b", 4.0, reference=2.0)])
        assert (ranking.candidates, ranking.reason) == ((), "none of 2 is faster than the reference")
        assert dict(ranking.left_out)["a"] == "not faster than the reference: 3000.00 us against 2000.00 us"

    def test_a_difference_within_the_margin_is_no_speedup(self):
        trace = new_trace("a", 1.98, reference=2.0)
        assert names_of(rank([trace])) == []
        assert "within the uncertainty" in rank([trace]).left_out[0][1]
        assert names_of(rank([trace], margin=0.001)) == ["a"]

    @pytest.mark.parametrize(("uncertainty_ms", "expected"), [(0.01, ["a"]), (0.06, [])])
    def test_the_uncertainty_of_the_clock_widens_both_intervals(self, uncertainty_ms, expected):
        extra = {"reference_timing": {"interval_ms": [1.99, 2.01], "uncertainty_ms": uncertainty_ms}}
        timing = {"interval_ms": [1.89, 1.91], "uncertainty_ms": uncertainty_ms}
        assert names_of(rank([new_trace("a", 1.9, reference=2.0, timing=timing, performance=extra)])) == expected

    @pytest.mark.parametrize("uncertainty", [-1.0, float("nan"), float("inf"), "1", True])
    def test_an_invalid_uncertainty_makes_the_margin_count(self, uncertainty):
        timing = {"interval_ms": [0.999, 1.001], "uncertainty_ms": uncertainty}
        ranking = rank([new_trace("a", 1.0, reference=2.0, timing=timing)])
        assert ranking.candidates[0].interval_ms is None

    @pytest.mark.parametrize("reference", [0.0, float("nan"), float("inf")])
    def test_without_a_time_of_the_fallback_nothing_is_selected(self, reference):
        ranking = rank([new_trace("a", 1.0, reference=reference)])
        assert (ranking.candidates, ranking.reason) == ((), "the reference has no recorded time here")
        assert ranking.left_out == (("a", "no time of the reference to compare with"),)

    def test_several_workloads_are_compared_by_their_mean(self):
        slow = new_trace("a", 3.0, reference=2.0, uuid="u")
        assert names_of(rank([slow, new_trace("a", 1.0, reference=2.0, uuid="v")])) == ["a"]
        assert names_of(rank([slow, new_trace("a", 1.5, reference=2.0, uuid="v")])) == []

    def test_the_option_turns_the_comparison_off(self):
        ranking = rank([new_trace("a", 3.0, reference=2.0)], require_speedup=False)
        assert names_of(ranking) == ["a"]
        assert ranking.candidates[0].fallback_ms == pytest.approx(2.0)

    def test_the_best_over_all_keys_is_slower_at_none(self):
        traces = [new_trace("a", 1.0, reference=2.0, m=1), new_trace("a", 9.0, reference=2.0, m=2)]
        traces += [new_trace("b", 1.5, reference=2.0, m=1)]
        assert names_of(on_cpu(*traces).best) == ["b"]


class TestTimeOfBaseline:
    def interleaved(self, name, latency_ms):
        return {"baseline": {"solution": name, "latency_ms": latency_ms, "speedup_factor": 1.0, "timing": {}}}

    def test_its_time_counts_and_not_that_of_the_reference(self):
        ranking = rank([new_trace("ours", 2.0), new_trace("a", 3.0, reference=100.0)], baseline="ours")
        assert (names_of(ranking), ranking.fallback) == ([], "the baseline 'ours'")

    def test_a_time_that_was_interleaved_is_preferred(self):
        trace = new_trace("a", 3.0, performance=self.interleaved("ours", 4.0))
        assert names_of(rank([new_trace("ours", 2.0), trace], baseline="ours")) == ["a"]
        assert rank([trace], baseline="ours").candidates[0].fallback_ms == pytest.approx(4.0)

    def test_that_of_another_baseline_does_not_count(self):
        trace = new_trace("a", 3.0, performance=self.interleaved("another", 4.0))
        assert rank([trace], baseline="ours").reason == "the baseline 'ours' has no passing evaluation here"


class TestFallbackEquivalents:
    """A solution that is the fallback in another form, as an adapter states, sets the fallback's time."""

    @pytest.mark.parametrize(
        ("latency", "interval", "expected"),
        [
            (0.99, None, False),
            (0.5, None, True),
            (0.5, (0.4, 0.95), False),
            (0.99, (0.98, 0.985), False),
            (0.8, (0.79, 0.81), True),
        ],
    )
    def test_a_candidate_must_be_faster_beyond_the_uncertainty(self, latency, interval, expected):
        own = Candidate("ours", 1.0, None if interval is None else (0.95, 1.05))
        if latency == 0.99 and interval is not None:
            own = Candidate("ours", 1.0, (0.982, 1.05))
        assert Candidate("a", latency, interval).is_faster_than_equivalent(own, 0.03) is expected

    def test_other_numbers_of_workloads_are_compared_by_speedup(self):
        own = Candidate("ours", 4.0, workloads=2, fallback_ms=8.0)
        assert Candidate("a", 5.0, fallback_ms=20.0).is_faster_than_equivalent(own, 0.03)
        assert not Candidate("a", 3.0, fallback_ms=4.0).is_faster_than_equivalent(own, 0.03)


TRACES = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.floats(1e-3, 1e3),
        st.integers(1, 2),
        st.sampled_from("uv"),
        st.sampled_from(["PASSED"] * 5 + ["TIMEOUT", "REWARD_HACK"]),
        st.none() | st.tuples(st.floats(0.5, 1.0), st.floats(1.0, 2.0)),
    ),
    min_size=1,
    unique_by=lambda row: (row[0], row[2], row[3]),
)
FACTS = [
    SolutionFacts("a", "python", 9, ""),
    SolutionFacts("b", "cuda", 9, ""),
    SolutionFacts("c", "python", 5, ""),
    SolutionFacts("d", "cuda", 5, ""),
]


def traces_of(rows):
    return [
        new_trace(
            name,
            latency,
            m=m,
            uuid=f"{m}{uuid}",
            status=status,
            timing=None if factors is None else {"interval_ms": [latency * factors[0], latency * factors[1]]},
        )
        for name, latency, m, uuid, status, factors in rows
    ]


@given(rows=TRACES, data=st.data(), baseline=st.sampled_from([None, "a"]))
def test_the_order_of_traces_does_not_matter(rows, data, baseline):
    traces = traces_of(rows)
    shuffled = data.draw(st.permutations(traces))
    first, second = select(traces, FACTS, baseline=baseline), select(shuffled, FACTS, baseline=baseline)
    assert first == second


@given(rows=TRACES, margin=st.floats(0.0, 0.5))
def test_the_winner_is_not_slower_than_the_fastest_beyond_interval_or_margin(rows, margin):
    one_workload_per_key = [row for row in rows if row[3] == "u"]
    for rankings in select(traces_of(one_workload_per_key), FACTS, margin=margin).rankings.values():
        for ranking in rankings.by_key.values():
            if not ranking.candidates:
                continue
            winner = ranking.candidates[0]
            fastest = min(ranking.candidates, key=lambda c: c.latency_ms)
            others = [c.latency_ms for c in ranking.candidates[1:]]
            assert others == sorted(others)
            if winner.interval_ms and fastest.interval_ms:
                assert winner.interval_ms[0] <= fastest.interval_ms[1] * (1 + 1e-9)
            else:
                assert winner.latency_ms <= fastest.latency_ms * (1 + margin) * (1 + 1e-9)
