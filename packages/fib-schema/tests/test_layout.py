"""Walk of a data set: which files and links are followed and which are reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from fib_schema import TraceSet


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("..", "links to a folder that is read already; remove the link"),
        (".", "links to a folder that is read already; remove the link"),
        ("nothing", "is a link to nothing; remove it"),
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
