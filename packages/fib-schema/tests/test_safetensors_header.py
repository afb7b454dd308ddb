"""Tests of the header of safetensors files: what safetensors refuses is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fib_schema.blobs import BadHeader, read_header


def written(path: Path, data_bytes: int, **offsets: tuple[int, int]) -> str:
    """A file of one-dimensional tensors of bytes."""
    header = {
        name: {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
        for name, (begin, end) in offsets.items()
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data_bytes))
    return str(path)


def test_tensors_that_fill_the_data_are_read(tmp_path: Path) -> None:
    """The order of names does not matter, and empty tensors take no place."""
    path = written(tmp_path / "x", 8, a=(4, 8), b=(0, 4), empty=(4, 4))
    assert sorted(read_header(path)) == ["a", "b", "empty"]


@pytest.mark.parametrize(
    ("offsets", "data_bytes", "problem"),
    [
        ({"a": (0, 4), "b": (2, 6)}, 6, "overlaps"),
        ({"a": (0, 4), "b": (0, 4)}, 4, "overlaps"),
        ({"a": (0, 4), "b": (6, 8)}, 8, "leaves a gap"),
        ({"a": (2, 4)}, 4, "leaves a gap"),
        ({"a": (0, 4)}, 9, "take 4 bytes, and 9 follow"),
        ({}, 1, "take 0 bytes, and 1 follow"),
    ],
)
def test_overlaps_and_gaps_are_refused(
    tmp_path: Path, offsets: dict[str, tuple[int, int]], data_bytes: int, problem: str
) -> None:
    """The format has neither, and safetensors refuses the file."""
    with pytest.raises(BadHeader, match=problem):
        read_header(written(tmp_path / "x", data_bytes, **offsets))
