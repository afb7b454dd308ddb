"""Walk of a data set: which files and links are followed and which are reported."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fib_schema import DataWarning, Trace, TraceSet, format_json


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("..", "links to a folder that is read already; remove the link"),
        (".", "links to a folder that is read already; remove the link"),
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


def test_links_within_the_set_are_followed(trace_set: TraceSet) -> None:
    (trace_set.definitions_path / "gemm").rename(trace_set.definitions_path / "moved")
    (trace_set.definitions_path.parent / "elsewhere").mkdir()
    (trace_set.definitions_path / "moved").rename(trace_set.definitions_path.parent / "elsewhere/moved")
    (trace_set.definitions_path / "gemm").symlink_to("../elsewhere/moved")
    opened = TraceSet.from_path(trace_set.root)
    assert opened.definitions["gemm"].op_type == "gemm"
    assert opened.problems == ()


def test_a_pipe_is_reported_and_not_waited_for(trace_set: TraceSet) -> None:
    os.mkfifo(trace_set.definitions_path / "pipe.json")
    opened = TraceSet.from_path(trace_set.root)
    assert list(opened.definitions) == ["gemm"]
    assert [found.code for found in opened.problems] == ["no-file"]


def test_a_folder_that_two_links_lead_to_is_read_once(trace_set: TraceSet) -> None:
    (trace_set.definitions_path / "gemm").rename(trace_set.definitions_path.parent / "elsewhere")
    for name in ("first", "second"):
        (trace_set.definitions_path / name).symlink_to("../elsewhere")
    opened = TraceSet.from_path(trace_set.root)
    assert list(opened.definitions) == ["gemm"]
    assert [found.code for found in opened.problems] == ["link-again"]


def test_files_of_other_suffixes_are_no_problem_of_a_set(trace_set: TraceSet) -> None:
    (trace_set.definitions_path / "README.md").touch()
    assert TraceSet.from_path(trace_set.root).problems == ()


@pytest.mark.parametrize(
    ("content", "code", "count"),
    [(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-lfs", 0), (b"\xef\xbb\xbf", "bom", 1)],
)
def test_pointers_and_byte_order_marks_among_traces_are_recognised(
    trace_set: TraceSet, make_trace: Callable[[], Trace], content: bytes, code: str, count: int
) -> None:
    file = trace_set.traces_path / "gemm.jsonl"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content + (format_json(make_trace()).encode() if count else b""))
    opened = TraceSet.from_path(trace_set.root)
    with pytest.warns(DataWarning, match=r"gemm\.jsonl"):
        assert len(opened.traces.get("gemm", [])) == count
    assert [found.code for found in opened.problems] == [code]
