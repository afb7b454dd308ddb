import argparse
import json
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
from fib_compat.cli import make_parser
from flashinfer_bench import AxisVar, Definition, TraceSet
from flashinfer_bench.data import save_json_file

DOCUMENTED = json.loads(Path(__file__).with_name("documented_names.json").read_text("utf-8"))["flags"]
FLAGS = {command: flags for entry in DOCUMENTED for command, flags in entry.items()}
QUICK = ["--warmup-runs", "1", "--iterations", "3", "--num-trials", "1", "--timeout", "60", "--use-isolated-runner"]


@pytest.mark.parametrize("name", FLAGS)
def test_every_documented_option_exists(name):
    parser = make_parser()
    for word in name.split():
        parser = subcommands(parser)[word]
    known = {option for action in parser._actions for option in action.option_strings}
    assert set(FLAGS[name]) <= known


def subcommands(parser):
    actions = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return dict(next(actions).choices)


class TestRun:
    @pytest.mark.slow
    def test_recorded_traces_are_reported_and_resumed(self, command, data_set):
        code, out, err = command("run", "--local", data_set, *QUICK)
        assert code == 0, err
        assert "plain" in out
        assert [trace.is_successful() for trace in traces(data_set)] == [True, True]
        for report in ("summary", "best", "visualize"):
            code, out, err = command("report", report, "--local", data_set)
            assert (code, "plain" in out) == (0, True), err
        code, _, err = command("run", "--local", data_set, *QUICK, "--resume")
        assert (code, len(traces(data_set))) == (0, 2)

    @pytest.mark.slow
    def test_traces_are_not_recorded_with_no_save_results(self, command, data_set):
        code, out, _ = command("run", "--local", data_set, *QUICK, "--no-save-results", "--no-profile-baseline")
        assert (code, "plain" in out, traces(data_set)) == (0, True, [])

    def test_an_unknown_definition_is_refused_with_a_suggestion(self, command, data_set):
        code, _, err = command("run", "--local", data_set, "--definitions", "rmsnorm_h65")
        assert code == 2
        assert "did you mean 'rmsnorm_h64'?" in err

    def test_a_missing_data_set_is_refused(self, command, tmp_path):
        code, _, err = command("run", "--local", tmp_path / "nowhere")
        assert code == 2
        assert "no data set at" in err


class TestReport:
    def test_several_data_sets_are_reported_one_by_one_and_merged_into_a_new_one(self, command, data_set, tmp_path):
        other = tmp_path / "other"
        shutil.copytree(data_set, other)
        save_json_file(definition("second"), other / "definitions" / "elementwise" / "second.json")
        code, out, _ = command("report", "summary", "--local", data_set, "--local", other)
        assert code == 0
        assert out.startswith("1 definition, 1 solution, 2 workloads, 0 traces")
        assert "2 definitions, 1 solution, 2 workloads, 0 traces" in out
        code, out, _ = command("report", "merge", "--local", data_set, "--local", other, "--output", tmp_path / "both")
        assert code == 0
        assert sorted(TraceSet.from_path(tmp_path / "both").definitions) == ["rmsnorm_h64", "second"]

    def test_best_without_traces_says_how_to_record_some(self, command, data_set):
        code, out, err = command("report", "best", "--local", data_set)
        assert (code, out) == (0, "")
        assert "no passing trace yet" in err


class TestValidate:
    def test_a_valid_data_set_has_no_errors(self, command, data_set):
        code, out, _ = command("validate", "--dataset", data_set)
        assert code == 0
        assert "0 errors" in out

    def test_a_folder_that_is_no_data_set_fails_whatever_is_checked(self, command, data_set):
        code, out, _ = command("validate", "--dataset", data_set / "definitions", "--checks", "solution")
        assert code == 1
        assert f"did you mean '{data_set}'?" in out

    def test_only_selected_checks_and_definitions_count(self, command, data_set):
        break_solution(data_set)
        save_json_file(definition("second"), data_set / "definitions" / "elementwise" / "second.json")
        assert command("validate", "--dataset", data_set, "--checks", "definition,workload")[0] == 0
        assert command("validate", "--dataset", data_set, "--checks", "solution")[0] == 1
        assert command("validate", "--dataset", data_set, "--op-types", "elementwise", "--disable-gpu")[0] == 0
        assert command("validate", "--dataset", data_set, "--definitions", "rmsnorm_h64")[0] == 1

    @pytest.mark.parametrize(
        ("words", "problem"),
        [
            (["--op-types", "rmsnor"], "no op_type is named 'rmsnor'; did you mean 'rmsnorm'?"),
            (["--definitions", "rmsnorm_h46"], "did you mean 'rmsnorm_h64'?"),
            (["--checks", "layouts"], "unknown: 'layouts'"),
        ],
    )
    def test_unknown_names_are_refused(self, words, problem, command, data_set):
        code, _, err = command("validate", "--dataset", data_set, *words)
        assert (code, problem in err) == (2, True), err


def test_the_version_names_the_distribution(command):
    assert command("--version")[1] == f"fib-compat {version('fib-compat')}\n"


def traces(root):
    return TraceSet.from_path(root).traces.get("rmsnorm_h64", [])


def definition(name):
    return Definition(
        name=name, op_type="elementwise", axes={"n": AxisVar()}, inputs={}, outputs={}, reference="def run(): ..."
    )


def break_solution(root):
    (path,) = (root / "solutions").rglob("plain.json")
    path.write_text(path.read_text("utf-8").replace("main.py::run", "main.py"), "utf-8")
