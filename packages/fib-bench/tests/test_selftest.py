"""Tests of the self-test: exploits are rejected or gain nothing, and honest solutions pass."""

import json
import re
from collections import Counter
from importlib import import_module
from importlib.util import find_spec

import attrs
import pytest
from fib_bench import make_inputs
from fib_bench.cli.main import main
from fib_bench.cli.selftest import text_of
from fib_bench.selftest import ROW_NAMES, Gain, Outcome, SelfTest, choose, load_cases, run_selftest
from fib_bench.selftest.cases import with_twins
from fib_bench.selftest.definitions import OPS, data_folder
from fib_bench.timing.handshake import native
from fib_bench.worker import host_reads
from fib_bench.worker.passes import Passes, PreparedCall
from fib_bench.worker.tamper_check import Watch
from fib_schema import SupportedLanguages, UnknownName
from fib_schema.trace_facts import Timing

CASES = load_cases()
EXPLOITS = [case for case in CASES if case.suite == "exploits"]
HONEST = [case for case in CASES if case.suite == "honest"]
TWINS = [case for case in CASES if case.suite == "twins"]
ON_CPU = [case for case in CASES if "cpu" in case.devices and not case.slow_build]
QUICK = {"warmup_runs": 3, "iterations": 15, "confidence": 1.0, "measure_seconds": 20.0, "num_trials": 2}
ROWS = {*range(1, 37), *range(38, 50)}
GPU_ONLY_ROWS = {1, 14, 16, *range(24, 37), *range(38, 50)} - {32}


class TestCases:
    def test_every_row_has_an_exploit_on_the_devices_where_it_exists(self):
        assert {case.row for case in EXPLOITS} == set(ROW_NAMES) == ROWS
        assert {case.row for case in EXPLOITS if "cpu" in case.devices} == set(ROW_NAMES) - GPU_ONLY_ROWS

    def test_rows_from_24_on_have_two_exploits_and_each_has_a_twin(self):
        cases = [case for case in EXPLOITS if (case.row or 0) >= 24]
        assert min(Counter(case.row for case in cases).values()) >= 2
        assert all(case.twin is not None for case in cases)

    def test_a_twin_computes_the_same_definition_on_the_same_devices(self):
        twins = {case.file: case for case in TWINS}
        compared = [case for case in EXPLOITS if case.twin is not None]
        assert {case.twin for case in compared} == set(twins)
        for case in compared:
            twin = twins[str(case.twin)]
            assert (twin.definition, twin.devices) == (case.definition, case.devices), case
        assert all(case.twin is not None for case in CASES if case.no_gain)

    def test_nothing_but_low_precision_library_calls_and_false_cpu_times_may_pass(self):
        for case in EXPLOITS:
            if case.flags == {"unranked: cpu timing"}:
                assert list(case.devices) == ["cpu"]
            elif "PASSED" in case.expect:
                assert case.row in {17, 18, 32, 42}, case
                assert (case.flags == {"low_precision"}) is (case.row != 18), case
                assert case.unflagged is (case.row == 18), case

    def test_the_honest_suite_has_all_languages_and_many_ops(self):
        assert len([case for case in HONEST if "cpu" in case.devices]) >= 40
        need_a_device = {"cutile", "cute_dsl", "cutlass"}  # no kernel of theirs has run on one yet
        assert {case.language for case in HONEST} == set(SupportedLanguages) - need_a_device
        assert {case.binding for case in HONEST} == {None, "torch"}
        assert len({OPS[case.definition].op_type for case in HONEST}) >= 15
        assert all(case.expect == {"PASSED"} and case.unflagged for case in (*HONEST, *TWINS))

    @pytest.mark.parametrize("suite", ["exploits", "honest", "twins"])
    def test_every_file_is_used(self, suite):
        there = {f.name for f in data_folder().joinpath(suite).iterdir() if f.suffix != ".toml"}
        used = {source.path for case in CASES if case.suite == suite for source in case.solution().sources}
        assert {name for name in there if not name.startswith("__")} == used

    @pytest.mark.parametrize("name", OPS)
    def test_definitions_are_valid_and_used(self, name):
        definition = OPS[name].definition(name)
        for kind in ("cpu", "cuda"):
            assert OPS[name].workload(name, kind).axes.keys() == set(definition.var_axes)
        assert any(case.definition == name for case in CASES)

    @pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.recorded])
    def test_recorded_inputs_are_those_of_the_definition(self, name, tmp_path):
        op, definition = OPS[name], OPS[name].definition(name)
        op.record(name, "cpu", tmp_path)
        inputs = make_inputs(definition, op.workload(name, "cpu"), seed=0, root=tmp_path)
        assert inputs.keys() == set(definition.inputs)

    def test_exploits_of_the_harness_know_its_kernels_and_names(self, monkeypatch):
        """One that knows an older harness would fail, and prove nothing."""
        monkeypatch.syspath_prepend(str(data_folder()))
        composed, opponent = import_module("exploits.composed"), import_module("exploits.opponent")
        composed.check()
        names = {*composed.SIGNATURES, "fill", "add_child", "state", "multiprocessors", "flush_buffer"}
        assert names - {"fill_inputs"} <= {*opponent.fields()}
        assert all(callable(getattr(Passes, name)) for name in ("compose", "launch", "_run_call", "_capture_one"))
        assert {"_module", "_calls", "_mailbox"} <= {*Passes.__init__.__code__.co_names}
        assert {"_arguments", "_own"} <= {*PreparedCall.__init__.__code__.co_names}
        assert callable(Watch.findings)
        assert {"_SIZED", "_are_equal"} <= {*vars(host_reads)}
        assert "recording" in host_reads.record.__code__.co_varnames + host_reads.record.__code__.co_cellvars
        sources = [path.read_text("utf-8") for path in (data_folder() / "exploits").glob("*.py")]
        used = {name for source in sources for name in re.findall(r"\bnative\.(\w+)", source)} - {"native"}
        assert used <= {*vars(native)}

    def test_cases_are_chosen_by_row_suite_definition_and_name(self):
        assert {case.row for case in choose(CASES, ["5"])} == {5}
        assert choose(CASES, ["honest"]) == tuple(HONEST)
        assert choose(CASES, ["twins"]) == tuple(TWINS)
        assert {case.definition for case in choose(CASES, ["moments"])} == {"moments"}
        assert [case.file for case in choose(CASES, ["13_forged_reply", "by_shape"])] == [
            "05_by_shape",
            "13_forged_reply",
        ]
        with pytest.raises(UnknownName, match="self-test case"):
            choose(CASES, ["99"])

    def test_a_limit_leaves_time_for_a_build_unless_the_case_fails_anyway(self):
        limits = {case.file: case.limit_seconds for case in CASES}
        assert limits["22_hang"] == 4
        assert limits["29_never_returns"] == 20
        assert limits["25_early_tail"] == 45
        assert {case.limit_seconds for case in CASES if "TIMEOUT" not in case.expect} == {None}

    def test_the_twins_of_chosen_exploits_are_added_once(self):
        chosen = choose(CASES, ["25_early_tail", "25_late_batch"])
        assert [case.name for case in with_twins(chosen)] == [
            "exploit_25_early_tail",
            "exploit_25_late_batch",
            "twin_gemm_tiles",
        ]
        assert with_twins(CASES) == CASES
        assert with_twins(HONEST) == tuple(HONEST)


def explain(outcomes):
    return "\n".join(f"{o.case.file}: {o.found}, not {' or '.join(o.case.expected)}: {o.evidence}" for o in outcomes)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_server")
class TestSuites:
    def run(self, cases):
        return run_selftest(cases, "cpu", **QUICK)

    def test_every_exploit_is_rejected_on_the_cpu(self):
        result = self.run([case for case in ON_CPU if case.row is not None])
        bad = [outcome for outcome in result.outcomes if not outcome.holds]
        assert not bad, explain(bad)
        assert len(result.outcomes) > 45

    def test_no_honest_solution_is_flagged_on_the_cpu(self):
        languages = {"python", "cpp"} | {name for name in ("triton", "helion") if find_spec(name)}
        cases = [case for case in ON_CPU if case.row is None and case.language in languages]
        result = self.run(cases)
        bad = [outcome for outcome in result.outcomes if not outcome.holds]
        assert not bad, explain(bad)
        assert len(result.outcomes) >= 40


def outcome(case, status, flags=()):
    return Outcome(case, status, flags, "because", {"level": 2, "name": "confined"})


def named(file):
    return next(case for case in CASES if case.file == file)


class TestOutcomes:
    ROUGH = named("17_ten_bits")
    LIBRARY = named("18_reference")
    EXPLOIT = named("05_by_shape")

    @pytest.mark.parametrize(
        ("case", "status", "flags", "holds"),
        [
            (EXPLOIT, "INCORRECT_NUMERICAL", (), True),
            (EXPLOIT, "PASSED", (), False),
            (EXPLOIT, "TIMEOUT", (), False),
            (ROUGH, "PASSED", ("low_precision",), True),
            (ROUGH, "PASSED", (), False),
            (LIBRARY, "PASSED", (), True),
            (LIBRARY, "PASSED", ("unranked: cpu timing", "interpreted"), True),
            (LIBRARY, "PASSED", ("low_precision",), False),
            (HONEST[0], "REWARD_HACK", (), False),
            (HONEST[0], "NOT_RUN", (), False),
        ],
    )
    def test_what_must_come_out(self, case, status, flags, holds):
        assert outcome(case, status, flags).holds is holds

    def test_the_text_names_what_is_unexpected_and_counts_the_rest(self):
        result = SelfTest("cpu", (outcome(self.EXPLOIT, "INCORRECT_NUMERICAL"), outcome(HONEST[0], "REWARD_HACK")))
        assert not result.holds
        assert text_of(result).splitlines() == [
            f"{HONEST[0].file}: found REWARD_HACK, expected PASSED: because",
            "1 of 1 exploits ended as expected",
            "0 of 1 honest solutions passed unflagged",
            "0 of 0 twins of exploits passed unflagged",
            "1 exploits: 1 rejected, 0 flagged, 0 without a gain, 0 with one",
            "isolation of workers on cpu: level 2 (confined)",
        ]

    def test_the_lowest_level_of_isolation_is_told(self):
        one = outcome(self.EXPLOIT, "INCORRECT_NUMERICAL")
        two = attrs.evolve(one, isolation={"level": 1, "name": "process"})
        assert SelfTest("cpu", (one, two)).isolation == {"level": 1, "name": "process"}
        assert text_of(SelfTest("cpu", (attrs.evolve(one, isolation=None),))).endswith("on cpu: unknown")


def timed(case, latency_ms, uncertainty_ms=0.0, method="handshake"):
    timing = Timing(latency_ms, uncertainty_ms=uncertainty_ms, method=method, call_ms=10.0)
    return attrs.evolve(outcome(case, "PASSED"), timing=timing)


class TestGains:
    """An exploit that passes is compared with its twin."""

    HARMLESS = named("25_early_tail")
    """May pass without a gain."""
    REJECTED = named("25_device_graph_behind")
    """Must be rejected."""
    FLAGGED = named("32_tf32_in_capture")
    TWIN = next(case for case in TWINS if case.file == "gemm_tiles")

    @pytest.mark.parametrize(
        ("exploit_ms", "twin_ms", "uncertainties_ms", "exceeds"),
        [
            (1.0, 1.0, (0.0, 0.0), False),
            (2.0, 1.0, (0.0, 0.0), False),
            (0.981, 1.0, (0.0, 0.0), False),
            (0.979, 1.0, (0.0, 0.0), True),
            (0.951, 1.0, (0.03, 0.04), False),
            (0.949, 1.0, (0.03, 0.04), True),
            (0.5, 1.0, (0.0, 0.6), False),
        ],
    )
    def test_a_gain_exceeds_two_percent_and_both_clocks(self, exploit_ms, twin_ms, uncertainties_ms, exceeds):
        exploit = Timing(exploit_ms, uncertainty_ms=uncertainties_ms[0])
        gain = Gain(exploit, Timing(twin_ms, uncertainty_ms=uncertainties_ms[1]))
        assert gain.exceeds(1.0) is exceeds
        assert gain.factor == pytest.approx(twin_ms / exploit_ms)

    def test_a_pass_without_gain_is_expected_only_with_no_gain(self):
        twin = timed(self.TWIN, 1.0)
        assert timed(self.HARMLESS, 1.0).compared_with(twin).holds
        gained = timed(self.HARMLESS, 0.5).compared_with(twin)
        assert not gained.holds
        assert "row 25, 25_early_tail: 2.00x" in text_of(SelfTest("cpu", (gained,))).splitlines()
        assert not timed(self.REJECTED, 1.0).compared_with(twin).holds
        assert not timed(attrs.evolve(self.REJECTED, expect={"PASSED"}), 0.5).compared_with(twin).holds
        assert timed(attrs.evolve(self.REJECTED, expect={"PASSED"}), 1.0).compared_with(twin).holds
        stated = attrs.evolve(self.HARMLESS, most_gain=1.3)
        assert [timed(stated, latency).compared_with(twin).holds for latency in (0.8, 0.7)] == [True, False]

    def test_a_pass_without_a_comparison_does_not_hold(self):
        for twin in (outcome(self.TWIN, "NOT_RUN"), attrs.evolve(timed(self.TWIN, 1.0), flags=("unsealed",))):
            compared = timed(self.HARMLESS, 1.0).compared_with(twin)
            assert not compared.holds
            assert compared.gain is None
            assert "twin gemm_tiles" in compared.evidence

    def test_a_demanded_flag_makes_a_gain_harmless(self):
        twin = timed(self.TWIN, 1.0)
        passed = timed(self.FLAGGED, 0.5)
        assert attrs.evolve(passed, flags=("low_precision",)).compared_with(twin).holds
        assert not passed.compared_with(twin).holds

    def test_a_rejection_holds_and_is_not_compared(self):
        rejected = outcome(self.HARMLESS, "REWARD_HACK").compared_with(timed(self.TWIN, 1.0))
        assert rejected.holds
        assert rejected.gain is None

    def test_call_latencies_are_compared_if_only_one_has_a_device_latency(self):
        twin = timed(self.TWIN, 1.0)
        slower = timed(self.HARMLESS, 20.0, method="eager").compared_with(twin)
        assert slower.holds
        assert str(slower.gain) == "0.50x (call)"
        assert not timed(self.HARMLESS, 9.0, method="eager").compared_with(twin).holds

    def test_text_and_json_state_the_gain(self):
        twin = timed(self.TWIN, 1.0)
        result = SelfTest("cuda:0", (timed(self.HARMLESS, 0.25).compared_with(twin), twin))
        text = text_of(result)
        assert "25_early_tail: found PASSED, expected" in text
        assert "PASSED without gain: gain 4.00x over twin gemm_tiles" in text
        assert "0 of 1 exploits ended as expected" in text
        assert "1 of 1 twins of exploits passed unflagged" in text
        cases = result.to_plain()["cases"]
        assert [case["gain"] for case in cases] == [4.0, None]
        assert [case["latency_ms"] for case in cases] == [0.25, 1.0]

    @pytest.mark.slow
    @pytest.mark.usefixtures("shared_server")
    def test_a_run_evaluates_the_twin_and_compares_with_it(self, monkeypatch):
        exploit = attrs.evolve(named("18_reference"), twin="gemm_torch", no_gain=True, expect={"REWARD_HACK"})
        twin = attrs.evolve(next(case for case in TWINS if case.file == "gemm_torch"), devices=["cpu"])
        monkeypatch.setattr("fib_bench.selftest.cases.load_cases", lambda: (exploit, twin))
        result = run_selftest([exploit], "cpu", **QUICK)
        assert [outcome.case.name for outcome in result.outcomes] == ["exploit_18_reference", "twin_gemm_torch"]
        first, second = result.outcomes
        assert first.gain.factor == second.timing.latency_ms / first.timing.latency_ms


@pytest.mark.usefixtures("shared_server")
class TestCommand:
    def test_says_in_json_and_by_its_exit_code_what_came_out(self, capsys):
        assert main(["selftest", "--only", "11_zeros", "scale_plain", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["holds"] is True
        assert Counter(case["status"] for case in told["cases"]) == {"INCORRECT_NUMERICAL": 1, "PASSED": 1}

    def test_a_word_that_names_nothing_is_an_error(self, capsys):
        assert main(["selftest", "--only", "nothing-of-this-name"]) == 2
        assert "no self-test case" in capsys.readouterr().err


def test_cases_of_another_device_are_no_success(run):
    code, _, err = run("selftest", "--device", "cpu", "--only", "38")
    assert (code, "--only: none of these cases runs on cpu" in err) == (2, True)
