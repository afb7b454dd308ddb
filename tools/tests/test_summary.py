import pytest
from workshop.process import Console
from workshop.summary import (
    Outcome,
    conclude,
    explain,
    passed_node_ids,
    pytest_outcome,
    pytest_summary,
    pytest_total,
    table,
)

PASSED = "============================== 12 passed in 0.71s =============================="


@pytest.mark.parametrize(
    "line",
    [
        PASSED,
        "======= 1 failed, 20 passed, 3 skipped in 62.10s (0:01:02) =======",
        "== 2 passed, 1 xfailed, 4 warnings in 1.00s ==",
        "3 passed in 2.53s",
        "============ no tests ran in 0.01s ============",
    ],
)
def test_pytests_last_line_is_found_as_it_was_written(line):
    assert pytest_summary(f"tests/test_a.py .\n\n{line}\n") == line


def test_a_run_that_broke_off_has_no_summary():
    assert pytest_summary("ERROR: unrecognized arguments: --nope\n12 passed notes in a text") is None


def test_the_outcome_of_pytest_says_what_it_counted(tmp_path):
    log = tmp_path / "a.log"
    log.write_text(f"{PASSED}\n")
    assert pytest_outcome("tests", 0, log) == Outcome("tests", True, "12 passed in 0.71s", log)
    log.write_text("")
    assert pytest_outcome("tests", 4, log) == Outcome("tests", False, "ended with exit code 4", log)


def test_the_failures_of_pytest_are_shown_and_not_its_progress(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("collected 3 items\n===== FAILURES =====\n___ test_a ___\nboom\n")
    assert explain(Outcome("tests", False, "", log)).startswith("===== FAILURES =====")


def test_the_table_has_one_aligned_line_per_step():
    outcomes = [Outcome("lint", True, ""), Outcome("tests", False, "1 failed in 2s")]
    assert table(outcomes) == "lint   ok\ntests  FAILED  1 failed in 2s"


def test_what_passed_is_told_by_pytest_itself():
    lines = [
        "--- Captured stdout call ---",
        "PASSED tests/test_a.py::test_c",
        "=== short test summary info ===",
        "PASSED tests/test_a.py::test_b[1 - a::b]",
        "SKIPPED [1] x.py:3: no",
    ]
    assert passed_node_ids("\n".join(lines)) == ("tests/test_a.py::test_b[1 - a::b]",)


def test_the_total_counts_each_test_once():
    outcomes = [
        Outcome("lint", True, ""),
        Outcome("wheel a", True, "12 passed, 3 skipped, 4 deselected in 9.10s", None, ("tests/test_a.py::test_a",)),
        Outcome("other tests", True, "1 passed, 2 skipped, 12 deselected in 62.10s (0:01:02)"),
    ]
    assert pytest_total(outcomes, 80.0) == "=== 13 passed, 2 skipped in 80.00s ==="
    assert pytest_summary(pytest_total(outcomes, 80.0)) is not None


def test_the_total_hides_no_failure():
    outcomes = [
        Outcome("lint", False, ""),
        Outcome("tests", False, "1 failed, 2 passed in 3s"),
        Outcome("t", False, "?"),
    ]
    assert pytest_total(outcomes, 3.0) == "=== 2 error, 1 failed, 2 passed in 3.00s ==="


def test_a_step_without_a_log_fails_without_naming_one(capsys):
    assert conclude(Console(), [Outcome("lint", True, ""), Outcome("wheels", False, "no index")]) == 1
    assert capsys.readouterr().out == "\n--- wheels: \n\n\nlint    ok\nwheels  FAILED  no index\n"
    assert conclude(Console(), [Outcome("lint", True, "")]) == 0
