"""Tests of the command: text output, JSON output and exit codes."""

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest
import torch
from fib_schema import RandomInput, ScalarInput, Trace, TraceSet, Workload
from fib_tracer import cli, dump_import
from fib_tracer.cli import main

from .conftest import workloads
from .dump_maker import DumpMaker
from .test_flashinfer_definitions import DUMPED
from .test_importing import GATHER, LibraryReader


@pytest.fixture
def dump(tmp_path_factory):
    made = DumpMaker(tmp_path_factory.mktemp("dumped"))
    for rows in (2, 3, 3):
        made.dump("gather", GATHER, [torch.ones(6, 8), torch.arange(rows)], {"scale": 0.5})
    made.dump("unknown", "(x)", [torch.ones(1)])
    return made


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """The entry points of readers, as a package would bring them; those of this environment are out of sight."""
    package = ModuleType("library_reader")
    package.__dict__["Reader"] = LibraryReader
    monkeypatch.setitem(sys.modules, "library_reader", package)
    points = [EntryPoint("library", "library_reader:Reader", dump_import.GROUP)]
    monkeypatch.setattr(dump_import, "find_entry_points", lambda group: tuple(p for p in points if p.group == group))
    return points


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def run_json(capsys, *arguments):
    code, out, _ = run(capsys, *arguments, "--json")
    return code, json.loads(out)


def test_import_reports_the_outcome_of_every_call(dump, root, capsys):
    (dump.root / "norm_h4.json").write_text(json.dumps(DUMPED))
    (dump.root / "bad.json").write_text(json.dumps({**DUMPED, "name": "bad", "reference": None}))
    code, out, _ = run(capsys, "import", dump.root, root)
    assert code == 1
    assert "2 definitions: 1 added, 0 unchanged, 1 refused" in out
    assert "has no reference" in out
    assert "4 calls: 3 given to the policies, 2 stored as workloads, 1 duplicate" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["lib.ops.gather", "given", "to", "the", "policies", "3"] in lines
    assert ["lib.ops.unknown", "no", "reader", "knows", "the", "function", "1"] in lines
    assert ["gather_h8", "3", "3", "2", "1"] in lines
    assert "readers: library" in out


def test_import_in_json(dump, root, capsys):
    code, found = run_json(capsys, "import", dump.root, root)
    assert code == 0
    assert found["is_ok"]
    assert found["calls"][0] == {"function": "lib.ops.gather", "outcome": "given to the policies", "calls": 3}
    assert found["workloads"]["gather_h8"]["stored"] == 2
    assert found["readers"] == ["library"]


def test_import_stores_the_requested_values(dump, root, capsys):
    assert run(capsys, "import", dump.root, root, "--dump", "int", "table")[0] == 0
    kinds = {name: spec.type for name, spec in workloads(root, "gather_h8")[0].inputs.items()}
    assert kinds == {"table": "safetensors", "rows": "safetensors", "scale": "scalar"}


def test_import_uses_the_settings_of_an_engine(dump, root, capsys, tmp_path_factory):
    file = tmp_path_factory.mktemp("settings") / "tracing.yaml"
    file.write_text("default: {input_dump_policy: dump_none, filter_policy: keep_first}\n")
    assert run(capsys, "import", dump.root, root, "--config", file)[0] == 0
    assert [w.axes["M"] for w in workloads(root, "gather_h8")] == [2]


def test_import_without_a_reader_names_the_package_to_install(dump, root, capsys, installed):
    installed.clear()
    code, out, _ = run(capsys, "import", dump.root, root)
    assert code == 1
    assert "no reader of calls is installed: install fib-integrations, which has the one for FlashInfer" in out


def test_a_reader_that_cannot_be_loaded_is_reported(dump, root, capsys, installed):
    installed.append(EntryPoint("broken", "no_such_module:Reader", dump_import.GROUP))
    code, out, err = run(capsys, "import", dump.root, root)
    assert code == 1
    assert "call reader 'broken': cannot be loaded" in err
    assert "3 given to the policies" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("import", "nowhere", "{root}"), "exists"),
        (("import", "{dump}", "nowhere"), "no data set"),
        (("import", "{dump}", "{root}", "--dump", "tabel"), "no input is named 'tabel'"),
        (("import", "{dump}", "{root}", "--config", "nowhere.yaml"), "nowhere.yaml"),
        (("import", "{dump}", "{root}", "--max-mib", "0"), "max_bytes"),
        (("stats", "nowhere"), "no data set"),
        (("stats", "{root}", "--definitions", "gather_h9"), "did you mean 'gather_h8'"),
    ],
)
def test_wrong_commands_are_refused(dump, root, capsys, arguments, message):
    places = {"root": root, "dump": dump.root}
    code, out, err = run(capsys, *(argument.format(**places) for argument in arguments))
    assert code == 2
    assert out == ""
    assert err.startswith("fib-tracer: ")
    assert message in err


@pytest.fixture
def filled(root):
    inputs = {"table": RandomInput(), "rows": RandomInput(), "scale": ScalarInput(0.5)}
    workloads = [Workload({"N": 6, "M": rows}, inputs, uuid) for uuid, rows in (("a", 3), ("b", 3), ("c", 12))]
    TraceSet.from_path(root).add_traces([Trace("gather_h8", workload) for workload in workloads])
    return root


def test_stats_prints_sizes(filled, capsys):
    code, out, _ = run(capsys, "stats", filled)
    assert code == 0
    assert out.startswith("gather_h8 (gather): 3 workloads\n")
    assert "  M: 3 (2), 12 (1)\n" in out
    assert "3 definitions, 1 with workloads\nwithout: gqa_paged_decode_h2, silu_h8\n" in out


def test_stats_may_be_limited_to_definitions(filled, capsys):
    code, found = run_json(capsys, "stats", filled, "--definitions", "gather_h8")
    assert code == 0
    (gather,) = found["definitions"]
    assert (gather["workloads"], gather["axes"]["M"], gather["calls"]) == (3, {"3": 2, "12": 1}, 0)


def test_stats_exits_with_1_if_a_line_is_damaged(filled, capsys):
    with next((filled / "workloads").rglob("*.jsonl")).open("a") as file:
        file.write("{\n")
    code, _, err = run(capsys, "stats", filled)
    assert code == 1
    assert "is not JSON" in err


@pytest.mark.parametrize("command", ["import", "stats"])
def test_each_command_has_a_help_page_with_an_example(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert f"\n  fib-tracer {command}" in capsys.readouterr().out


def test_help_fits_a_terminal():
    texts = [text for name, text in vars(cli).items() if name.isupper() and isinstance(text, str)]
    assert max(len(line) for text in texts for line in text.splitlines()) <= 110


@pytest.mark.slow
def test_the_installed_command_runs(root):
    command = Path(sys.executable).with_name("fib-tracer")
    done = subprocess.run([command, "stats", root, "--json"], capture_output=True, text=True, timeout=300, check=True)
    assert len(json.loads(done.stdout)["definitions"]) == 3
