"""Validation of folders that are no data sets."""

import pytest
from fib_schema import validate


def only_problem(path):
    report = validate(path)
    assert not report.is_ok
    (problem,) = report.problems
    assert problem.code == "no-data-set"
    assert problem.source == str(path)
    return problem


@pytest.mark.parametrize(
    "inside", ["definitions", "definitions/gemm", "solutions/ada", "workloads", "traces", "blob/workloads"]
)
def test_a_folder_inside_a_data_set_names_the_data_set(trace_set, inside):
    folder = trace_set.root / inside
    folder.mkdir(parents=True, exist_ok=True)
    assert f"did you mean '{trace_set.root}'?" in only_problem(folder).message


def test_a_folder_that_holds_data_sets_names_them(trace_set):
    above = trace_set.root.parent
    assert f"did you mean '{above / 'set'}'?" in only_problem(above).message
    (above / "other" / "definitions").mkdir(parents=True)
    (above / ".hidden" / "definitions").mkdir(parents=True)
    assert f"did you mean '{above / 'other'}' or '{above / 'set'}'?" in only_problem(above).message


def test_any_other_folder_says_what_a_data_set_has(tmp_path):
    message = only_problem(tmp_path).message
    assert message.startswith("is no data set: it has none of the folders definitions, solutions, workloads, traces")
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "main.py").touch()
    assert only_problem(tmp_path).message.startswith("has no definition, solution, workload or trace; pass the folder")
