import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fib_bench import __version__
from fib_bench.demo import write_demo
from fib_schema import SafetensorsInput, Trace, TraceSet

from .samples import DOUBLE, make_solution, make_workload

GOOD = "print('imported')\ndef run(x):\n    print('called')\n    return x * 2\n"
WRONG = "def run(x):\n    return x\n"


@pytest.fixture
def root(make_data_set):
    return make_data_set(make_solution(GOOD, name="good"), make_solution(WRONG, name="wrong"), sizes=(2, 3))


@pytest.mark.parametrize("words", [("run",), ("report", "summary"), ("report", "best"), ("report", "html")])
def test_a_folder_that_is_no_data_set_is_named(words, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, errors = run(*words, tmp_path)
    assert code == 1
    assert f"error: {tmp_path}: is no data set" in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("validate", "--json"), ("report", "best"), ("report", "summary")])
def test_a_data_set_is_the_first_word_or_an_option_or_this_folder(words, run, root, monkeypatch):
    first, option = run(*words, root), run(*words, "--dataset", root)
    monkeypatch.chdir(root)
    assert first == option
    assert run(*words)[:2] == (first[0], first[1].replace(str(root), "."))
    assert first[0] == 0
    code, _, errors = run(*words, root, "--dataset", root)
    assert (code, "the data set is named twice" in errors) == (2, True)


@pytest.mark.usefixtures("shared_server")
class TestRun:
    def test_a_wrong_solution_is_a_result_and_no_failure(self, run, root):
        code, out, err = run("run", root)
        assert code == 0
        logs = f"whole logs: fib-bench report html {root}\n"
        assert [text for text in ("good", "INCORRECT_NUMERICAL", logs) if text not in out] == []
        assert [text for text in ("4 evaluations to make", "[4/4") if text not in err] == []
        assert logs in run("report", "summary", root)[1]

    def test_what_the_plan_leaves_out_is_named_with_its_reason(self, run, root):
        file = next((root / "workloads").rglob("*.jsonl"))
        first, second = file.read_text("utf-8").splitlines()
        file.write_text(f"{first}\n{second.replace('n-3', 'n-2')}\n", "utf-8")
        code, _, err = run("run", root)
        assert code == 1
        assert "could not run: double / n-2: an earlier workload has the same uuid" in err
        assert "2 evaluations to make; 1 cannot run, for the reasons below" in err

    def test_json_is_all_that_is_on_stdout(self, run, root):
        code, out, _ = run("run", root, "--json", "--max-workloads", 1)
        result = json.loads(out)
        assert code == 0
        assert [(t["solution"], t["evaluation"]["status"]) for t in result["traces"]] == [
            ("good", "PASSED"),
            ("wrong", "INCORRECT_NUMERICAL"),
        ]
        assert result["skipped"] == []

    def test_options_override_settings_from_files(self, run, root, tmp_path):
        """With the tolerances of the first file, `x` passes for `2 x`; the data set's file lets nothing pass."""
        lenient = tmp_path / "lenient.yaml"
        lenient.write_text("{definition_config: {double: {rtol: 10, atol: 10}}, max_workloads: 1, solutions: [wrong]}")
        (root / "fib-bench.yaml").write_text("definition_config: {double: {rtol: 0, atol: 0}}")
        code, out, err = run("run", root, "--config", lenient, "--json")
        assert code == 0
        assert [t["evaluation"]["status"] for t in json.loads(out)["traces"]] == ["PASSED"]
        assert f"settings of the data set: {root / 'fib-bench.yaml'}" in err
        _, out, _ = run("run", root, "--config", lenient, "--rtol", "1e-3", "--atol", "0.001", "--json")
        assert [t["evaluation"]["status"] for t in json.loads(out)["traces"]] == ["INCORRECT_NUMERICAL"]

    def test_resume_says_what_it_leaves_out(self, run, root):
        run("run", root)
        code, out, err = run("run", root, "--resume")
        assert (code, out) == (0, "")
        assert "4 evaluations skipped: a trace of it exists (resume) (--json lists all)" in err
        assert "nothing to run; see the reasons" in err

    def test_a_solution_for_other_hardware_is_listed_as_skipped(self, run, root):
        gpu = make_solution("def run(x): ...", name="gpu", hardware=("NVIDIA B200",))
        TraceSet.from_path(root).add_solutions([gpu])
        code, out, err = run("run", root, "--solutions", "gpu", "--json")
        assert code == 1
        assert "skipped: double / gpu: made for NVIDIA B200; this device is 'cpu'" in err
        assert [skip["reason"] for skip in json.loads(out)["skipped"]] == ["made for NVIDIA B200; this device is 'cpu'"]

    def test_a_missing_blob_fails_the_run_unless_it_may_be_made(self, run, root):
        workload = make_workload(DOUBLE, {"n": 5}, "with-blob", x=SafetensorsInput("blob/x.safetensors", "x"))
        TraceSet.from_path(root).add_traces([Trace("double", workload)])
        code, out, err = run("run", root, "--json", "--solutions", "good")
        assert code == 1
        assert len(json.loads(out)["traces"]) == 2
        assert "could not run: double / with-blob: input 'x': blob 'blob/x.safetensors'" in err
        code, out, _ = run("run", root, "--json", "--solutions", "good", "--synthesize-missing")
        assert code == 0
        extras = {t["workload"]["uuid"]: t["evaluation"]["extra"] for t in json.loads(out)["traces"]}
        assert len(extras) == 3
        assert extras["with-blob"]["synthesized_inputs"] == ["x"]
        assert "synthesized inputs" in extras["with-blob"]["flags"]
        assert "synthesized_inputs" not in extras["n-2"]
        assert "synthesized inputs" not in extras["n-2"].get("flags", [])
        _, out, _ = run("report", "summary", root)
        assert "synthesized inputs, on workloads whose blobs are missing: good" in out
        assert "1 definition, 2 solutions, 3 workloads, " in out

    def test_a_reference_can_be_the_solution(self, run, make_data_set):
        root = make_data_set()
        code, _, err = run("run", root)
        assert code == 1
        assert "1 definition has no solutions: double; --reference-as-solution adds their references" in err
        assert "fib-integrations baselines" in err
        for _ in range(2):
            code, out, _ = run("run", root, "--json", "--reference-as-solution")
            assert code == 0
            assert [trace["solution"] for trace in json.loads(out)["traces"]] == ["double_reference"]
        assert run("validate", root)[0] == 0

    def test_a_torn_line_is_reported_and_the_rest_runs(self, run, root):
        file = next((root / "workloads").rglob("*.jsonl"))
        with file.open("a") as lines:
            lines.write('{"definition": "double", "work')
        code, _, err = run("run", root)
        assert code == 0
        assert f"error: {file}:" in err


@pytest.mark.usefixtures("shared_server")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "no-such-folder"], "no data set at 'no-such-folder'"),
        (["run", ".", "--device", "cuda:99"], "device 'cuda:99': there is no device 'cuda:99' on this machine"),
        (["run", ".", "--device", "toaster"], "device 'toaster'"),
        (["run", ".", "--max-workloads", "0"], "--max-workloads: must be a whole number of at least 1, got 0"),
        (["run", ".", "--max-workloads", "many"], "invalid int value: 'many'"),
        (["run", ".", "--timeout", "inf"], "--timeout: must be a finite number above 0, got inf"),
        (["run", ".", "--rtol", "much"], "argument --rtol: invalid float value: 'much'"),
        (["run", ".", "--config", "no.yaml"], "no.yaml: No such file or directory"),
        (["html", "."], "unknown command 'html'; choose from run, add"),
        (["run", ".", "--frobnicate"], "unknown option '--frobnicate'"),
        ([], "required: COMMAND"),
    ],
)
def test_a_wrong_command_is_an_error_that_says_so(run, words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_the_version_is_told(run):
    assert run("--version")[:2] == (0, f"fib-bench {__version__}\n")


def test_help_and_reports_need_no_torch():
    code = """
import sys
import fib_bench.report.merging, fib_bench.report.page
from fib_bench.cli.main import main
for words in ([], ["run"], ["report"], ["demo"]):
    try:
        main([*words, "--help"])
    except SystemExit as end:
        assert end.code == 0
assert not {"torch", "numpy", "vl_convert"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("usage: fib-bench") == 4


@pytest.fixture
def interruptible():
    """Interrupts that raise, here and in subprocesses: jobs of a shell or of nohup ignore them."""
    numbers = (signal.SIGINT, signal.SIGHUP)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_a_run_at_once_and_says_what_is_left(make_data_set, survivors, number):
    hang = make_solution("while True: pass", name="b_hangs")
    root = make_data_set(make_solution("def run(x):\n    return x * 2\n", name="a_good"), hang)
    command = [sys.executable, "-m", "fib_bench.cli.main", "run", str(root)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert any("a_good: PASSED" in line for line in process.stderr)
        process.send_signal(number)
        assert any("stopping" in line for line in process.stderr)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "the run was stopped before 1 of 2 evaluations" in rest
    assert "interrupted; finished evaluations are recorded (continue with --resume)" in rest
    assert "Traceback" not in rest
    assert survivors() == {}
    assert [t.solution for t in TraceSet.from_path(root).traces["double"]] == ["a_good"]


@pytest.mark.slow
def test_a_killed_run_leaves_no_process_and_no_folder(make_data_set, tmp_path, survivors):
    """The server sees that the judge is gone."""
    hang = make_solution("while True: pass", name="hangs")
    command = [sys.executable, "-m", "fib_bench.cli.main", "run", str(make_data_set(hang))]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        while not any(_has_spun(pid) for pid in survivors()):
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
        process.stderr.read()  # ends when the last of them has ended
    assert process.returncode == -signal.SIGKILL
    assert survivors() == {}
    assert list(tmp_path.glob("fib-bench-run-*")) == []


def _has_spun(pid):
    """Whether a process is a worker that has used the processor for as long as only an endless loop does here."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        parent = Path(f"/proc/{fields[1]}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    hundredths_of_a_second = int(fields[11])
    return "fib_bench.worker.fork_server" in parent and hundredths_of_a_second > 50


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    write_demo(tmp_path)
    done = subprocess.run(
        f"'{sys.executable}' -m fib_bench.cli.main report summary '{tmp_path}' --json | true; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 141)
    assert done.stderr == ""
