import subprocess
import sys
import threading
import time
import tomllib

import pytest
from workshop.check import TESTS_OF_THE_WHOLE, side_by_side
from workshop.process import Console
from workshop.summary import Outcome

ONE = Outcome("one", True, "")
TWO = Outcome("two", True, "")


def test_every_folder_of_tests_is_run(repository):
    settings = tomllib.loads((repository.root / "pyproject.toml").read_text())
    assert sorted(settings["tool"]["pytest"]["testpaths"]) == sorted(["packages", *TESTS_OF_THE_WHOLE])


def test_lanes_go_on_side_by_side_and_answer_in_their_order():
    meet = threading.Barrier(2)

    def lane(*outcomes):
        meet.wait(30)
        yield from outcomes

    assert side_by_side([lane(ONE), lane(TWO, ONE)], 2) == [ONE, TWO, ONE]


def test_with_one_processor_they_take_turns():
    seen = []

    def lane(name):
        seen.append(name)
        time.sleep(0.01)
        seen.append(name)
        yield ONE

    assert side_by_side([lane("a"), lane("b")], 1) == [ONE, ONE]
    assert seen == ["a", "a", "b", "b"]


def test_interrupted_no_lane_begins_another_step():
    begun = threading.Event()
    seen = []

    def failing():
        begun.wait(30)
        raise KeyboardInterrupt
        yield ONE

    def lasting():
        begun.set()
        time.sleep(0.2)
        yield ONE
        seen.append("another step")
        yield TWO

    with pytest.raises(KeyboardInterrupt):
        side_by_side([failing(), lasting()], 2)
    assert seen == []


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
