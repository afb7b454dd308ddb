"""Tests of the walk over folders: its order, links, folders that cannot be listed, and any depth."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fib_schema import migrate
from fib_schema.files import staged
from fib_schema.folder_walk import remove_tree, walk

DEPTH = 1_500


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A data set with folders nested too deep for recursion; pytest cannot remove them on Python 3.11."""
    root = tmp_path / "deep"
    folder = root / "blob"
    folder.mkdir(parents=True)
    for _ in range(DEPTH):
        folder /= "d"
        os.mkdir(folder)
    (folder / "x.bin").write_bytes(b"x")
    yield root
    remove_tree(root)


def test_a_walk_yields_a_folder_before_its_content_and_follows_no_link(tmp_path: Path) -> None:
    """Entries come in the order of names."""
    (tmp_path / "b" / "inner").mkdir(parents=True)
    (tmp_path / "a.txt").touch()
    (tmp_path / "b" / "inner" / "c.txt").touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    names = [os.path.relpath(entry.path, tmp_path) for entry in walk(tmp_path)]
    assert names == ["a.txt", "b", "b/inner", "b/inner/c.txt", "loop"]
    assert [entry.name for entry in walk(tmp_path, enters=lambda entry: entry.name != "b")] == ["a.txt", "b", "loop"]


def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path) -> None:
    """The walk itself goes on."""
    told: list[str] = []
    assert list(walk(tmp_path / "none", on_error=lambda path, error: told.append(path))) == []
    assert told == [str(tmp_path / "none")]


def test_a_walk_and_a_removal_do_not_recurse(deep: Path) -> None:
    """1,500 folders exceed the limit of recursion."""
    entries = list(walk(deep))
    assert (len(entries), entries[-1].name) == (DEPTH + 2, "x.bin")
    remove_tree(deep)
    assert not deep.exists()


def test_a_deep_set_is_migrated(deep: Path, tmp_path: Path) -> None:
    """Files at any depth are carried over."""
    target = tmp_path / "new"
    try:
        assert migrate(deep, target).counts["files"] == 1
        assert sum(entry.name == "x.bin" for entry in walk(target)) == 1
    finally:
        remove_tree(target)


def test_a_deep_folder_that_was_not_finished_is_removed(deep: Path, tmp_path: Path) -> None:
    """The temporary of a failed block may have any depth too."""
    with pytest.raises(FileNotFoundError), staged(tmp_path / "target") as stage:
        _move_and_fail(deep, stage)
    assert [path.name for path in tmp_path.iterdir()] == []


def _move_and_fail(folder: Path, stage: Path) -> None:
    folder.rename(stage)
    folder.rename(stage)
