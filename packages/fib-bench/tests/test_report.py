"""Tests of reports: leaderboards, the fastest solutions, failures, and how they are printed."""

import json
import math
import re
import threading
from io import StringIO
from types import SimpleNamespace

import attrs
import pytest
from fib_bench.benchmark import RunResult
from fib_bench.cli.main import main
from fib_bench.cli.output import (
    print_best,
    print_comparison,
    print_leaderboard,
    print_skipped,
    print_summary,
    progress_on,
)
from fib_bench.events import Evaluated, Planned, Skipped, Working
from fib_bench.plan import Plan, Skip
from fib_bench.report import best, error_line, failure_text, leaderboard, summarise
from fib_bench.report.comparing import compare
from fib_bench.report.leaderboard import format_trace
from fib_bench.report.ratios import light_of
from fib_schema import Performance, Trace, TraceSet, UnknownName
from fib_schema.trace_facts import CPU_TIMING, INTERPRETED, OLDER_TIMING
from rich.console import Console

from .samples import DOUBLE, make_result, make_solution, trace_set_of


def make_trace(solution, workload, speedup=None, log="", **more):
    """A trace with a speedup, which passed, or with a log, which did not."""
    return make_result(solution, workload, None if speedup is None else 1.0 / speedup, log=log, **more)


def make_set(*traces):
    names = dict.fromkeys(str(trace.solution) for trace in traces)
    solutions = [make_solution(f"def run(x): {name!r}", name=name) for name in names]
    return TraceSet(definitions={"double": DOUBLE}, solutions={"double": solutions}, traces={"double": traces})


@pytest.fixture
def console():
    return Console(width=100, record=True, file=StringIO())


class TestFlags:
    def test_what_is_flagged_is_not_ranked_and_the_reason_is_told(self):
        trace_set = make_set(
            make_trace("exact", "1", 2.0, flags=["fixed_inputs"]),
            make_trace("rough", "1", 9.0, flags=["fixed_inputs", "low_precision"]),
        )
        exact, rough = leaderboard(trace_set)
        assert (exact.solution, exact.speedup.point, exact.problem) == ("exact", 2.0, "")
        assert (rough.speedup.point, rough.passed) == (None, 1)
        assert rough.problem == "unranked, flagged: low_precision"
        assert [row.solution for row in best(trace_set)] == ["exact"]

    def test_it_is_ranked_where_the_flag_is_allowed(self):
        trace_set = make_set(make_trace("exact", "1", 2.0), make_trace("rough", "1", 9.0, flags=["low_precision"]))
        rows = summarise(trace_set, ["low_precision"]).leaderboard
        assert [(row.solution, row.speedup.point) for row in rows] == [("rough", pytest.approx(9.0)), ("exact", 2.0)]
        assert [row.solution for row in best(trace_set, allow_flags=["low_precision"])] == ["rough"]


class TestLeaderboard:
    def test_the_fastest_that_pass_everything_come_first(self):
        rows = leaderboard(
            make_set(
                make_trace("fails_once", "1", 100.0),
                make_trace("fails_once", "2", log="boom"),
                make_trace("slow", "1", 0.5),
                make_trace("slow", "2", 2.0),
                make_trace("fast", "1", 4.0),
                make_trace("fast", "2", 9.0),
                make_trace("fails", "1", log="boom"),
            )
        )
        assert [(r.solution, r.passed, r.total) for r in rows] == [
            ("fast", 2, 2),
            ("slow", 2, 2),
            ("fails_once", 1, 2),
            ("fails", 0, 1),
        ]
        assert [r.speedup.point for r in rows] == [pytest.approx(6.0), pytest.approx(1.0), None, None]
        assert rows[0].latency_ms == (1 / 9, 1 / 4)
        assert rows[2].problem == "RUNTIME_ERROR, untrusted output: boom"

    def test_traces_of_a_solution_whose_file_is_gone_or_bad_count(self, make_data_set):
        root = make_data_set(make_solution("def run(x): 1", name="bad"), make_solution("def run(x): 2", name="gone"))
        TraceSet.from_path(root).add_traces([make_trace("bad", "1", 2.0), make_trace("gone", "1", 1.0)])
        next(root.rglob("gone.json")).unlink()
        next(root.rglob("bad.json")).write_text("{}")
        rows = leaderboard(TraceSet.from_path(root))
        assert [(r.solution, r.language) for r in rows] == [("bad", "?"), ("gone", "?")]


class TestBest:
    def test_is_the_fastest_that_passed_on_each_workload(self):
        rows = best(
            make_set(
                make_trace("a", "1", 2.0),
                make_trace("b", "1", 3.0),
                make_trace("a", "2", 5.0),
                make_trace("b", "2", log="boom"),
                make_trace("b", "3", log="boom"),
            )
        )
        assert [(r.workload, r.solution, r.speedup.point) for r in rows] == [("1", "b", 3.0), ("2", "a", 5.0)]

    def test_of_an_unknown_definition_is_an_error(self):
        with pytest.raises(UnknownName, match="did you mean 'double'"):
            best(make_set(), ["dubble"])


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", ""),
        ("output 'y' has shape (1,)\nmore", "output 'y' has shape (1,)"),
        ("Traceback (most recent call last):\n  File\nValueError: boom\n", "ValueError: boom"),
        ("Traceback (most ...\nValueError: boom\n--- printed by the worker ---\nhello", "ValueError: boom"),
        ("\x1b[2Jcleared\x07", r"\x1b[2Jcleared\x07"),
        (
            "solution 'a' (cpp): does not compile\n  k.cpp:1:7: error: expected ';'\n  x",
            "k.cpp:1:7: error: expected ';'",
        ),
        ("solution 'a' (python): importing 'k.py' failed\n  File", "importing 'k.py' failed"),
    ],
)
def test_the_error_line_says_why_an_evaluation_failed(log, line):
    evaluation = make_trace("a", "1", log=log).evaluation
    assert error_line(evaluation) == line


def test_the_line_of_a_failure_is_short():
    evaluation = make_trace("a", "1", log=f"ValueError: {'x' * 1000}").evaluation
    assert evaluation is not None
    text = failure_text(evaluation)
    assert text.startswith("RUNTIME_ERROR, untrusted output: ValueError: ")
    assert text.endswith("x...")
    assert len(text) == 120


def test_tables_show_names_as_they_are(console):
    """Square brackets are markup to rich; in names they are letters."""
    trace_set = make_set(make_trace("a[bold]b", "1", 2.0), make_trace("c[red]d", "1", log="lost [red]text"))
    print_summary(console, summarise(trace_set))
    print_leaderboard(console, [])
    print_best(console, best(trace_set))
    text = console.export_text()
    assert text.count("a[bold]b") == 2
    assert "RUNTIME_ERROR, untrusted output: lost [red]text\n  c[red]d on n=4\n" in text
    assert "1 definition, 2 solutions, 0 workloads, 2 traces (1 PASSED, 1 RUNTIME_ERROR)" in text


def test_a_trace_in_one_line_says_how_fast_or_what_is_wrong():
    assert format_trace(make_trace("a", "1", 2.0)) == "double [n=4] a: PASSED 500 us, 2.00x"
    assert format_trace(make_trace("a", "1", 2.0, flags=("low_precision",))).endswith("2.00x, low_precision")
    assert format_trace(make_trace("a", "1", log="boom")) == "double [n=4] a: RUNTIME_ERROR, untrusted output: boom"


def test_the_result_of_a_run_is_a_line_for_each_evaluation_with_escaped_text():
    traces = (make_trace("a", "1", 2.0), make_trace("b", "1", log="boom\x1b[2J"))
    result = RunResult(traces, (Skip("d", "other", None, "no builder\x1b"),))
    assert str(result).splitlines() == [
        "double [n=4] a: PASSED 500 us, 2.00x",
        r"double [n=4] b: RUNTIME_ERROR, untrusted output: boom\x1b[2J",
        r"skipped d / other: no builder\x1b",
    ]


def test_each_reason_of_skips_is_printed_once_and_no_failure_is_hidden(console):
    skips = [Skip("d", f"s{i}", None, "made for B200") for i in range(12)]
    failures = [Skip("d", None, f"w{i}", f"cause {i % 5}\nsecond line", is_failure=True) for i in range(10)]
    print_skipped(console, [*failures, *skips])
    assert console.export_text().splitlines() == [
        "12 skipped: d / s0; d / s1; d / s2, and 9 more (--json lists all): made for B200",
        *(line for i in range(5) for line in (f"2 could not run: d / w{i}; d / w{i + 5}: cause {i}", "second line")),
    ]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_shows_what_happens(is_terminal):
    console = Console(width=200, record=True, force_terminal=is_terminal, file=StringIO())
    with progress_on(console) as observe:
        observe(Planned(Plan((), ())))
        observe(Working("double", "[a]", make_trace("a", "1").workload))
        observe(Evaluated(make_trace("a", "1", 2.0)))
        observe(Evaluated(make_trace("b", "1", log="boom [x]")))
        observe(Skipped(Skip("d", None, "w", "no blob\nat all", is_failure=True), 3))
    text = console.export_text()
    assert "double [n=4] b: RUNTIME_ERROR\n" in text
    assert "could not run: d / w\n" in text
    assert "boom" not in text
    assert ("a: PASSED" in text) is not is_terminal


def test_the_progress_of_several_runs_adds_up_and_a_long_silence_is_broken(monkeypatch):
    class Log(StringIO):
        def write(self, text):
            if "b: " in text:
                is_broken.set()
            return super().write(text)

    is_broken = threading.Event()
    monkeypatch.setattr("fib_bench.cli.output._SILENT_SECONDS", 0.01)
    with progress_on(Console(width=200, file=(log := Log()))) as observe:
        for _ in range(2):
            observe(Planned(SimpleNamespace(count=1, skipped=())))
            observe(Evaluated(make_trace("a", "1", 2.0)))
        observe(Working("double", "b", make_trace("b", "1").workload))
        assert is_broken.wait(60)
    assert "[1/1] " in log.getvalue()
    assert re.search(r"^\[2/2\] double \[n=4\] b: \d+ s so far$", log.getvalue(), re.M)


@pytest.mark.parametrize("width", [40, 80, 160])
def test_tables_have_one_style_and_lose_nothing_at_any_width(width):
    console = Console(width=width, record=True, file=StringIO())
    long_name = "flashinfer_wrapper_b81f4a_with_a_long_name"
    trace_set = make_set(make_trace(long_name, "1", 2.0), make_trace("second", "1", 1.0))
    rows = leaderboard(trace_set)
    print_leaderboard(console, rows)
    print_best(console, best(trace_set))
    text = console.export_text()
    assert "device: cpu" in text
    for word in ("solution", "language", "passed", "speedup", "fast_1", "latency", "500 us", "2.00x"):
        assert word in text
    assert "…" not in text
    assert long_name in "".join(line.split("  ")[0] for line in text.splitlines())


def test_intervals_stand_beside_medians(console):
    extra = {
        "timing": {"interval_ms": [0.28, 0.30], "uncertainty_ms": 0.001},
        "reference_timing": {"interval_ms": [1.95, 2.05]},
    }
    trace_set = trace_set_of(make_result("a", "1", 0.29, reference_ms=2.0, performance_extra=extra))
    print_leaderboard(console, leaderboard(trace_set))
    print_best(console, best(trace_set))
    text = console.export_text()
    assert text.count("6.9x ± 0.5") == 2
    assert text.count("290 us ± 20") == 2


class TestFailures:
    def test_each_cause_is_printed_once_with_all_its_workloads(self, console):
        """Numbers in a message do not make another cause."""
        traces = [
            make_trace(
                "a", str(i), log=f"{i} row{'s' * (i > 1)} of 9 wrong; worst at [{i}]: -1.5e-3{'; more' * (i > 1)}"
            )
            for i in range(1, 3)
        ]
        traces += [make_trace("a", "3", log="boom"), make_trace("a", "4", 2.0), make_trace("b", "1", log="boom")]
        rows = leaderboard(make_set(*traces))
        print_leaderboard(console, rows)
        lines = console.export_text().splitlines()
        begin = next(i for i, line in enumerate(lines) if line.startswith("RUNTIME_ERROR"))
        assert lines[begin:] == [
            "RUNTIME_ERROR, untrusted output: 1 row of 9 wrong; worst at [1]: -1.5e-3",
            "  a on 2 of 4 workloads: n=4 (1); n=4 (2)",
            "RUNTIME_ERROR, untrusted output: boom",
            "  a on 1 of 4 workloads: n=4 (3)",
            "  b on n=4",
            "whole logs: fib-bench report html DIR",
        ]


class TestCommands:
    """`fib-bench report summary` and `best`."""

    def test_the_fastest_are_listed_in_the_order_of_sizes(self, write_set, capsys):
        root = write_set(*(make_result("a", str(n), 0.5, axes={"n": n}, hardware="H200") for n in (16, 5, 9, 14, 8)))
        assert main(["report", "best", str(root), "--json"]) == 0
        assert [row["axes"]["n"] for row in json.loads(capsys.readouterr().out)] == [5, 8, 9, 14, 16]

    @pytest.mark.parametrize("command", ["summary", "best", "compare"])
    def test_a_trace_of_another_layout_than_the_workload_does_not_count(self, command, write_set, capsys):
        made = [make_result("foreign", "w", 0.1, hardware="H200"), make_result("honest", "w", 0.5, hardware="H200")]
        padded = attrs.evolve(made[1].workload, extra={"layout": {"x": [2]}})
        evaluations = [made[0].evaluation, attrs.evolve(made[1].evaluation, extra={"layout": {"x": [2]}})]
        traces = [
            Trace(DOUBLE.name, padded, trace.solution, evaluation)
            for trace, evaluation in zip(made, evaluations, strict=True)
        ]
        root = write_set(*traces, Trace(DOUBLE.name, padded))
        sets = [str(root)] * (2 if command == "compare" else 1)
        assert main(["report", command, *sets, "--json"]) == 0
        printed = capsys.readouterr()
        rows = json.loads(printed.out)
        rows = rows if command == "best" else rows["leaderboard" if command == "summary" else "pairs"]
        assert [row["solution"] for row in rows] == ["honest"]
        assert "1 trace measured another layout than that of the workload, and does not count" in printed.err


class TestFast1:
    def test_is_the_share_of_tried_workloads_on_which_a_solution_passes_and_is_faster_than_the_reference(self):
        """The reference takes 1 ms. A solution that is slower has no share, also if it is the only one."""
        trace_set = trace_set_of(
            make_result("a", "1", 0.5),
            make_result("a", "2", 0.9),
            make_result("a", "3"),
            make_result("slower", "1", 1.1),
            make_result("slower", "4", 30.0),
        )
        assert {row.solution: row.fast_1 for row in leaderboard(trace_set)} == {"a": 0.5, "slower": 0.0}

    def test_a_speedup_that_is_noise_is_not_faster_and_a_wide_one_counts_by_its_lower_bound(self):
        def timed(name, low, high):
            return make_result(
                name, "1", 1.0, reference_ms=2.0, performance_extra={"timing": {"interval_ms": [low, high]}}
            )

        rows = leaderboard(trace_set_of(timed("noise", 0.5, 2.5), timed("wide", 0.5, 1.5)))
        assert {row.speedup.mark: row.fast_1 for row in rows} == {"noise": 0.0, "wide": 1.0}

    @pytest.mark.parametrize("speedup", [math.nan, math.inf, 0.0])
    def test_speedups_that_are_no_numbers_count_as_none(self, speedup):
        (row,) = leaderboard(trace_set_of(make_result("a", "1", 1.0, speedup=speedup)))
        assert (row.speedup.point, row.passed, row.fast_1) == (None, 1, 0.0)


class TestBaseline:
    def test_timed_in_turns_it_is_taken_from_the_trace(self):
        extra = {"baseline": {"solution": "lib", "latency_ms": 2.0, "speedup_factor": 4.0}}
        (row,) = leaderboard(trace_set_of(make_result("a", "1", 0.5, performance_extra=extra)))
        assert (row.baseline, row.baseline_speedup.point) == ("lib", pytest.approx(4.0))


def test_devices_are_ranked_apart():
    """A solution is not slow because another one ran on a faster device."""
    trace_set = trace_set_of(make_result("a", "1", 0.9, hardware="old"), make_result("b", "1", 0.1, hardware="new"))
    assert [(row.hardware, row.solution, row.fast_1) for row in leaderboard(trace_set)] == [
        ("old", "a", 1.0),
        ("new", "b", 1.0),
    ]
    assert [(row.hardware, row.solution) for row in best(trace_set)] == [("old", "a"), ("new", "b")]


def test_a_latency_that_is_no_number_is_never_the_best():
    assert [row.solution for row in best(trace_set_of(make_result("a", "1", 0.0), make_result("b", "1", 1.0)))] == ["b"]


@pytest.mark.parametrize(
    "extra", [None, *({"speed_of_light": given} for given in (3, {"bytes": "many"}, {"attainable_fraction": math.nan}))]
)
def test_what_a_trace_does_not_say_is_none(extra):
    assert light_of(Performance(1.0, 1.0, 1.0, extra)) is None


def timed(solution, workload, latency_ms, *, reference_ms=2.0, flags=(CPU_TIMING,), method="cpu"):
    """A trace of the CPU with narrow intervals; the reference takes 2 ms unless it is given."""
    extra = {
        "timing": {"interval_ms": [latency_ms * 0.99, latency_ms * 1.01], "method": method},
        "reference_timing": {"interval_ms": [reference_ms * 0.99, reference_ms * 1.01], "method": method},
    }
    return make_result(solution, workload, latency_ms, reference_ms=reference_ms, flags=flags, performance_extra=extra)


def printed(show):
    console = Console(width=160, record=True, file=StringIO())
    show(console)
    return console.export_text()


class TestCpuLeaderboard:
    def test_traces_of_older_methods_are_not_ordered_among_others(self):
        old = timed("old", "1", 0.1, flags=(), method="linked")
        (alone,) = leaderboard(trace_set_of(old))
        assert (alone.is_ranked, alone.timed_by) == (True, ("linked",))
        mixed = trace_set_of(old, timed("new", "1", 1.0, flags=(), method="handshake"))
        rows = leaderboard(mixed)
        assert [(row.solution, row.is_ranked, row.labels) for row in rows] == [
            ("new", True, ()),
            ("old", False, (OLDER_TIMING,)),
        ]
        assert [row.solution for row in best(mixed)] == ["new"]
        text = printed(lambda console: print_leaderboard(console, rows))
        assert f"{OLDER_TIMING}, no order (evaluate them again): old" in text

    def test_cpu_results_are_shown_with_a_ratio_and_in_no_order_unless_they_are_included(self):
        trace_set = trace_set_of(timed("b_fast", "1", 0.5), timed("a_slow", "1", 1.0))
        rows = leaderboard(trace_set)
        assert [(row.solution, row.is_ranked, row.speedup.text) for row in rows] == [
            ("a_slow", False, "2.00x ± 0.05"),
            ("b_fast", False, "4.00x ± 0.09"),
        ]
        assert {row.labels for row in rows} == {(CPU_TIMING,)}
        assert {row.fast_1 for row in rows} == {0.0}
        assert {row.problem for row in rows} == {""}
        included = leaderboard(trace_set, [CPU_TIMING])
        assert [(row.solution, row.is_ranked, row.fast_1) for row in included] == [
            ("b_fast", True, 1.0), ("a_slow", True, 1.0),
        ]  # fmt: skip
        text = printed(lambda console: print_leaderboard(console, rows))
        assert f"double ({CPU_TIMING})" in text
        assert f"{CPU_TIMING}, no order (--include-unranked orders them): a_slow, b_fast" in text
        assert "fast_1" not in text

    def test_the_order_is_that_of_the_printed_numbers_whatever_their_marks(self):
        spread = {"narrow": 1.01, "noise": 4.5, "wide": 1.5}

        def result(solution, speedup):
            factor = spread[solution.partition("_")[0]]
            timing = {"interval_ms": [1.0 / factor, factor], "method": "handshake"}
            return make_result(solution, "1", 1.0, reference_ms=speedup, performance_extra={"timing": timing})

        shown = {"wide_a": 2.0, "noise_b": 4.0, "wide_c": 4.5, "narrow_d": 3.0, "narrow_e": 1.002, "noise_f": 0.5}
        rows = leaderboard(trace_set_of(*(result(*item) for item in shown.items())))
        assert {row.speedup.mark for row in rows} == {"", "noise", "wide"}
        assert [row.solution for row in rows] == ["wide_c", "noise_b", "narrow_d", "wide_a", "narrow_e", "noise_f"]

    def test_ranked_results_come_first_and_others_have_no_share(self):
        rows = leaderboard(
            trace_set_of(timed("cpu", "1", 0.1), timed("device", "1", 1.0, flags=(), method="handshake"))
        )
        assert [(row.solution, row.fast_1) for row in rows] == [("device", 1.0), ("cpu", 0.0)]

    def test_interpreted_kernels_have_no_latency_and_no_speedup(self):
        flags = (CPU_TIMING, INTERPRETED)
        rows = leaderboard(trace_set_of(timed("t", "1", 0.5, flags=flags)), flags)
        assert [(row.latency_ms, row.speedup.point, row.speedup.text, row.problem) for row in rows] == [
            (None, None, "-", "")
        ]
        text = printed(lambda console: print_leaderboard(console, rows))
        assert INTERPRETED in text
        assert "500" not in text


class TestCpuBest:
    def test_leaves_them_out_unless_they_are_included(self, write_set, capsys):
        root = str(write_set(timed("a", "1", 1.0), timed("b", "1", 0.5)))
        assert main(["report", "best", root]) == 0
        out, err = capsys.readouterr()
        assert out == ""
        assert (
            f"no passing trace yet that is ranked; make some with 'fib-bench run' ({CPU_TIMING}: --include-unranked)"
            in " ".join(err.split())
        )
        assert main(["report", "best", root, "--include-unranked", "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["solution"], row["labels"], row["timed_by"]) == ("b", [CPU_TIMING], "cpu")

    def test_never_has_an_interpreted_kernel(self):
        trace_set = trace_set_of(timed("t", "1", 1.0, flags=(CPU_TIMING, INTERPRETED)))
        assert best(trace_set, allow_flags=[CPU_TIMING]) == []

    def test_a_tie_is_marked_and_has_its_interval_in_json(self, write_set, capsys):
        root = write_set(timed("a", "1", 2.0, flags=(), method="handshake"))
        assert main(["report", "best", str(root), "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["speedup"]["value"], row["speedup"]["mark"]) == (1.0, "noise")
        assert row["speedup"]["interval"] == pytest.approx([1.98 / 2.02, 2.02 / 1.98])


class TestCpuCompare:
    def test_cpu_timings_are_shown_and_not_compared(self):
        runs = trace_set_of(timed("a", "1", 1.0)), trace_set_of(timed("a", "1", 5.0))
        found = compare(*runs)
        (pair,) = found.pairs
        assert (pair.verdict, pair.before_ms, pair.after_ms, pair.ratio.point) == ("unmeasured", 1.0, 5.0, None)
        assert (pair.reason, found.is_worse) == (CPU_TIMING, False)
        assert f"a: 1 workload unmeasured: {CPU_TIMING}" in printed(lambda console: print_comparison(console, found))
        assert compare(*runs, allow_flags=[CPU_TIMING]).is_worse
        assert [pair.verdict for pair in compare(runs[0], trace_set_of(make_result("a", "1"))).pairs] == ["broken"]

    def test_latencies_of_different_kinds_are_not_compared(self):
        methods = "handshake", "eager"
        old, new = (trace_set_of(timed("a", "1", 1.0, flags=(), method=method)) for method in methods)
        (pair,) = compare(old, new).pairs
        assert (pair.verdict, pair.ratio.text) == ("unmeasured", "-")
        assert pair.reason == "latencies of different kinds: device -> call"


def test_progress_has_no_speedup_of_a_cpu_timing():
    assert format_trace(timed("a", "1", 1.0)) == f"double [n=4] a: PASSED 1.00 ms ± 0.01, {CPU_TIMING}, timed by: cpu"
    assert format_trace(timed("a", "1", 1.0, flags=(CPU_TIMING, INTERPRETED))) == (
        f"double [n=4] a: PASSED {CPU_TIMING}, {INTERPRETED}"
    )
