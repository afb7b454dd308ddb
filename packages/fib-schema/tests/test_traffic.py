"""Tests of traffic counts: sums over files, the share of each workload, and files that are not usable."""

import json

import pytest
from fib_schema import RandomInput, Workload
from fib_schema.traffic import FOLDER, DefinitionTraffic, load_traffic, plain_size
from hypothesis import given
from hypothesis import strategies as st

PACKED = (("x", (1, 3)),)


def workload(uuid, m, layout=None):
    return Workload({"M": m}, {"x": RandomInput()}, uuid, None if layout is None else {"layout": layout})


def write(root, name, content):
    path = root / FOLDER / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def file_of(calls, *sizes, **fields):
    return {"version": 1, "definitions": {"silu": {"calls": calls, "sizes": list(sizes)}}, **fields}


def test_a_set_without_files_has_no_traffic(tmp_path):
    found = load_traffic(tmp_path)
    assert (dict(found.definitions), found.problems) == ({}, ())


def test_files_are_summed(tmp_path):
    """Equal calls of two ranks count twice: two devices ran them."""
    sizes = [plain_size({"M": 8}, (), 5), plain_size({"M": 8}, PACKED, 2), plain_size({"M": 9}, None, 1)]
    write(tmp_path, "rank-0-a.json", file_of(10, *sizes))
    write(tmp_path, "rank-1-b.json", file_of(20, sizes[0]))
    found = load_traffic(tmp_path)
    assert found.problems == ()
    eight = (("M", 8),)
    expected = {(eight, ()): 10, (eight, PACKED): 2, ((("M", 9),), None): 1}
    assert found.definitions["silu"] == DefinitionTraffic(30, expected)


def test_the_order_of_axes_and_of_strides_does_not_matter(tmp_path):
    first = plain_size({"M": 1, "N": 2}, (("x", (1, 2)), ("y", (1, 2))), 1)
    second = plain_size({"N": 2, "M": 1}, (("y", (1, 2)), ("x", (1, 2))), 2)
    write(tmp_path, "a.json", file_of(3, first, second))
    assert list(load_traffic(tmp_path).definitions["silu"].sizes.values()) == [3]


def test_calls_of_a_size_are_divided_among_its_workloads():
    eight, nine = (("M", 8),), (("M", 9),)
    traffic = DefinitionTraffic(100, {(eight, ()): 10, (eight, PACKED): 3, (eight, None): 6, (nine, ()): 4})
    workloads = [workload("a", 8), workload("b", 8), workload("p", 8, {"x": [1, 3]}), workload("none", 7)]
    assert traffic.calls_by_workload(workloads) == {"a": 5 + 2, "b": 5 + 2, "p": 3 + 2}
    assert traffic.calls_by_workload([*workloads, workload("a", 8)]) == {"a": 7, "b": 7, "p": 5}


def test_a_workload_with_an_invalid_layout_counts_where_layouts_are_not_told_apart():
    traffic = DefinitionTraffic(9, {((("M", 8),), None): 4, ((("M", 8),), ()): 5})
    assert traffic.calls_by_workload([workload("bad", 8, "no layout")]) == {"bad": 4}


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([None, (), PACKED]), st.integers(0, 50)), max_size=8))
def test_no_call_is_counted_twice(sizes):
    counted = {}
    for m, layout, calls in sizes:
        counted[(("M", m),), layout] = calls
    workloads = [workload(f"{m}-{n}", m, {"x": [1, 3]} if n == 2 else None) for m in range(1, 4) for n in range(3)]
    found = DefinitionTraffic(1000, counted).calls_by_workload(workloads)
    recorded = sum(calls for (((_, m),), _), calls in counted.items() if m < 4)
    assert sum(found.values()) == pytest.approx(recorded)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[" * 100_000,
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
        {"version": 2, "definitions": {}},
        {"definitions": {}},
        {"version": 1, "definitions": []},
        file_of(-1),
        file_of(5, {"axes": {"M": 1}, "calls": -1}),
        file_of(5, {"axes": {"M": 1}, "calls": 6}),
        file_of(5, {"axes": {"M": "1"}, "calls": 5}),
    ],
)
def test_a_file_that_is_not_usable_is_a_problem_and_others_count(content, tmp_path):
    write(tmp_path, "a.json", content)
    write(tmp_path, "b.json", file_of(1))
    found = load_traffic(tmp_path)
    assert found.definitions["silu"].calls == 1
    assert [problem.source for problem in found.problems] == ["traffic/a.json"]
    assert "it was left out" in found.problems[0].message
