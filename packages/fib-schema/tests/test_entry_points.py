"""Entry points of installed packages."""

from __future__ import annotations

from pathlib import Path

import pytest
from fib_schema.entry_points import UnusableEntryPoint, find_entry_points, load_entry_point

GROUP = "fib_schema.no_such_group"


def install(folder: Path, name: str, text: str) -> None:
    folder = folder / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[{GROUP}]\n{text}")


def test_entry_points_are_found_in_order_once_for_each_search_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_entry_points(GROUP) == ()
    install(tmp_path, "ours", "b = os:sep\na = os:no_such_name\nc = no_such_module:x\n")
    install(tmp_path, "theirs", "a = os:path\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = find_entry_points(GROUP)
    assert [(point.name, point.value) for point in found] == [
        ("a", "os:no_such_name"),
        ("a", "os:path"),
        ("b", "os:sep"),
        ("c", "no_such_module:x"),
    ]
    assert find_entry_points(GROUP) is found
    assert load_entry_point(found[2]) == "/"
    for point, problem in ((found[0], "AttributeError: "), (found[3], "ModuleNotFoundError: ")):
        with pytest.raises(UnusableEntryPoint) as raised:
            load_entry_point(point)
        place = f"entry point {point.name!r} ({point.value}) of distribution 'ours' 1.0"
        assert str(raised.value).startswith(f"{place}: {problem}")
