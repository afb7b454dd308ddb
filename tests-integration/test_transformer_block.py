"""The end-to-end script `transformer_block`, run small on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from public_data_set import data_set_path, needs_data_set

HERE = Path(__file__).parent
PARTS = ["input_norm", "qkv", "attention", "o", "post_norm", "down"]


pytestmark = [needs_data_set, pytest.mark.slow]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The numbers that the script writes.

    The backend ``aot_eager`` does all that ``eager`` does, and functionalises the graph.
    """
    out = tmp_path_factory.mktemp("out")
    options = ["--device", "cpu", "--small", "--seconds", "0.01", "--batches", "1", "4", "--backend", "aot_eager"]
    command = [sys.executable, HERE / "transformer_block.py", data_set_path(), "--out", out, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "## Overhead of apply" in (out / "report.md").read_text("utf-8")
    numbers: dict[str, Any] = json.loads((out / "numbers.json").read_text("utf-8"))
    return numbers


def test_two_solutions_of_each_part_pass(run: dict[str, Any]) -> None:
    passed = [row["definition"] for row in run["benchmark"] if row["status"] == "PASSED"]
    assert len(passed) == len(run["benchmark"])
    assert {passed.count(name) for name in passed} == {4}
    assert len(set(passed)) == len(PARTS)


def test_chosen_solution_serves_each_part(run: dict[str, Any]) -> None:
    assert [(row["batch"], row["part"]) for row in run["served"]] == [
        (batch, part) for batch in (1, 4) for part in PARTS
    ]
    for row in run["served"]:
        assert row["solution"]
        assert row["eager"] == 1


def test_results_with_and_without_apply_agree(run: dict[str, Any]) -> None:
    assert run["problems"] == []
    assert len(run["agreement"]) == 8  # two batches, two modes, with and without


def test_times_and_overheads_are_reported(run: dict[str, Any]) -> None:
    assert [(row["batch"], row["mode"]) for row in run["block_us"]] == [
        (batch, mode) for batch in (1, 4) for mode in ("eager", "compiled")
    ]
    assert [row["unit"] for row in run["overhead"]] == ["us", "us", "ns"]
    assert all(row["direct"] > 0 and row["routed"] > 0 for row in run["overhead"])
