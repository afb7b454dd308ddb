"""Command line: explain, table, warm and export."""

import json
import shutil
import subprocess
import sys

import pytest
from apply_samples import new_definition, new_solution, new_trace, write_set
from fib_apply import cli
from fib_apply.cli import main
from fib_schema import Trace, TraceSet

SOURCE = "def run(x, y):\n    y.copy_(x * 2)\n"


@pytest.fixture(autouse=True)
def _on_the_cpu(cache_path, monkeypatch):
    """Hide other devices of this machine."""
    monkeypatch.setattr(cli, "local_hardware", lambda: ("cpu",))


@pytest.fixture
def definitions():
    return [new_definition("scale"), new_definition("unmeasured")]


@pytest.fixture
def solutions():
    return [new_solution(name, content=SOURCE) for name in ("fast", "slow", "bad", "planned")]


@pytest.fixture
def traces():
    interval = {"interval_ms": [0.9, 1.1]}
    return [
        new_trace("fast", 1.0, m=1, timing=interval),
        new_trace("slow", 2.0, m=1),
        new_trace("bad", m=1, status="RUNTIME_ERROR"),
        new_trace("slow", 3.0, m=8, errors=(0.5, 0.25)),
        new_trace("planned", 0.5, m=8, timing={"setup_ms": 1}),
        new_trace("bad", m=64, status="TIMEOUT"),
        new_trace("slow", 0.25, m=8, hardware="NVIDIA H200"),
    ]


@pytest.fixture
def dataset(tmp_path, definitions, solutions, traces):
    """Keys of 1, 8 and 64 rows: a winner and a runner-up, one by plan, and none."""
    write_set(tmp_path / "dataset", *traces, solutions=solutions, definitions=definitions)
    return tmp_path / "dataset"


@pytest.fixture
def configured(tmp_path):
    """Options that name a file with settings."""

    def configured(text):
        path = tmp_path / "apply.yaml"
        path.write_text(text)
        return ["--config", str(path)]

    return configured


def answer_of(capsys, *arguments):
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


class TestExplain:
    def test_shows_the_ranking_of_each_key(self, dataset, capsys):
        assert main(["explain", str(dataset), "--definition", "scale"]) == 0
        expected = """\
scale (elementwise)

on cpu:
  M=1
    the fastest of 2
    1. fast: 1000.00 us (900.00 to 1100.00); the reference 1000000.00 us
    2. slow: 2000.00 us; the reference 1000000.00 us
    -  bad: RUNTIME_ERROR on workload w1
  M=8
    the fastest of 2
    1. planned: 500.00 us, by plan() only; the reference 1000000.00 us
    2. slow: 3000.00 us; the reference 1000000.00 us
  M=64
    no solution is eligible here
    the fallback serves these calls
    -  bad: TIMEOUT on workload w64
  over all keys
"""
        assert capsys.readouterr().out.startswith(expected)

    def test_follows_the_settings(self, dataset, capsys, configured):
        given = configured("default: {max_atol: 0.1, baseline: slow}")
        found = answer_of(capsys, "explain", dataset, "--definition", "scale", *given)["hardware"][0]["keys"]
        assert [one["solution"] for one in found[0]["candidates"]] == ["fast"]
        assert found[0]["fallback"] == "the baseline 'slow'"

    def test_the_settings_of_the_environment_count(self, dataset, configured, monkeypatch, capsys):
        _, path = configured("definitions: {scale: {exclude: [fast], baseline: nope}, other: {}}\n")
        monkeypatch.setenv("FIB_APPLY_CONFIG", path)
        assert main(["explain", str(dataset), "--definition", "scale", "--json"]) == 0
        output = capsys.readouterr()
        key, *_ = json.loads(output.out)["hardware"][0]["keys"]
        assert key["left_out"]["fast"] == "the settings exclude it"
        assert "definitions.other: no definition is named 'other'" in output.err
        assert "definitions.scale.baseline: no solution is named 'nope'" in output.err

    def test_a_file_of_settings_that_is_not_valid_is_an_error(self, dataset, tmp_path, capsys):
        path = tmp_path / "apply.yaml"
        path.write_text("default: {margn: 1}\n")
        assert main(["table", str(dataset), "--config", str(path)]) == 2
        assert "no setting is named 'margn'; did you mean 'margin'" in capsys.readouterr().err
        assert main(["table", str(dataset), "--config", str(tmp_path / "none.yaml")]) == 2
        assert "none.yaml" in capsys.readouterr().err

    def test_of_another_hardware(self, dataset, capsys):
        assert main(["explain", str(dataset), "--definition", "scale", "--hardware", "NVIDIA H200"]) == 0
        assert (
            "on NVIDIA H200:\n  M=8\n    the only candidate\n    1. slow: 250.00 us; the reference"
            in capsys.readouterr().out
        )

    def test_names_the_hardware_of_the_measurements(self, dataset, capsys, monkeypatch):
        monkeypatch.setattr(cli, "local_hardware", lambda: ("cpu", "NVIDIA B200"))
        main(["explain", str(dataset), "--definition", "scale"])
        nothing = "on NVIDIA B200: no measurements (but on cpu, NVIDIA H200); the fallback serves all calls"
        assert nothing in capsys.readouterr().out

    def test_as_json(self, dataset, capsys):
        found = answer_of(capsys, "explain", dataset, "--definition", "scale")
        assert (found["definition"], found["op_type"]) == ("scale", "elementwise")
        (on_cpu,) = found["hardware"]
        assert on_cpu["hardware"] == "cpu"
        assert [(key["axes"], key["solution"], key["planned"]) for key in on_cpu["keys"]] == [
            ({"M": 1}, "fast", None),
            ({"M": 8}, "slow", "planned"),
            ({"M": 64}, None, None),
        ]
        first, second = on_cpu["keys"][0]["candidates"]
        assert (first["solution"], first["interval_ms"]) == ("fast", [pytest.approx(0.9), pytest.approx(1.1)])
        assert (second["solution"], second["latency_ms"], second["workloads"]) == ("slow", pytest.approx(2.0), 1)
        assert on_cpu["keys"][0]["left_out"] == {"bad": "RUNTIME_ERROR on workload w1"}
        assert on_cpu["best"]["candidates"]


class TestTable:
    def test_lists_selected_solutions_and_counts(self, dataset, capsys):
        assert main(["table", str(dataset)]) == 0
        lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        assert lines[:4] == [
            "definition key solution latency fallback runner-up candidates measured on note",
            "scale M=1 fast 1000.00 us 1000000.00 us slow 2 cpu",
            "scale M=8 planned (by plan) 500.00 us 1000000.00 us slow 2 cpu",
            "scale M=64 - - - - 0 cpu the fallback serves it: no solution is eligible here",
        ]
        counts = "2 definitions, 1 of them measured on cpu; 3 keys, 2 with a solution, 1 without"
        assert lines[-1] == counts

    def test_as_json(self, dataset, capsys):
        found = answer_of(capsys, "table", dataset, "--hardware", "NVIDIA H200")
        assert found["counts"] == {"definitions": 2, "measured": 1, "keys": 1, "chosen": 1, "without_choice": 0}
        assert found["problems"] == []
        (row,) = found["keys"]
        assert {name: row[name] for name in ("definition", "axes", "hardware", "solution")} == {
            "definition": "scale",
            "axes": {"M": 8},
            "hardware": "NVIDIA H200",
            "solution": "slow",
        }

    def test_shows_why_a_key_is_left_to_the_fallback(self, tmp_path, definitions, capsys):
        traces = [new_trace("fast", 3.0, reference=2.0), new_trace("fast", 1.0, reference=2.0, m=2)]
        dataset = tmp_path / "slower"
        write_set(dataset, *traces, solutions=[new_solution("fast")], definitions=definitions)
        assert main(["table", str(dataset)]) == 0
        lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        reason = "none of 1 is faster than the reference"
        assert lines[1:3] == [
            f"scale M=1 - - - - 0 cpu the fallback serves it: {reason}",
            "scale M=2 fast 1000.00 us 2000.00 us - 1 cpu",
        ]
        assert main(["explain", str(dataset), "--definition", "scale"]) == 0
        expected = f"""\
  M=1
    {reason}
    the fallback serves these calls
    -  fast: not faster than the reference: 3000.00 us against 2000.00 us
"""
        assert expected in capsys.readouterr().out

    def test_prints_problems_of_the_data_set_to_stderr(self, dataset, capsys):
        file = next((dataset / "solutions").rglob("fast.json"))
        file.write_text("{")
        assert main(["table", str(dataset), "--json"]) == 0
        output = capsys.readouterr()
        (problem,) = json.loads(output.out)["problems"]
        assert "fast.json" in problem
        assert output.err == f"error: {problem}\n"

    def test_explain_names_the_bad_file_of_its_definition(self, dataset, capsys):
        next((dataset / "definitions").rglob("scale.json")).write_text("{")
        assert main(["explain", str(dataset), "--definition", "scale", "--json"]) == 2
        assert "scale.json: is not JSON" in capsys.readouterr().err

    def test_of_an_empty_data_set(self, tmp_path, capsys):
        (tmp_path / "empty").mkdir()
        assert main(["table", str(tmp_path / "empty")]) == 1
        said = capsys.readouterr()
        assert "0 definitions, 0 of them measured on cpu; 0 keys" in said.out
        assert f"error: {tmp_path / 'empty'}: is no data set" in said.err


class TestWarm:
    @pytest.fixture
    def solutions(self):
        """All print on load, in Python or native code; one ends its process."""
        loud = f"import os\nprint('loud')\nos.write(1, b'louder\\n')\n{SOURCE}"
        planned = f"def setup(x):\n    return {{}}\n{SOURCE}"
        return [
            new_solution("fast", content=loud),
            new_solution("slow", content=f"{loud}# slowly\n"),
            new_solution("planned", content=planned),
            new_solution("bad", content="import os\nos._exit(3)\n"),
        ]

    def test_builds_the_selected_solutions(self, dataset, capfd, cache_path):
        assert main(["warm", str(dataset)]) == 0
        output = capfd.readouterr()
        assert output.out == (
            "3 ready, 0 left out, of those selected on cpu\nnative guards: not used: FIB_APPLY_NATIVE is 0\n"
        )
        assert [line for line in output.err.splitlines() if line.startswith("ready")] == [
            "ready fast", "ready planned", "ready slow",
        ]  # fmt: skip
        assert "louder" in output.err
        assert len(list((cache_path / "apply-v1" / "probes").glob("*.json"))) == 3
        assert len(list((cache_path / "apply-v1").glob("*.table"))) == 1

    def test_prints_json_alone_to_stdout(self, dataset, capfd):
        TraceSet.from_path(dataset).add_traces([new_trace("bad", m=512)])
        assert main(["warm", str(dataset), "--json", "-j", "1"]) == 1
        found = json.loads(capfd.readouterr().out)
        problems = {one["solution"]: one["problem"] for one in found["solutions"]}
        assert problems.pop("bad").startswith("it ended the process")
        assert problems == {"fast": None, "slow": None, "planned": None}
        assert found["counts"] == {"ready": 3, "left_out": 1}
        assert found["hardware"] == ["cpu"]
        assert found["solutions"][0].keys() == {"definition", "solution", "keys", "problem"}


class TestPredict:
    @pytest.fixture
    def counted(self, dataset):
        """Calls of a size with a solution, of one without, and of one that was never recorded."""
        sizes = [{"axes": {"M": size}, "layout": {}, "calls": calls} for size, calls in ((1, 100), (64, 10), (7, 5))]
        (dataset / "traffic").mkdir()
        content = {"version": 1, "definitions": {"scale": {"calls": 120, "sizes": sizes}}}
        (dataset / "traffic" / "one.json").write_text(json.dumps(content))
        TraceSet.from_path(dataset).add_traces([Trace("scale", new_trace("fast", m=m).workload) for m in (1, 64)])
        return dataset

    def test_sums_what_is_saved_of_the_traced_calls(self, counted, capsys):
        with pytest.raises(SystemExit):
            main(["predict", str(counted), "--total-ms", "0"])
        assert "'0' is no number of milliseconds above 0" in capsys.readouterr().err
        assert main(["predict", str(counted), "--total-ms", "500000"]) == 0
        shown = capsys.readouterr().out
        assert shown.splitlines()[1].split()[:3] == ["scale", "120", "100"]
        assert "saved on cpu: 99,900.000 ms (99,890.000 ms to 99,910.000 ms), 19.98% (19.98% to 19.98%)" in shown

    def test_without_traffic_says_where_it_comes_from(self, dataset, capsys):
        assert main(["predict", str(dataset)]) == 1
        assert "trace the engine with fib-tracer" in capsys.readouterr().err


class TestExport:
    SERVE = """
import torch
from fib_apply import enable_apply
with enable_apply(stats=True) as runtime:
    for rows in (1, 8, 64):
        runtime("scale", args=(torch.ones(rows, 4),), fallback=lambda x: x)
    print({str(key): count for key, count in runtime.stats()["scale"].hits.items()}, runtime.left_out())
"""

    def test_an_engine_starts_from_a_copy_of_the_folder(self, dataset, tmp_path, capfd, monkeypatch):
        monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))  # restored after the command
        assert main(["export", str(dataset), "--to", str(tmp_path / "made")]) == 0
        assert "3 ready, 0 left out" in capfd.readouterr().out
        moved = (tmp_path / "made").rename(tmp_path / "moved folder")
        shutil.rmtree(dataset)
        command = 'source "$0"/env.sh && exec "$1" -c "$2"'
        words = ["bash", "-c", command, str(moved), sys.executable, self.SERVE]
        assert (
            subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout == "{'M=1': 1, 'M=8': 1} {}\n"
        )

    def test_other_shells_are_told_to_use_bash(self, dataset, tmp_path, capfd, monkeypatch):
        monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
        assert main(["export", str(dataset), "--to", str(tmp_path / "it's made")]) == 0
        last = capfd.readouterr().err.splitlines()[-1]
        command = f"{last.partition(': ')[2].replace('source', '.')} && echo $FIB_DATASET_PATH"
        for shell in filter(shutil.which, ("bash", "dash")):
            found = subprocess.run([shell, "-c", command], capture_output=True, text=True, check=False)
            assert found.stdout == (f"{tmp_path}/it's made/data\n" if shell == "bash" else "")
            assert (shell == "bash") == ("source this file in bash" not in found.stderr)

    def test_refuses_what_it_cannot_export(self, dataset, tmp_path, capsys):
        assert main(["export", str(dataset), "--to", str(tmp_path)]) == 2
        assert main(["export", str(dataset), "--to", str(tmp_path / "new"), "--definitions", "unmeasured"]) == 2
        assert "nothing is selected on cpu; fib-apply table says why" in capsys.readouterr().err
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "--definition", "scael"], "no definition is named 'scael'; did you mean 'scale'?"),
        (["explain", "--definition", "scale", "--hardware", "NVIDIA H20"],
         "no hardware with traces is named 'NVIDIA H20'; did you mean 'NVIDIA H200'?"),
        (["table", "--hardware", "gpu"], "no hardware with traces is named 'gpu'"),
        (["warm", "--definitions", "scales"], "no definition is named 'scales'; did you mean 'scale'?"),
    ],
)  # fmt: skip
def test_unknown_or_malformed_arguments_are_an_error(dataset, capsys, arguments, message):
    command, *others = arguments
    assert main([command, str(dataset), *others]) == 2
    output = capsys.readouterr()
    assert output.err.startswith("fib-apply: ")
    assert message in output.err
    assert output.out == ""


@pytest.mark.parametrize("command", [["explain", "--definition", "scale"], ["table"], ["warm"]])
def test_a_missing_data_set_is_an_error(tmp_path, capsys, command):
    assert main([command[0], str(tmp_path / "nowhere"), *command[1:]]) == 2
    assert capsys.readouterr().err.startswith("fib-apply: no data set at")


def test_torch_is_only_needed_to_list_devices(dataset):
    program = """
import sys
sys.modules["torch"] = None
from fib_apply.cli import main
dataset = sys.argv[1]
assert main(["table", dataset, "--hardware", "cpu"]) == 0
assert main(["explain", dataset, "--definition", "scale", "--hardware", "cpu"]) == 0
assert main(["table", dataset]) == 2
"""
    done = subprocess.run([sys.executable, "-c", program, dataset], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("fib-apply: torch is not installed")) == (0, 1)
