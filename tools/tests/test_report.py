import json

import pytest
from devtools.report import report

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="test_one"/>
<testcase classname="tests.test_a" name="test_two"><failure message="m">lines of the traceback</failure></testcase>
<testcase classname="tests.test_a" name="test_three"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


def write(folder, command, sessions, **files):
    (folder / command).mkdir()
    sessions = [{"name": name, "result": result} for name, result in sessions.items()]
    (folder / command / "nox.json").write_text(json.dumps({"sessions": sessions}))
    for name, text in files.items():
        (folder / command / name.replace("_", ".")).write_text(text)


def test_failed_tests_are_shown_directly_before_the_totals_of_both_commands(tmp_path, capsys):
    write(tmp_path, "test", {"test": "failed"}, test_xml=JUNIT)
    write(tmp_path, "check", {"lint": "success", "slow": "success"}, slow_xml="<testsuites/>")
    assert report(tmp_path, "12") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "=== 1 failed, 3 passed, 1 skipped in 12.00s ==="
    assert lines[-2] == "FAILED tests.test_a::test_two"
    assert "lines of the traceback" in lines


def test_a_session_without_tests_shows_the_end_of_its_output(tmp_path, capsys):
    output = "nox > Running session lint\nE501 Line too long\nnox > Running session types\nfine\n"
    write(tmp_path, "test", {"test": "success"})
    write(tmp_path, "check", {"lint": "failed", "types": "success"}, output_txt=output)
    assert report(tmp_path) == 1
    shown = capsys.readouterr().out
    assert "E501 Line too long" in shown
    assert "fine" not in shown
    assert shown.endswith("FAILED lint\n=== 1 failed, 2 passed in 0.00s ===\n")


@pytest.mark.parametrize("result", ["failed", "aborted"])
def test_a_session_that_fails_after_its_tests_have_passed_counts_as_one_failure(tmp_path, capsys, result):
    write(tmp_path, "test", {"test": result}, test_xml="<testsuite><testcase classname='a' name='b'/></testsuite>")
    write(tmp_path, "check", {})
    assert report(tmp_path) == 1
    assert capsys.readouterr().out.endswith("=== 1 failed, 1 passed in 0.00s ===\n")


def test_a_command_that_did_not_finish_is_an_error(tmp_path, capsys):
    write(tmp_path, "test", {"test": "success"})
    assert report(tmp_path) == 1
    assert capsys.readouterr().out.endswith("ERROR check\n=== 1 passed, 1 error in 0.00s ===\n")
