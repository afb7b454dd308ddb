import pytest
from fib_schema.entry_points import UnusableEntryPoint, find_entry_points, load_entry_point

GROUP = "fib_schema.no_such_group"


def test_entry_points_are_found_in_order_once_for_each_search_path(tmp_path, monkeypatch, write_distribution):
    assert find_entry_points(GROUP) == ()
    write_distribution(tmp_path, "ours", f"[{GROUP}]\nb = os:sep\na = os:no_such_name\nc = no_such_module:x\n")
    write_distribution(tmp_path, "theirs", f"[{GROUP}]\na = os:path\n")
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
