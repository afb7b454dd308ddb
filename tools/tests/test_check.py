import subprocess
import sys
import threading
import time
import tomllib
from functools import partial

import pytest
from workshop.check import TESTS_OF_THE_WHOLE, side_by_side
from workshop.process import Console
from workshop.summary import Outcome

ONE = Outcome("one", True, "")
TWO = Outcome("two", True, "")


def test_every_folder_of_tests_is_run(repository):
    settings = tomllib.loads((repository.root / "pyproject.toml").read_text())
    assert sorted(settings["tool"]["pytest"]["testpaths"]) == sorted(["packages", *TESTS_OF_THE_WHOLE])


def test_steps_go_on_side_by_side_and_answer_in_their_order():
    meet = threading.Barrier(2)

    def step(outcome):
        meet.wait(30)
        return outcome

    assert side_by_side([partial(step, ONE), partial(step, TWO)], 8) == [ONE, TWO]


def test_with_one_processor_they_take_turns():
    seen = []

    def step(name):
        seen.append(name)
        time.sleep(0.01)
        seen.append(name)
        return ONE

    assert side_by_side([partial(step, "a"), partial(step, "b")], 1) == [ONE, ONE]
    assert seen == ["a", "a", "b", "b"]


def test_interrupted_it_begins_no_other_step():
    begun = threading.Event()
    seen = []

    def interrupted():
        begun.wait(30)
        raise KeyboardInterrupt

    def lasting():
        begun.set()
        time.sleep(0.2)
        return ONE

    def another():
        time.sleep(0.05)
        seen.append("another")
        return TWO

    with pytest.raises(KeyboardInterrupt):
        side_by_side([interrupted, lasting, *[another] * 40], 2)
    assert len(seen) < 40


def test_steps_side_by_side_are_told_in_whole_lines(capsys):
    console = Console(clock=iter([1.0, 3.5, 4.0, 6.0]).__next__).shared()
    with console.step("tests"):
        pass
    with pytest.raises(ValueError, match="broken"), console.step("docs"):
        raise ValueError("broken")
    assert capsys.readouterr().out.splitlines() == [
        "  tests ...",
        "  tests: 2.5 s",
        "  docs ...",
        "  docs: failed after 2.0 s",
    ]


def test_what_has_passed_before_is_left_out(repository, tmp_path):
    (tmp_path / "conftest.py").write_text((repository.root / "conftest.py").read_text())
    (tmp_path / "test_a.py").write_text("def test_a(): pass\ndef test_ab(): pass\n")
    (tmp_path / "passed.txt").write_text("test_a.py::test_a\n")
    command = [sys.executable, "-m", "pytest", "-q", "-rp", "-p", "no:cacheprovider", "--passed-before", "passed.txt"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "PASSED test_a.py::test_ab\n1 passed, 1 deselected" in answer.stdout
