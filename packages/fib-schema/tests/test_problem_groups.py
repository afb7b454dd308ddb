"""Grouping of problems for people."""

from __future__ import annotations

from fib_schema import Problem, Report, Severity
from fib_schema.problems import group_problems, problem_lines

MISSING = "the blob blob/workloads/gemm/{}.safetensors does not exist; get it, or remove the workloads that name it"


def missing(file: str, line: int) -> Problem:
    return Problem(f"workloads/{file}.jsonl:{line}", "$.workload.inputs.A.path", MISSING.format(f"{file}_{line}"))


def test_problems_that_differ_only_in_paths_and_numbers_are_one_line() -> None:
    problems = tuple(missing("ab"[number % 2], number) for number in range(126))
    report = Report("set", problems)
    first, summary = report.to_text().splitlines()
    assert first == (
        "error: workloads/a.jsonl:0 at $.workload.inputs.A.path: "
        "the blob blob/workloads/gemm/a_0.safetensors does not exist; get it, or remove the workloads that name it "
        "(and 125 more like it, in 2 files: workloads/b.jsonl:1, workloads/a.jsonl:2, workloads/b.jsonl:3, ...)"
    )
    assert summary.endswith("126 errors, 0 warnings")
    assert len(report.to_plain()["problems"]) == 126


def test_problems_that_say_something_else_have_a_line_each() -> None:
    problems = [
        Problem("a.json", "$", "no definition is named 'x'"),
        Problem("b.json", "$", "no definition is named 'y'"),
        Problem("a.json", "$", "no definition is named 'x'", Severity.WARNING),
        Problem("a.json", "$", "no definition is named 'x'", code="other"),
        Problem("c.json", "$", "no definition is named 'x'"),
        Problem("a.jsonl:1", "$.workload.axes.M", "must be at least 0, got -1"),
        Problem("a.jsonl:7", "$.workload.axes.N", "must be at least 0, got -20"),
    ]
    assert list(map(str, group_problems(problems))) == [
        "a.json: no definition is named 'x' (and 1 more like it, in 2 files: c.json)",
        "b.json: no definition is named 'y'",
        "a.json: no definition is named 'x'",
        "a.json: no definition is named 'x'",
        "a.jsonl:1 at $.workload.axes.M: must be at least 0, got -1 (and 1 more like it: a.jsonl:7)",
    ]


def test_lines_name_each_file_and_are_bounded() -> None:
    problems = [Problem(f"{number}.json", "$", "is bad") for number in range(120)]
    warning = Problem("a.json", "$", "is odd", Severity.WARNING)
    lines = problem_lines([warning, *problems, *problems])
    assert lines[0] == "error: 0.json: is bad"
    assert lines[99:] == ["error: 99.json: is bad", "21 more problems ('fib-bench validate' lists all)"]
