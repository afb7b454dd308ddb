"""Walk of a data set: which files and links are followed and which are reported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fib_schema import DataWarning, TraceSet


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("..", "is a link to a folder, which is not followed; move the folder here"),
        ("nothing", "is a link to nothing or to itself; remove it"),
        ("../../../outside.json", "is a link that leads out of the data set; copy what it points to instead"),
    ],
)
def test_links_that_lead_nowhere_good_are_reported_and_not_followed(
    trace_set: TraceSet, tmp_path: Path, target: str, problem: str
) -> None:
    (tmp_path / "outside.json").write_text("{}")
    (trace_set.definitions_path / "more").mkdir()
    (trace_set.definitions_path / "more/link.json").symlink_to(target)
    opened = TraceSet.from_path(trace_set.root)
    assert list(opened.definitions) == ["gemm"]
    assert [found.message for found in opened.problems] == [problem]


def test_a_pipe_is_reported_and_not_waited_for(trace_set: TraceSet) -> None:
    os.mkfifo(trace_set.definitions_path / "pipe.json")
    opened = TraceSet.from_path(trace_set.root)
    assert list(opened.definitions) == ["gemm"]
    assert [found.code for found in opened.problems] == ["no-file"]


def test_files_of_other_suffixes_are_no_problem_of_a_set(trace_set: TraceSet) -> None:
    (trace_set.definitions_path / "README.md").touch()
    assert TraceSet.from_path(trace_set.root).problems == ()


def test_pointers_among_traces_are_recognised(trace_set: TraceSet) -> None:
    file = trace_set.traces_path / "gemm.jsonl"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    opened = TraceSet.from_path(trace_set.root)
    with pytest.warns(DataWarning, match=r"gemm\.jsonl"):
        assert opened.traces.get("gemm", []) == []
    assert [found.code for found in opened.problems] == ["git-lfs"]
