"""Tests of the script that measures on a GPU: its options, its budget, and the order of workloads."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="needs a checkout: the benchmarks are not in the wheel")


def load(name: str) -> ModuleType:
    """A module of the benchmarks' folder."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))


class TestBudget:
    def test_it_is_spent_when_its_seconds_have_passed(self) -> None:
        now = [100.0]
        budget = load("gpu_report").Budget(10.0, lambda: now[0])
        now[0] = 104.0
        assert (budget.is_spent, budget.left, budget.share(0.5).seconds) == (False, 6.0, 3.0)
        now[0] = 110.0
        assert (budget.is_spent, budget.left) == (True, 0.0)


class TestOrder:
    @given(st.lists(st.integers(1, 10_000), max_size=60))
    def test_every_workload_comes_once(self, sizes: list[int]) -> None:
        assert sorted(load("gpu_session").spread(sizes, float)) == sorted(sizes)

    def test_the_smallest_and_the_largest_come_first(self) -> None:
        assert load("gpu_session").spread(range(9), float) == [0, 8, 4, 2, 6, 1, 5, 3, 7]


class TestReport:
    def test_a_section_has_a_table_and_numbers_of_its_own(self, tmp_path: Path) -> None:
        report = load("gpu_report").Report.of_section(tmp_path, "same")
        report.table("Ratios", ("ratio",), [("a|b",)])
        report.numbers["same"] = [1]
        report.save()
        assert "| a/b |" in (tmp_path / "same.md").read_text("utf-8")
        assert '"same"' in (tmp_path / "same.json").read_text("utf-8")


class TestBusyHost:
    @pytest.fixture
    def spinning(self, monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
        started: list[subprocess.Popen[bytes]] = []
        original = subprocess.Popen

        def start(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
            started.append(original(*arguments, **options))  # type: ignore[call-overload]
            return started[-1]

        monkeypatch.setattr(subprocess, "Popen", start)
        return started

    def test_one_process_per_core_ends_with_the_block(self, spinning: list[subprocess.Popen[bytes]]) -> None:
        with load("gpu_honesty").busy_host() as count:
            assert [process.poll() for process in spinning] == [None] * count
            assert count == os.cpu_count()
        assert all(process.poll() is not None for process in spinning)


class TestOptions:
    def test_documented_sections_exist(self) -> None:
        module = load("on_gpu")
        assert all(f"``{name}``" in str(module.__doc__) for name in module.SECTIONS)

    def test_all_sections_with_a_limit_run_by_default(self) -> None:
        options = load("on_gpu")._parser().parse_args(["--dataset", "x"])
        limited = ("same", "repeat", "cupti", "uncertainty", "exploits", "honest", "coverage", "exclusive")
        assert tuple(options.sections) == limited
