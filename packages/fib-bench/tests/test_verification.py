"""Tests of verification: all that is timed is verified."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable

import pytest
import torch
from fib_bench.judge.prepared import InputSet, two_of
from fib_schema import Definition, Evaluation, EvaluationStatus, Solution, Workload

UNTIMED_CALLS = 8
"""With the settings of `evaluate`: one on each of five input sets, and one to warm up in each phase."""
LARGE = 1 << 14
"""Here timed calls get mixtures of two sets' elements; fewer elements are rescaled as well."""

Evaluate = Callable[..., list[Evaluation]]
MakeSolution = Callable[..., Solution]
MakeWorkload = Callable[..., Workload]
Judged = Callable[..., Evaluation]


@pytest.fixture
def judged(
    evaluate: Evaluate, make_solution: MakeSolution, make_workload: MakeWorkload, definition: Definition
) -> Judged:
    """Evaluates a solution on one workload of the size given."""

    def run(code: str, *, n: int = 8, dps: bool = False, **fields: object) -> Evaluation:
        workloads = [make_workload(definition, {"n": n})]
        (evaluation,) = evaluate(make_solution(textwrap.dedent(code), dps=dps), workloads=workloads, **fields)
        return evaluation

    return run


class TestTimedCallsAreVerified:
    def test_work_that_is_skipped_when_it_is_timed_is_missed(self, judged: Judged) -> None:
        evaluation = judged(
            f"""
            calls = 0
            def run(x, y):
                global calls
                calls += 1
                if calls <= {UNTIMED_CALLS}:
                    y.copy_(x * 2)
            """,
            dps=True,
        )
        assert evaluation.status is EvaluationStatus.REWARD_HACK
        assert evaluation.log.endswith("\n32 of 32 timed calls wrote no outputs")

    @pytest.mark.parametrize("skipped", ["y[0] = 1", "y.zero_()", "y.copy_(x)"])
    def test_work_that_is_skipped_with_something_written_is_missed_too(self, judged: Judged, skipped: str) -> None:
        evaluation = judged(
            f"""
            calls = 0
            def run(x, y):
                global calls
                calls += 1
                if calls <= {UNTIMED_CALLS}:
                    y.copy_(x * 2)
                else:
                    {skipped}
            """,
            dps=True,
            iterations=20,
        )
        assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL
        assert evaluation.log.startswith("timed calls: output 'y': ")
        assert evaluation.correctness is not None

    def assert_kept(self, evaluation: Evaluation) -> None:
        """Planted inputs that show it are evidence of an exploit; fresh ones show wrong outputs."""
        first, _, _ = evaluation.log.partition("\n")
        if evaluation.status is EvaluationStatus.REWARD_HACK:
            assert first.startswith("kept outputs")
        else:
            assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL
        assert re.search(r"output 'y': \d+ of \d+ elements are wrong", evaluation.log)
        assert evaluation.correctness is not None or evaluation.status is EvaluationStatus.REWARD_HACK

    def test_outputs_kept_by_the_address_of_the_input_are_stale(self, judged: Judged) -> None:
        evaluation = judged(
            """
            kept = {}
            def run(x):
                if x.data_ptr() not in kept:
                    kept[x.data_ptr()] = x * 2
                return kept[x.data_ptr()]
            """,
            iterations=100,
        )
        self.assert_kept(evaluation)

    @pytest.mark.parametrize("n", [8, LARGE])
    def test_outputs_kept_by_the_address_and_checked_once_are_stale(self, judged: Judged, n: int) -> None:
        """The addresses of timed calls are all known from the first pass on: their values are not."""
        evaluation = judged(
            f"""
            calls, kept = 0, {{}}
            def run(x):
                global calls
                calls += 1
                if calls <= {UNTIMED_CALLS}:
                    return x * 2
                if x.data_ptr() not in kept:
                    kept[x.data_ptr()] = x * 2
                return kept[x.data_ptr()]
            """,
            n=n,
            iterations=200,
        )
        self.assert_kept(evaluation)
        assert "timed calls: output 'y': " in evaluation.log

    def test_outputs_kept_by_a_few_of_the_values_belong_to_other_inputs(self, judged: Judged) -> None:
        evaluation = judged(
            """
            kept = {}
            def run(x):
                key = tuple(x[:3].tolist())
                if key not in kept:
                    kept[key] = x * 2
                return kept[key]
            """,
            n=LARGE,
            iterations=200,
            distributions=("normal",),  # the others have some of the same values
        )
        self.assert_kept(evaluation)
        assert "timed calls: output 'y': " in evaluation.log

    @pytest.mark.parametrize("n", [8, LARGE])
    def test_work_for_known_inputs_only_is_missed(self, judged: Judged, n: int) -> None:
        evaluation = judged(
            f"""
            calls, known = 0, set()
            def run(x, y):
                global calls
                calls += 1
                key = x.numpy().tobytes()
                if calls <= {UNTIMED_CALLS}:
                    known.add(key)
                if key in known:
                    y.copy_(x * 2)
                else:
                    y.copy_(x)
            """,
            n=n,
            dps=True,
        )
        assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL
        assert evaluation.log.startswith("timed calls: output 'y': ")

    def test_writing_to_inputs_only_when_timed_is_an_error(self, judged: Judged) -> None:
        evaluation = judged(
            f"""
            calls = 0
            def run(x):
                global calls
                calls += 1
                y = x * 2
                if calls > {UNTIMED_CALLS}:
                    x[-1] += 1
                return y
            """,
            iterations=50,
        )
        assert evaluation.status is EvaluationStatus.RUNTIME_ERROR
        assert "a function must not write to its inputs" in evaluation.log

    def test_work_that_is_left_to_a_thread_is_missed(self, judged: Judged) -> None:
        evaluation = judged(
            """
            import threading
            def late(x, y):
                import time
                time.sleep(1e6)  # or it might be done when the judge looks again
                y.copy_(x * 2)
            def run(x, y):
                threading.Thread(target=late, args=(x, y), daemon=True).start()
            """,
            dps=True,
        )
        assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL

    def test_planted_inputs_cannot_be_told_by_coming_again(self, judged: Judged) -> None:
        """It works honestly for a while, and then only for inputs that it has met before."""
        evaluation = judged(
            """
            calls, met = 0, set()
            def run(x, y):
                global calls
                calls += 1
                key = tuple(x[:3].tolist())
                if calls < 60 or key in met:
                    y.copy_(x * 2)
                else:
                    y.copy_(x)
                met.add(key)
            """,
            dps=True,
            iterations=300,
        )
        assert evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL
        assert evaluation.log.startswith("timed calls: output 'y': ")

    def test_outputs_that_are_kept_by_all_values_make_no_slow_function_fast(self, judged: Judged) -> None:
        """Of a slow function many calls are verified, with few known outputs."""
        evaluation = judged(
            """
            import time
            kept = {}
            def run(x):
                key = x.numpy().tobytes()
                if key not in kept:
                    time.sleep(0.003)
                    kept[key] = x * 2
                return kept[key]
            """,
            iterations=200,
        )
        if evaluation.status is EvaluationStatus.PASSED:
            assert evaluation.performance is not None
            assert evaluation.performance.latency_ms >= 3

    @pytest.mark.parametrize("n", [8, LARGE])
    def test_no_two_timed_calls_have_the_same_inputs(self, judged: Judged, n: int) -> None:
        """Of all calls that are timed, no two have the same inputs."""
        evaluation = judged(
            """
            def run(x):
                print(hash(x.numpy().tobytes()), end=" ")
                return x * 2
            """,
            n=n,
            iterations=100,
        )
        assert evaluation.status is EvaluationStatus.PASSED
        timed = evaluation.log.split()[UNTIMED_CALLS : UNTIMED_CALLS + 100]  # before the judge's own clock runs
        assert len(set(timed)) == len(timed) == 100


def test_two_sets_are_different_ones_if_there_are_two() -> None:
    first, second, third = (InputSet("normal", torch.zeros(0), torch.zeros(0), {}) for _ in range(3))
    assert two_of([first]) == (first, first)
    pairs = {(id(a), id(b)) for a, b in (two_of([first, second, third]) for _ in range(200))}
    assert len(pairs) == 6
