"""The self-test: every trick is caught, no honest habit is, and the command says so."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec

import attrs
import pytest
from fib_bench.cli.main import main
from fib_bench.cli.selftest_command import print_selftest, summary_of
from fib_bench.selftest import Case, Outcome, SelfTest, choose, load_cases, run_selftest
from fib_bench.selftest.definitions import OPS
from fib_schema import UnknownName
from rich.console import Console

CASES = load_cases()
ADVERSARIES = [case for case in CASES if case.suite == "adversaries"]
HONEST = [case for case in CASES if case.suite == "honest"]
ON_CPU = [case for case in CASES if "cpu" in case.devices and not case.slow_build]
QUICK = {"warmup_runs": 3, "iterations": 10, "measure_seconds": 0.1, "num_trials": 2}
GPU_ONLY_ROWS = {1, 14, 16}


class TestCases:
    def test_every_row_has_a_trick_on_the_devices_where_it_exists(self) -> None:
        assert {case.row for case in ADVERSARIES} == set(range(1, 24))
        assert {case.row for case in ADVERSARIES if "cpu" in case.devices} == set(range(1, 24)) - GPU_ONLY_ROWS

    def test_nothing_but_low_precision_library_calls_and_false_cpu_times_may_pass(self) -> None:
        for case in ADVERSARIES:
            if case.flags == {"unranked: cpu timing"}:
                assert list(case.devices) == ["cpu"]
            elif "PASSED" in case.expect:
                assert case.row in {17, 18}, case
                assert (case.flags == {"low_precision"}) is (case.row == 17), case
                assert case.unflagged is (case.row == 18), case

    def test_the_honest_suite_has_all_languages_and_many_ops(self) -> None:
        assert len([case for case in HONEST if "cpu" in case.devices]) >= 40
        assert {case.language for case in HONEST} == {"python", "triton", "tilelang", "cpp", "cuda"}
        assert {case.binding for case in HONEST} == {None, "torch"}
        assert len({OPS[case.definition].op_type for case in HONEST}) >= 15
        assert all(case.expect == {"PASSED"} and case.unflagged for case in HONEST)

    @pytest.mark.parametrize("suite", ["adversaries", "honest"])
    def test_every_file_is_used(self, suite: str) -> None:
        there = {f.name for f in files("fib_bench.selftest").joinpath(suite).iterdir() if f.name != "index.toml"}
        used = {source.path for case in CASES if case.suite == suite for source in case.solution().sources}
        assert {name for name in there if not name.startswith("__")} == used

    @pytest.mark.parametrize("name", OPS)
    def test_definitions_are_valid_and_used(self, name: str) -> None:
        definition = OPS[name].definition(name)
        for kind in ("cpu", "cuda"):
            assert OPS[name].workload(name, kind).axes.keys() == set(definition.var_axes)
        assert any(case.definition == name for case in CASES)

    def test_cases_are_chosen_by_row_suite_definition_and_name(self) -> None:
        assert {case.row for case in choose(CASES, ["5"])} == {5}
        assert choose(CASES, ["honest"]) == tuple(HONEST)
        assert {case.definition for case in choose(CASES, ["softmax"])} == {"softmax"}
        assert [case.file for case in choose(CASES, ["13_forged_reply", "by_shape"])] == [
            "05_by_shape",
            "13_forged_reply",
        ]
        with pytest.raises(UnknownName, match="self-test case"):
            choose(CASES, ["99"])


def explain(outcomes: Sequence[Outcome]) -> str:
    return "\n".join(f"{o.case.file}: {o.found}, not {' or '.join(o.case.expected)}: {o.evidence}" for o in outcomes)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_server")
class TestSuites:
    def run(self, cases: Sequence[Case]) -> SelfTest:
        return run_selftest(cases, "cpu", **QUICK)

    def test_every_trick_is_caught_on_the_cpu(self) -> None:
        result = self.run([case for case in ON_CPU if case.row is not None])
        bad = [outcome for outcome in result.outcomes if not outcome.holds]
        assert not bad, explain(bad)
        assert len(result.outcomes) > 45

    def test_no_honest_solution_is_flagged_on_the_cpu(self) -> None:
        languages = {"python", "cpp"} | ({"triton"} if find_spec("triton") else set())
        cases = [case for case in ON_CPU if case.row is None and case.language in languages]
        result = self.run(cases)
        bad = [outcome for outcome in result.outcomes if not outcome.holds]
        assert not bad, explain(bad)
        assert len(result.outcomes) >= 40


def outcome(case: Case, status: str, flags: tuple[str, ...] = ()) -> Outcome:
    return Outcome(case, status, flags, "because", 1.0, {"level": 2, "name": "confined"})


class TestOutcomes:
    ROUGH = next(case for case in ADVERSARIES if case.file == "17_ten_bits")
    LIBRARY = next(case for case in ADVERSARIES if case.file == "18_reference")
    TRICK = next(case for case in ADVERSARIES if case.file == "05_by_shape")

    @pytest.mark.parametrize(
        ("case", "status", "flags", "holds"),
        [
            (TRICK, "REWARD_HACK", (), True),
            (TRICK, "PASSED", (), False),
            (TRICK, "TIMEOUT", (), False),
            (ROUGH, "PASSED", ("low_precision",), True),
            (ROUGH, "PASSED", (), False),
            (LIBRARY, "PASSED", (), True),
            (LIBRARY, "PASSED", ("unranked: cpu timing", "interpreted"), True),
            (LIBRARY, "PASSED", ("low_precision",), False),
            (HONEST[0], "REWARD_HACK", (), False),
            (HONEST[0], "NOT_RUN", (), False),
        ],
    )
    def test_what_must_come_out(self, case: Case, status: str, flags: tuple[str, ...], holds: bool) -> None:
        assert outcome(case, status, flags).holds is holds

    def test_one_bad_outcome_is_enough(self) -> None:
        good, bad = outcome(self.TRICK, "REWARD_HACK"), outcome(HONEST[0], "REWARD_HACK")
        assert SelfTest("cpu", (good,)).holds
        assert not SelfTest("cpu", (good, bad)).holds

    def test_the_table_shows_verdicts_evidence_and_isolation(self) -> None:
        result = SelfTest("cpu", (outcome(self.TRICK, "REWARD_HACK"), outcome(HONEST[0], "REWARD_HACK")))
        console = Console(width=160, record=True)
        print_selftest(console, result)
        printed = console.export_text()
        assert re.search(r"5 .* keeps outputs by shape .* REWARD_HACK .* because", printed)
        assert f"{HONEST[0].file}: found REWARD_HACK, expected PASSED: because" in printed
        assert "1 of 1 exploits ended as expected, 0 of 1 honest solutions passed unflagged" in summary_of(result)
        assert printed.rstrip().endswith("isolation of workers: level 2 (confined)")

    def test_the_lowest_level_of_isolation_is_told(self) -> None:
        one = outcome(self.TRICK, "REWARD_HACK")
        two = attrs.evolve(one, isolation={"level": 1, "name": "process"})
        assert SelfTest("cpu", (one, two)).isolation == {"level": 1, "name": "process"}
        assert "isolation of workers: unknown" in summary_of(SelfTest("cpu", (attrs.evolve(one, isolation=None),)))


@pytest.mark.usefixtures("shared_server")
class TestCommand:
    def test_says_in_json_and_by_its_exit_code_what_came_out(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["selftest", "--only", "11_zeros", "scale_plain", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["holds"] is True
        assert Counter(case["status"] for case in told["cases"]) == {"INCORRECT_NUMERICAL": 1, "PASSED": 1}

    def test_a_word_that_names_nothing_is_an_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["selftest", "--only", "nothing-of-this-name"]) == 2
        assert "no self-test case" in capsys.readouterr().err
