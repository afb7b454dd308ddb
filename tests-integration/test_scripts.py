"""The scripts of this folder and of `engines/`: short runs of what their authors run for minutes or on a GPU."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from fib_compile.device import is_cuda_available
from public_data_set import data_set_path, needs_data_set

FOLDER = Path(__file__).parent


def run(script, *words):
    """Run a script, which has to end well; returns what it prints."""
    command = [sys.executable, str(FOLDER / script), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_disturbed_server_answers_like_one_without_routing():
    run("serving_chaos.py", "--seconds", 40, "--seed", 9, "--stall-ms", "inf")


@pytest.mark.slow
def test_threads_get_right_answers_during_reloads_quarantines_and_forks(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path))
    assert "0 wrong answers" in run("routed_calls.py", "--calls", 100_000, "--seed", 3)


@pytest.mark.slow
class TestBadDataSets:
    """A sample of the kinds, and commands without torch; all of them take about an hour on two cores."""

    def test_the_kinds_are_many_and_a_healthy_set_passes(self):
        kinds, _, commands = run("bad_data_sets.py", "--list").partition("\n\n")
        assert len(kinds.splitlines()) > 600
        assert len(commands.splitlines()) >= 37
        run("bad_data_sets.py", "--only", "healthy", "--light")

    def test_a_sample_of_bad_sets_costs_only_itself(self):
        run("bad_data_sets.py", "--sample", 40, "--light")


@pytest.mark.slow
def test_all_adapters_pass_with_stand_ins_for_flashinfer(tmp_path):
    run("engines/flashinfer_adapters.py", "--stand-ins", "0.6.4", "--out", tmp_path)
    rows = json.loads((tmp_path / "results.json").read_text("utf-8"))["rows"]
    assert len(rows) >= 18
    for row in rows:
        assert (row["is_bit_equal"], row["is_traced"]) == (True, True), row
        assert row["largest_error"] is not None
        assert row["baseline_status"] == "PASSED"


@needs_data_set
class TestGraphWrappers:
    """Decode wrappers for CUDA graphs, which are run or replayed after later plans."""

    @pytest.mark.slow
    def test_runs_agree_with_the_stand_ins(self):
        printed = run("engines/graph_wrappers.py", data_set_path(), "--stand-ins", "0.6.4")
        assert printed.count("all answers agree") == 1

    @pytest.mark.gpu
    @pytest.mark.skipif(find_spec("flashinfer") is None, reason="needs FlashInfer")
    def test_replays_agree_with_flashinfer(self):
        if not is_cuda_available():
            pytest.skip("there is no CUDA device")
        assert run("engines/graph_wrappers.py", data_set_path()).count("all answers agree") == 2
