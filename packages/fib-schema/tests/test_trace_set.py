import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from fib_schema import (
    DataSetNotFound,
    DataWarning,
    DuplicateName,
    InvalidRecord,
    Trace,
    TraceSet,
    UnknownName,
    format_json,
    save_json_file,
)


def test_a_missing_root_raises_and_creates_nothing(tmp_path):
    with pytest.raises(DataSetNotFound, match="there is no such directory"):
        TraceSet.from_path(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        TraceSet.from_path(str(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


def test_the_default_root_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path))
    assert TraceSet.from_path().root == tmp_path
    monkeypatch.delenv("FIB_DATASET_PATH")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(DataSetNotFound, match="flashinfer_bench"):
        TraceSet.from_path()


def test_an_empty_folder_is_an_empty_set(tmp_path):
    opened = TraceSet.from_path(tmp_path)
    assert (dict(opened.definitions), dict(opened.solutions), dict(opened.traces)) == ({}, {}, {})
    assert list(tmp_path.iterdir()) == []


def test_what_was_added_is_found_again(trace_set, definition, make_solution, make_trace):
    trace_set.add_traces([make_trace("fast"), make_trace("slow"), Trace("gemm", make_trace().workload)])
    again = TraceSet.from_path(trace_set.root)
    assert dict(again.definitions) == {"gemm": definition}
    assert again.solutions["gemm"] == [make_solution("fast", "ada"), make_solution("slow", "bob")]
    assert again.get_solution("slow").author == "bob"
    assert again.get_solution("nobody") is None
    assert again.traces["gemm"] == [make_trace("fast"), make_trace("slow")]
    assert again.workloads["gemm"] == [Trace("gemm", make_trace().workload)]


@pytest.mark.parametrize("author", ["\0", "../definitions", "a/b", "..", "\ud800", ""])
def test_traces_of_a_solution_with_a_bad_author_lie_in_its_folder(trace_set, make_trace, author):
    (file,) = trace_set.root.glob("solutions/ada/gemm/gemm/*.json")
    file.write_text(file.read_text().replace('"ada"', json.dumps(author)))
    again = TraceSet.from_path(trace_set.root)
    before = set(trace_set.root.rglob("*"))
    again.add_traces([make_trace("fast")])
    new = {str(path.relative_to(trace_set.root)) for path in set(trace_set.root.rglob("*")) - before}
    assert new == {"traces", "traces/ada", "traces/ada/gemm", "traces/ada/gemm/gemm.jsonl"}


def test_files_lie_where_the_public_layout_has_them(trace_set, make_trace):
    trace_set.add_traces([make_trace("fast"), Trace("gemm", make_trace().workload)])
    found = {str(path.relative_to(trace_set.root)) for path in trace_set.root.rglob("*") if path.is_file()}
    assert found == {
        "definitions/gemm/gemm.json",
        "solutions/ada/gemm/gemm/fast.json",
        "solutions/bob/gemm/gemm/slow.json",
        "traces/ada/gemm/gemm.jsonl",
        "workloads/gemm/gemm.jsonl",
    }


def test_files_are_found_at_any_depth(tmp_path, definition, make_trace):
    save_json_file(definition, tmp_path / "definitions" / "a" / "b" / "c" / "gemm.json")
    path = tmp_path / "traces" / "gemm.jsonl"
    path.parent.mkdir()
    path.write_text(format_json(make_trace()) + "\n")
    opened = TraceSet.from_path(tmp_path)
    assert list(opened.definitions) == ["gemm"]
    assert opened.traces["gemm"] == [make_trace()]


def test_neither_of_two_definitions_of_one_name_is_used(tmp_path, definition):
    for folder in "ab":
        save_json_file(definition, tmp_path / "definitions" / folder / "gemm.json")
    save_json_file(attrs.evolve(definition, name="good"), tmp_path / "definitions" / "good.json")
    opened = TraceSet.from_path(tmp_path)
    assert list(opened.definitions) == ["good"]
    assert [Path(problem.source).parent.name for problem in opened.problems] == ["a", "b"]
    assert all("two definitions are named 'gemm', so neither is used" in p.message for p in opened.problems)


def test_neither_of_two_solutions_of_one_name_is_used(trace_set, make_solution):
    save_json_file(make_solution("fast", "eve"), trace_set.solutions_path / "eve" / "other.json")
    opened = TraceSet.from_path(trace_set.root)
    assert [solution.name for solution in opened.solutions["gemm"]] == ["slow"]
    assert opened.get_solution("fast") is None
    assert [Path(problem.source).name for problem in opened.problems] == ["fast.json", "other.json"]


def test_nothing_but_names_is_parsed_at_opening(trace_set):
    path = trace_set.definitions_path / "gemm" / "gemm.json"
    plain = json.loads(path.read_text())
    path.write_text(json.dumps({**plain, "axes": "nonsense"}))
    opened = TraceSet.from_path(trace_set.root)
    assert opened.definition_names() == ("gemm",)
    assert opened.problems == ()
    with pytest.warns(DataWarning, match="^skipped "):
        assert list(opened.definitions) == []
    with pytest.raises(InvalidRecord, match=r"gemm\.json at \$\.axes: expected an object"):
        opened.get_definition("gemm")


@pytest.mark.filterwarnings("ignore::fib_schema.DataWarning")
@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": 3}', "\ufeff{}"])
def test_a_bad_file_is_left_out_and_listed(trace_set, content):
    (trace_set.definitions_path / "gemm" / "bad.json").write_text(content)
    (trace_set.solutions_path / "ada" / "gemm" / "gemm" / "worse.json").write_text(content)
    opened = TraceSet.from_path(trace_set.root)
    assert set(opened.definition_names()) == {"gemm", "bad"}
    assert [definition.name for definition in opened.definitions.values()] == ["gemm"]
    assert "bad" not in opened.definitions
    assert opened.definitions.get("bad") is None
    assert len(opened.definitions) == 1
    with pytest.raises(InvalidRecord, match=r"bad\.json"):
        opened.definitions["bad"]
    assert {solution.name for solution in opened.solutions["gemm"]} == {"fast", "slow"}
    with pytest.raises(InvalidRecord, match=r"worse\.json"):
        opened.get_solution("worse")
    assert {Path(problem.source).name for problem in opened.problems} == {"bad.json", "worse.json"}


def test_a_root_without_permissions_is_a_problem(trace_set, monkeypatch):
    trace_set.root.parent.chmod(0o755)
    monkeypatch.chdir(trace_set.root.parent)
    trace_set.root.chmod(0)
    child = os.fork()
    if child == 0:
        if os.getuid() == 0:
            os.setuid(60_999)  # permissions do not hold for root
        problems = TraceSet.from_path(trace_set.root.name).problems
        os._exit(sum(str(problem).endswith("cannot be read: Permission denied") for problem in problems))
    _, status = os.waitpid(child, 0)
    trace_set.root.chmod(0o755)
    assert os.waitstatus_to_exitcode(status) == 4


def test_all_problems_reads_every_file(trace_set):
    (trace_set.definitions_path / "gemm" / "bad.json").write_text("{")
    for folder in (trace_set.workloads_path, trace_set.traces_path):
        folder.mkdir(exist_ok=True)
        (folder / "worse.jsonl").write_text("{\n")
    opened = TraceSet.from_path(trace_set.root)
    with pytest.warns(DataWarning):
        found = opened.all_problems()
    assert [Path(problem.file).name for problem in found] == ["bad.json", "worse.jsonl", "worse.jsonl"]
    assert opened.all_problems() == found


def test_a_link_out_of_the_set_is_refused_and_reported(trace_set, tmp_path, definition):
    outside = tmp_path / "outside.json"
    save_json_file(attrs.evolve(definition, name="secret"), outside)
    (trace_set.definitions_path / "secret.json").symlink_to(outside)
    opened = TraceSet.from_path(trace_set.root)
    assert "secret" not in opened.definitions
    assert "link that leads out" in opened.problems[0].message


def test_a_link_inside_the_set_is_followed(trace_set):
    file = trace_set.definitions_path / "gemm" / "gemm.json"
    file.rename(trace_set.root / "elsewhere.json")
    file.symlink_to(trace_set.root / "elsewhere.json")
    assert list(TraceSet.from_path(trace_set.root).definitions) == ["gemm"]


def write_traces(root, name, *lines):
    path = root / "traces" / "x" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else format_json(line).encode() for line in lines))
    return path


def test_a_bad_line_hides_no_other_and_is_reported_once_per_file(trace_set, make_trace):
    write_traces(trace_set.root, "gemm", make_trace(uuid="a"), b"{}", b"nonsense", make_trace(uuid="b"), b"")
    opened = TraceSet.from_path(trace_set.root)
    assert opened.problems == ()
    with pytest.warns(DataWarning, match=r"gemm\.jsonl") as caught:
        traces = opened.traces["gemm"]
    assert len(caught) == 1
    assert [t.workload.uuid for t in traces] == ["a", "b"]
    assert [p.source.rpartition(":")[2] for p in opened.problems] == ["2", "2", "3"]
    assert opened.traces["gemm"] == traces


def test_an_append_does_not_glue_itself_to_a_torn_line(trace_set, make_trace):
    trace_set.add_traces([make_trace(uuid="a")])
    path = trace_set.traces_path / "ada" / "gemm" / "gemm.jsonl"
    with path.open("ab") as file:
        file.write(b'{"definition": "ge')
    trace_set.add_traces([make_trace(uuid="b")])
    with pytest.warns(DataWarning):
        found = TraceSet.from_path(trace_set.root).traces["gemm"]
    assert [t.workload.uuid for t in found] == ["a", "b"]


def test_a_file_that_names_no_definition_is_read_before_any_answer(trace_set, make_trace):
    write_traces(trace_set.root, "results-2026", make_trace(uuid="a"), make_trace("slow", definition="other"))
    opened = TraceSet.from_path(trace_set.root)
    assert [t.workload.uuid for t in opened.traces["gemm"]] == ["a"]
    assert set(opened.traces) == {"gemm", "other"}


def test_lines_of_other_writers_after_the_opening_are_not_part_of_the_snapshot(trace_set, make_trace):
    trace_set.add_traces([make_trace(uuid="a")])
    opened = TraceSet.from_path(trace_set.root)
    trace_set.add_traces([make_trace(uuid="b")])
    assert len(opened.traces["gemm"]) == 1
    assert len(TraceSet.from_path(trace_set.root).traces["gemm"]) == 2


def test_mappings_behave_as_mappings(trace_set, make_trace):
    trace_set.add_traces([make_trace()])
    for mapping in (trace_set.definitions, trace_set.solutions, trace_set.traces):
        assert list(mapping) == ["gemm"]
        assert "gemm" in mapping
        assert "nobody" not in mapping
        assert mapping.get("nobody", 5) == 5
        assert len(mapping) == len(list(mapping.items())) == 1
        with pytest.raises(KeyError):
            mapping["nobody"]


def test_a_mapping_shows_what_is_added_and_its_lists_are_copies(trace_set, make_trace):
    trace_set.add_traces([make_trace(uuid="a")])
    traces = trace_set.traces
    first = traces["gemm"]
    trace_set.add_traces([make_trace(uuid="b")])
    assert [t.workload.uuid for t in first] == ["a"]
    first.clear()
    assert [t.workload.uuid for t in traces["gemm"]] == ["a", "b"]


def test_a_set_pickles_before_and_after_it_is_read(trace_set, make_trace):
    trace_set.add_traces([make_trace()])
    opened = TraceSet.from_path(trace_set.root)
    for _ in range(2):
        again = pickle.loads(pickle.dumps(opened))
        assert again.traces["gemm"] == opened.traces["gemm"]
        assert again.get_solution("fast") == opened.get_solution("fast")


def test_a_flagged_trace_is_not_the_best(trace_set, make_trace):
    plain, flagged = make_trace(uuid="a"), make_trace(uuid="b", speedup=9.0, flags=["low_precision", "odd"])
    trace_set.add_traces([plain, flagged])
    assert trace_set.get_best_trace("gemm") == plain
    assert trace_set.filter_traces("gemm") == [plain, flagged]


def test_everything_as_plain_objects(trace_set, make_trace):
    trace_set.add_traces([make_trace(), Trace("gemm", make_trace().workload)])
    plain = trace_set.to_dict()
    assert plain.keys() == {"definitions", "solutions", "workload", "traces"}
    assert plain["traces"]["gemm"][0]["solution"] == "fast"
    assert json.loads(json.dumps(plain)) == plain


def test_the_paths_of_a_set(trace_set):
    root = trace_set.root
    assert trace_set.blob_workloads_path == root / "blob" / "workloads"
    assert (trace_set.definitions_path, trace_set.workloads_path) == (root / "definitions", root / "workloads")
    assert (trace_set.solutions_path, trace_set.blob_path) == (root / "solutions", root / "blob")


@pytest.mark.parametrize("bad", [{"definition": "gem"}, {"solution": "fsat"}])
def test_a_batch_with_an_unknown_name_adds_nothing(trace_set, make_trace, bad):
    with pytest.raises(UnknownName, match="did you mean"):
        trace_set.add_traces([make_trace(), make_trace(**bad)])
    assert not trace_set.traces_path.exists()
    assert "gemm" not in trace_set.traces


def test_nothing_is_written_through_a_link_that_leads_out(trace_set, make_trace, tmp_path):
    (tmp_path / "outside").mkdir()
    trace_set.traces_path.mkdir()
    (trace_set.traces_path / "ada").symlink_to(tmp_path / "outside")
    with pytest.raises(PermissionError, match="leads out of the data set"):
        trace_set.add_traces([make_trace()])
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_name_is_added_once(trace_set, definition, make_solution):
    with pytest.raises(DuplicateName, match="'gemm'"):
        trace_set.add_definitions([definition])
    with pytest.raises(DuplicateName, match="'fast'"):
        trace_set.add_solutions([make_solution("new"), make_solution("fast")])
    assert trace_set.get_solution("new") is None
    with pytest.raises(UnknownName, match="'other'"):
        trace_set.add_solutions([make_solution("new", definition="other")])


def test_a_backup_is_a_copy_beside_the_traces(trace_set, make_trace):
    trace_set.add_traces([make_trace()])
    trace_set.backup_traces()
    trace_set.backup_traces()
    backups = [path for path in trace_set.root.iterdir() if path.name.startswith("traces_backup_")]
    assert len(backups) == 2
    assert len(TraceSet.from_path(trace_set.root).traces["gemm"]) == 1
    assert (backups[0] / "ada" / "gemm" / "gemm.jsonl").exists()


def test_the_best_trace_has_the_largest_speedup_within_the_bounds(trace_set, make_trace):
    trace_set.add_traces(
        [
            make_trace(uuid="a", speedup=2.0),
            make_trace(uuid="b", speedup=9.0, relative=0.5),
            make_trace(uuid="c", speedup=8.0, absolute=float("nan")),
            make_trace(uuid="d", speedup=3.0, axes={"M": 7, "K": 2}),
            make_trace(uuid="e", status="TIMEOUT"),
        ]
    )
    assert trace_set.get_best_trace("gemm").workload.uuid == "d"
    assert trace_set.get_best_trace("gemm", max_rel_error=1).workload.uuid == "b"
    assert trace_set.get_best_trace("gemm", {"K": 2, "M": 1}).workload.uuid == "a"
    assert trace_set.get_best_trace("gemm", {"M": 1}) is None
    assert trace_set.get_best_trace("nobody") is None


def test_filtering_keeps_passing_traces_within_the_bounds_in_order(trace_set, make_trace):
    batch = [
        make_trace(uuid="a", speedup=1.0),
        make_trace(uuid="b", status="RUNTIME_ERROR"),
        make_trace(uuid="c", absolute=1),
        make_trace(uuid="d", speedup=5.0),
    ]
    trace_set.add_traces(batch)
    assert [t.workload.uuid for t in trace_set.filter_traces("gemm")] == ["a", "d"]
    assert [t.workload.uuid for t in trace_set.filter_traces("gemm", atol=1)] == ["a", "c", "d"]
    assert trace_set.filter_traces("nobody") == []


def test_importing_the_package_imports_nothing_heavy():
    program = (
        "import sys, fib_schema\nfrom fib_schema import TraceSet, Definition\n"
        "print([m for m in ('torch', 'numpy', 'pydantic', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_tensors_of_a_workload_are_stored_once_and_read_back(trace_set):
    torch = pytest.importorskip("torch", reason="torch is an optional dependency")
    tensors = {"A": torch.arange(6).reshape(2, 3).T, "B": torch.zeros(0, dtype=torch.bfloat16)}
    path = trace_set.add_workload_blob_tensor("gemm", "w0", tensors)
    assert path == "blob/workloads/gemm/gemm/gemm_w0.safetensors"
    found = trace_set.get_workload_blob_tensor("./" + path)
    assert found.keys() == tensors.keys()
    assert torch.equal(found["A"], tensors["A"])
    with pytest.raises(ValueError, match="exists already"):
        trace_set.add_workload_blob_tensor("gemm", "w0", tensors)


@pytest.mark.parametrize(
    ("path", "message"),
    [("blob/none.safetensors", "does not exist"), ("../x", "stay below"), ("/etc/passwd", "absolute")],
)
def test_bad_blob_paths_are_refused(trace_set, path, message):
    pytest.importorskip("torch", reason="torch is an optional dependency")
    with pytest.raises(ValueError, match=message):
        trace_set.get_workload_blob_tensor(path)


def test_a_git_lfs_pointer_is_recognised(trace_set):
    pytest.importorskip("torch", reason="torch is an optional dependency")
    (trace_set.root / "blob").mkdir()
    (trace_set.root / "blob" / "x.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(ValueError, match="git lfs pull"):
        trace_set.get_workload_blob_tensor("blob/x.safetensors")
