"""Tests of the choice of solutions for the published run, over the public data set."""

import sys
from pathlib import Path

import pytest
from fib_schema import TraceSet
from public_data_set import data_set_path, needs_data_set

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "packages" / "fib-bench" / "benchmarks"))

from bench_light import count  # noqa: E402
from published_set import choose  # noqa: E402

pytestmark = needs_data_set


def test_a_run_covers_forty_definitions_with_solutions_of_our_own():
    chosen = choose(TraceSet.from_path(data_set_path()), "NVIDIA H200", 3)
    assert len(chosen) > 100
    assert sum(any(solution.author == "fib" for solution in one.solutions) for one in chosen) > 100
    assert all(1 <= len(one.workloads) <= 3 for one in chosen)


@pytest.mark.slow
def test_light_can_be_stated_for_80_percent_of_the_workloads():
    known, total = (sum(counts[index] for counts in count(data_set_path()).values()) for index in (0, 1))
    assert total > 100
    assert known >= 0.8 * total
