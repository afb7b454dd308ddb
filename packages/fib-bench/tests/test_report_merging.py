"""Tests of merging data sets: nothing is lost, and every choice is reported."""

import json
import os
import shutil

import pytest
from fib_bench.cli.main import main
from fib_bench.report.merging import MergeConflicts, merge
from fib_schema import TargetNotEmpty, TraceSet
from hypothesis import given
from hypothesis import strategies as st

from .samples import make_result


def contents(root):
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def one(write_set):
    root = write_set(make_result("a", "1", 1.0), make_result("b", "1", log="boom"), name="one")
    (root / "README.md").write_text("ours\n")
    blob = root / "blob" / "workloads" / "x.safetensors"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"\0\1")
    return root


class TestMerge:
    def test_of_one_set_is_byte_for_byte_that_set(self, one, tmp_path):
        merge([one], tmp_path / "all")
        assert contents(tmp_path / "all") == contents(one)

    def test_traces_are_taken_once_by_content_and_the_first_sets_stand_first(self, one, write_set, tmp_path):
        two = write_set(make_result("a", "2", 2.0), make_result("a", "1", 1.0), name="two")
        (path,) = (two / "traces").rglob("*.jsonl")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(dict(reversed(line.items())), indent=None) + "\n" for line in lines))
        merge([one, two], tmp_path / "all")
        first = (one / path.relative_to(two)).read_bytes()
        merged = (tmp_path / "all" / path.relative_to(two)).read_bytes()
        assert merged == first + path.read_bytes().splitlines(keepends=True)[0]
        assert [t.workload.uuid for t in TraceSet.from_path(tmp_path / "all").traces["double"]] == ["1", "1", "2"]

    def test_a_torn_last_line_does_not_swallow_the_next_sets_first(self, one, write_set, tmp_path):
        two = write_set(make_result("a", "2", 2.0), name="two")
        (path,) = (one / "traces").rglob("*.jsonl")
        path.write_bytes(path.read_bytes().rstrip(b"\n"))
        merge([one, two], tmp_path / "all")
        assert len(TraceSet.from_path(tmp_path / "all").traces["double"]) == 3

    def test_a_line_that_is_no_json_is_kept_and_reported(self, one, tmp_path):
        (path,) = (one / "traces").rglob("*.jsonl")
        path.write_bytes(path.read_bytes() + b'{"torn": \n')
        report = merge([one, one], tmp_path / "all")
        assert contents(tmp_path / "all") == contents(one)
        assert [problem.line for problem in report.validation.problems] == [3]

    @pytest.mark.parametrize("links", ["file", "folder"])
    def test_links_out_of_a_set_are_left_out_and_said(self, one, tmp_path, links):
        (tmp_path / "secret").mkdir()
        (tmp_path / "secret" / "key").write_text("secret")
        target = tmp_path / "secret" / "key" if links == "file" else tmp_path / "secret"
        (one / "traces" / "link").symlink_to(target)
        report = merge([one], tmp_path / "all")
        assert not any(b"secret" in content for content in contents(tmp_path / "all").values())
        assert report.validation.problems[0].source == str(one / "traces" / "link")

    @given(st.lists(st.lists(st.integers(0, 6), max_size=6), min_size=1, max_size=3))
    def test_every_line_is_there_once(self, tmp_path_factory, sets):
        base = tmp_path_factory.mktemp("sets")
        for index, numbers in enumerate(sets):
            path = base / str(index) / "traces" / "x.jsonl"
            path.parent.mkdir(parents=True)
            path.write_text("".join(f'{{"evaluation": {number}}}\n' for number in numbers))
        merge([base / str(index) for index in range(len(sets))], base / "all")
        found = base / "all" / "traces" / "x.jsonl"
        lines = [json.loads(line)["evaluation"] for line in found.read_text().splitlines()] if found.exists() else []
        assert lines == list(dict.fromkeys(number for numbers in sets for number in numbers))


class TestConflicts:
    def test_all_are_explained_and_nothing_is_written(self, one, tmp_path):
        two = tmp_path / "two"
        shutil.copytree(one, two)
        definition = next((two / "definitions").rglob("*.json"))
        definition.write_text(definition.read_text().replace("x * 2", "x + x").replace('"n"', '"m"'))
        solution = next((two / "solutions").rglob("a.json"))
        solution.write_text(solution.read_text().replace('"tester"', '"other"'))
        (two / "blob" / "workloads" / "x.safetensors").write_bytes(b"\2")
        for root, calls in ((one, "1"), (two, "2")):
            (root / "traffic").mkdir()
            (root / "traffic" / "rank-0.json").write_text(calls)
        with pytest.raises(MergeConflicts, match="nothing was written") as raised:
            merge([one, two], tmp_path / "all")
        said = {conflict.partition(" ")[0]: conflict for conflict in raised.value.conflicts}
        assert set(said) == {"definition", "solution", "blob", "traffic"}
        assert "differs in author: " in said["solution"]
        assert "reference" in said["definition"]
        assert said["solution"].endswith(f" and {solution}")
        assert not (tmp_path / "all").exists()
        assert main(["report", "merge", str(one), str(two), "--into", str(tmp_path / "all")]) == 1

    def test_a_workload_of_one_uuid_must_be_the_same(self, tmp_path):
        for index, size in enumerate((4, 5)):
            path = tmp_path / str(index) / "workloads" / "x.jsonl"
            path.parent.mkdir(parents=True)
            line = {"definition": "d", "workload": {"uuid": "u", "axes": {"n": size}}, "evaluation": None}
            path.write_text(json.dumps(line) + "\n")
        with pytest.raises(MergeConflicts, match=r"workload 'd/u' differs in workload"):
            merge([tmp_path / "0", tmp_path / "1"], tmp_path / "all")


class TestPlaces:
    def test_a_target_that_holds_something_is_refused(self, one, tmp_path):
        with pytest.raises(TargetNotEmpty):
            merge([one], one)
        with pytest.raises(TargetNotEmpty):
            merge([one], tmp_path)
        with pytest.raises(TargetNotEmpty, match="lies inside"):
            merge([one], one / "new")

    def test_a_merge_that_fails_leaves_nothing_behind(self, one, tmp_path, monkeypatch):
        def fail(*_):
            raise OSError("the disk is full")

        monkeypatch.setattr(shutil, "copy2", fail)
        with pytest.raises(OSError, match="full"):
            merge([one], tmp_path / "all")
        assert [path.name for path in tmp_path.iterdir()] == ["one"]

    def test_the_command_says_what_it_did(self, one, tmp_path, capsys):
        assert main(["report", "merge", str(one), str(one), "--into", str(tmp_path / "all")]) == 0
        assert f"{one} + {one} -> {tmp_path / 'all'}: 1 definition, 2 solutions" in capsys.readouterr().out


class TestBadFiles:
    """A bad file costs only itself."""

    @pytest.mark.parametrize("place", ["definitions/p.json", "traces/p.jsonl", "blob/p.safetensors", "README.pipe"])
    def test_a_pipe_is_left_out_and_named(self, one, tmp_path, place):
        before = contents(one)
        (one / place).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(one / place)
        report = merge([one], tmp_path / "all")
        assert contents(tmp_path / "all") == before
        problem = report.validation.problems[0]
        assert problem.source == str(one / place)
        assert "is not a regular file" in problem.message

    def test_bad_records_of_every_kind_are_listed(self, one, tmp_path):
        (lines,) = (one / "traces").rglob("*.jsonl")
        lines.write_bytes(lines.read_bytes() + b"[]\n")
        (one / "definitions" / "null.json").write_text("null")
        report = merge([one], tmp_path / "all")
        named = {problem.file for problem in report.validation.problems}
        assert {"definitions/null.json", str(lines.relative_to(one))} <= named

    def test_equal_names_in_one_set_are_no_conflict(self, one, tmp_path):
        (definition,) = (one / "definitions").rglob("*.json")
        namesake = {**json.loads(definition.read_text()), "description": "another"}
        (one / "definitions" / "namesake.json").write_text(json.dumps(namesake))
        path = one / "workloads" / "double.jsonl"
        path.parent.mkdir()
        workloads = [{"uuid": "u", "axes": {"n": size}, "inputs": {}} for size in (4, 5)]
        uuids = [{"definition": "double", "workload": workload} for workload in workloads]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in uuids))
        shutil.copytree(one, tmp_path / "two")
        report = merge([one], tmp_path / "all")
        assert contents(tmp_path / "all") == contents(one)
        assert {"duplicate-name", "duplicate-workload"} <= {problem.code for problem in report.validation.problems}
        (tmp_path / "two" / "workloads" / "double.jsonl").write_text(json.dumps({**uuids[0], "extra": 1}) + "\n")
        with pytest.raises(MergeConflicts, match="workload 'double/u'"):
            merge([one, tmp_path / "two"], tmp_path / "more")

    def test_the_command_writes_the_rest_and_exits_with_1(self, one, tmp_path, capsys):
        os.mkfifo(one / "traces" / "p.jsonl")
        assert main(["report", "merge", str(one), "--into", str(tmp_path / "all")]) == 1
        assert "p.jsonl: " in capsys.readouterr().err
        assert TraceSet.from_path(tmp_path / "all").definitions
