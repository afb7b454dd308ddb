"""Documented behaviour of the command line, as its users type it."""

import json

import compat_samples as samples
import pytest
from compat_samples import NAME
from flashinfer_bench.data import TraceSet, save_json_file, save_jsonl_file
from flashinfer_bench.data.validate import (
    ALL_CHECKS,
    CPU_CHECKS,
    DatasetReport,
    compute_definition_status,
    render_text_report,
    validate_dataset,
)
from flashinfer_bench.data.validate_render import render_report

OTHER = "silu_h64"


@pytest.fixture
def root(tmp_path):
    """Two definitions: one with a solution and workloads, one of another operation with nothing."""
    root = samples.write(tmp_path / "data")
    save_json_file(samples.definition(OTHER, "activation"), root / "definitions" / "activation" / f"{OTHER}.json")
    return root


def report(command, tmp_path, *words):
    """The report that ``validate`` writes as JSON."""
    folder = tmp_path / "reports"
    command("validate", *words, "--outputs", "json", "--output-folder", folder)
    (path,) = folder.glob("*.json")
    return DatasetReport.model_validate_json(path.read_text("utf-8"))


class TestLogLevel:
    @pytest.mark.parametrize(
        "words", [("report", "summary", "--local"), ("report", "best", "--local"), ("validate", "--dataset")]
    )
    def test_every_command_takes_it(self, words, command, root):
        code, _, err = command(*words, root, "--log-level", "DEBUG")
        assert code in (0, 1), err

    @pytest.mark.slow
    def test_run_and_merge_take_it(self, command, root, tmp_path):
        words = ("report", "merge", "--local", root, "--local", root, "--output", tmp_path / "both")
        assert command(*words, "--log-level", "warning")[0] == 0
        quick = ("--warmup-runs", 1, "--iterations", 2, "--num-trials", 1, "--no-save-results")
        assert command("run", "--local", root, *quick, "--log-level", "INFO")[0] == 0

    def test_an_unknown_level_is_an_error(self, command, root):
        assert command("report", "summary", "--local", root, "--log-level", "LOUD")[0] == 2


@pytest.mark.slow
class TestRun:
    def test_absent_definitions_warn_and_the_rest_runs(self, command, root):
        quick = ("--warmup-runs", 1, "--iterations", 2, "--num-trials", 1)
        code, _, err = command("run", "--local", root, "--definitions", NAME, "absent_d7", *quick)
        assert code == 0
        assert "absent_d7" in err
        assert len(TraceSet.from_path(str(root)).traces[NAME]) == 2


class TestValidate:
    def test_the_data_set_is_that_of_the_variable(self, command, root, monkeypatch):
        monkeypatch.setenv("FIB_DATASET_PATH", str(root))
        code, out, err = command("validate", "--checks", "definition")
        assert code == 0, err
        assert NAME in out

    def test_types_and_definitions_are_a_union(self, command, root, tmp_path):
        save_json_file(samples.definition("third", "gemm"), root / "definitions" / "gemm" / "third.json")
        words = ("--op-types", "activation", "--definitions", NAME, "--checks", "definition")
        found = report(command, tmp_path, "--dataset", root, *words)
        assert {each.name for each in found.definitions} == {NAME, OTHER}

    def test_all_checks_are_the_default(self, command, root, tmp_path):
        found = report(command, tmp_path, "--dataset", root)
        assert list(found.config.checks) == list(ALL_CHECKS)
        assert set(CPU_CHECKS) == set(ALL_CHECKS) - {"benchmark"}

    def test_outputs_are_written_to_files_with_the_time(self, command, root, tmp_path):
        folder = tmp_path / "reports"
        words = ("--dataset", root, "--checks", "definition", "--output-folder", folder)
        code, out, _ = command("validate", *words, "--outputs", "stdout,json,text")
        assert code == 0
        (as_json,), (as_text,) = folder.glob("*.json"), folder.glob("*.txt")
        assert any(part.isdigit() and len(part) >= 6 for part in as_json.stem.replace("-", "_").split("_"))
        assert as_text.read_text("utf-8").strip() == out.strip()

    def test_a_file_renders_to_stdout_and_to_a_file(self, command, root, tmp_path):
        folder = tmp_path / "reports"
        words = ("--dataset", root, "--checks", "definition", "--output-folder", folder)
        command("validate", *words, "--outputs", "json,text")
        (as_json,), (as_text,) = folder.glob("*.json"), folder.glob("*.txt")
        code, out, _ = command("validate-render", as_json)
        assert code == 0
        assert out.strip() == as_text.read_text("utf-8").strip()
        assert command("validate-render", as_json, "--output", tmp_path / "again.txt")[0] == 0
        assert (tmp_path / "again.txt").read_text("utf-8").strip() == out.strip()

    def test_an_axis_of_zero_is_an_error(self, command, root, tmp_path):
        save_jsonl_file(
            [samples.workload_trace(4).model_copy(update={"workload": samples.workload(4, "zero")})],
            root / "workloads" / "rmsnorm" / f"{NAME}.jsonl",
        )
        path = root / "workloads" / "rmsnorm" / f"{NAME}.jsonl"
        path.write_text(path.read_text("utf-8").replace('"batch":4', '"batch":0').replace('"batch": 4', '"batch": 0'))
        code, out, _ = command("validate", "--dataset", root, "--checks", "workload")
        assert code == 1
        assert "batch" in out


class TestBaselines:
    def add_baseline(self, root, status="PASSED", name="theirs"):
        theirs = samples.solution("theirs", author="baseline")
        save_json_file(theirs, root / "solutions" / "baseline" / "rmsnorm" / NAME / "theirs.json")
        if status is not None:
            traces = [samples.trace(name, batch, status=status) for batch in (4, 8)]
            save_jsonl_file(traces, root / "traces" / "baseline" / "rmsnorm" / f"{NAME}.jsonl")

    def messages(self, command, root, tmp_path):
        words = ("--dataset", root, "--definitions", NAME, "--checks", "baseline", "--disable-gpu")
        (only,) = report(command, tmp_path, *words).definitions
        return list(only.checks["baseline"].messages)

    def test_a_missing_baseline_is_a_warning(self, command, root, tmp_path):
        levels = {message.level.lower() for message in self.messages(command, root, tmp_path)}
        assert levels == {"warning"}

    @pytest.mark.parametrize(
        ("baseline", "level", "text"),
        [
            ({"status": None}, "warning", "trace"),
            ({}, "info", ""),
            ({"status": "RUNTIME_ERROR"}, "warning", "RUNTIME_ERROR"),
            ({"name": "someone"}, "error", "someone"),
        ],
        ids=["no traces", "passing", "failed", "unknown solution"],
    )
    def test_its_traces_are_checked(self, command, root, tmp_path, baseline, level, text):
        self.add_baseline(root, **baseline)
        found = self.messages(command, root, tmp_path)
        assert {message.level.lower() for message in found} <= {"info", level}
        assert not text or any(text in message.message for message in found if message.level.lower() == level)


class TestBenchmarkCheck:
    def words(self, root):
        return ("--dataset", root, "--definitions", NAME, "--checks", "benchmark")

    def test_it_is_skipped_without_a_gpu(self, command, root, tmp_path):
        (only,) = report(command, tmp_path, *self.words(root), "--disable-gpu").definitions
        assert only.checks["benchmark"].status.lower().startswith("skip")

    @pytest.mark.slow
    def test_the_reference_runs_on_all_workloads(self, root):
        found = validate_dataset(root, checks=["benchmark"], definitions=[NAME], device="cpu")
        (only,) = found.definitions
        assert only.checks["benchmark"].status.lower().startswith("pass"), only.checks["benchmark"].messages
        path = root / "definitions" / "rmsnorm" / f"{NAME}.json"
        save_json_file(samples.definition(reference="def run(x, weight):\n    raise RuntimeError('broken')\n"), path)
        (only,) = validate_dataset(root, checks=["benchmark"], definitions=[NAME], device="cpu").definitions
        assert only.checks["benchmark"].status.lower().startswith("fail")
        assert len([m for m in only.checks["benchmark"].messages if "broken" in m.message]) == 2


class TestFunctions:
    def test_a_report_is_returned_and_rendered(self, root, tmp_path):
        found = validate_dataset(root, checks=["layout", "definition", "workload"])
        assert isinstance(found, DatasetReport)
        text = render_text_report(found)
        assert NAME in text
        path = tmp_path / "report.json"
        path.write_text(found.model_dump_json())
        assert render_report(path) == text
        render_report(path, output=tmp_path / "report.txt")
        assert (tmp_path / "report.txt").read_text("utf-8").strip() == text.strip()
        assert json.loads(path.read_text())["definitions"]

    def test_the_status_of_a_definition_is_that_of_its_worst_check(self, root):
        found = validate_dataset(root, checks=["definition", "baseline"], definitions=[NAME], disable_gpu=True)
        (only,) = found.definitions
        assert compute_definition_status(only.checks) == only.status
        assert only.status.lower().startswith("warn")
