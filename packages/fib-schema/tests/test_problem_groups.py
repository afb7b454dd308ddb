from fib_schema import Problem, Report, Severity
from fib_schema.problems import problem_lines

MISSING = "the blob blob/workloads/gemm/{}.safetensors does not exist; get it, or remove the workloads that name it"


def missing(file, line):
    return Problem(f"workloads/{file}.jsonl:{line}", "$.workload.inputs.A.path", MISSING.format(f"{file}_{line}"))


def test_problems_that_differ_only_in_paths_and_numbers_are_one_line():
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


def test_problems_that_say_something_else_have_a_line_each():
    problems = [
        Problem("a.json", "$", "no definition is named 'x'"),
        Problem("b.json", "$", "no definition is named 'y'"),
        Problem("a.json", "$", "no definition is named 'x'", Severity.WARNING),
        Problem("a.json", "$", "no definition is named 'x'", code="other"),
        Problem("c.json", "$", "no definition is named 'x'"),
        Problem("a.jsonl:1", "$.workload.axes.M", "must be at least 0, got -1"),
        Problem("a.jsonl:7", "$.workload.axes.N", "must be at least 0, got -20"),
    ]
    assert problem_lines([*problems, *problems]) == [
        "error: a.json: no definition is named 'x' (and 1 more like it, in 2 files: c.json)",
        "error: b.json: no definition is named 'y'",
        "error: a.json: no definition is named 'x'",
        "error: a.jsonl:1 at $.workload.axes.M: must be at least 0, got -1 (and 1 more like it: a.jsonl:7)",
        "warning: a.json: no definition is named 'x'",
    ]


def test_lines_are_bounded():
    lines = problem_lines([Problem("a.json", "$", f"is {'bad' * number}") for number in range(120)])
    assert lines[98:] == [
        f"error: a.json: is {'bad' * 98}",
        f"error: a.json: is {'bad' * 99}",
        "20 more problems ('fib-bench validate' lists all)",
    ]
