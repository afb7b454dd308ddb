"""Output of the commands: atomic files, messages of a full disk, escaped control characters."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import attrs
import pytest
from fib_bench.cli.main import main
from fib_bench.cli.output import output_console
from fib_schema import Environment, TraceSet
from rich.table import Table
from rich.text import Text

from .samples import DOUBLE, GOOD, make_result, make_solution, make_workload

HOSTILE = "a\u202eb\x9b31m\u2066\u200b\u2028\x85c"
LOG = "\x1b]0;title\x07\x1b[31m" + HOSTILE


@pytest.fixture
def root(tmp_path):
    """A data set with results, in which all names and logs hold control characters."""
    named = attrs.evolve(DOUBLE, name=HOSTILE)
    workload = make_workload(named, {"n": 4}, uuid="w" + HOSTILE)
    (tmp_path / "set").mkdir()
    traces = TraceSet.from_path(tmp_path / "set")
    traces.add_definitions([named])
    names = ["passes" + HOSTILE, "fails" + HOSTILE]
    traces.add_solutions([make_solution(GOOD, name=name, definition=HOSTILE) for name in names])
    environment = Environment("cpu" + HOSTILE + "\n", {})  # no name of a file, so it may have lines

    def result(name, **fields):
        made = make_result(name, "w", **fields)
        evaluation = attrs.evolve(made.evaluation, environment=environment)
        return attrs.evolve(made, definition=HOSTILE, solution=name, workload=workload, evaluation=evaluation)

    traces.add_traces([attrs.evolve(result(names[0], latency_ms=1.0), solution=None, evaluation=None)])
    traces.add_traces([result(names[0], latency_ms=1.0), result(names[1], log=LOG)])
    return tmp_path / "set"


@pytest.mark.parametrize(
    "words",
    [
        ["report", "summary"],
        ["report", "summary", "--include-unranked"],
        ["report", "best", "--include-unranked"],
        ["validate"],
    ],
)
def test_names_and_logs_are_shown_escaped(root, words, capsys):
    assert main([*words, str(root)]) == 0
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert words == ["validate"] or r"\u202e" in "".join(text.split())


def test_json_is_exact(root, capsys):
    assert main(["report", "summary", str(root), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["leaderboard"]
    assert {row["definition"] for row in rows} == {HOSTILE}


def test_no_text_reaches_the_terminal_unescaped_whichever_way_it_is_printed(capsys):
    table = Table("column")
    table.add_row("\x1b[2J" + HOSTILE)
    output_console().print(table, "\x1b[1m", Text("\x9b"))
    shown = capsys.readouterr().out
    assert all(letter.isprintable() or letter == "\n" for letter in shown)


def run_on_terminal(columns, *words):
    """The lines that a command prints on a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "fib_bench.cli.main", *words]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        printed = b""
        try:
            while block := os.read(ours, 65536):
                printed += block
        except OSError:  # the end of a terminal
            pass
        os.close(ours)
    assert process.returncode == 0, printed
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed.decode()).splitlines()


@pytest.fixture
def wide(tmp_path):
    """A data set whose tables are wider than 80 characters."""
    named = attrs.evolve(DOUBLE, name="a_definition_with_a_long_name")
    workload = make_workload(named, {"n": 4096}, uuid="w")
    (tmp_path / "wide").mkdir()
    traces = TraceSet.from_path(tmp_path / "wide")
    traces.add_definitions([named])
    traces.add_solutions([make_solution(GOOD, name="a_solution_with_a_long_name", definition=named.name)])
    made = make_result("a_solution_with_a_long_name", "w", latency_ms=0.00123)
    result = attrs.evolve(made, definition=named.name, workload=workload)
    traces.add_traces([attrs.evolve(result, solution=None, evaluation=None), result])
    return tmp_path / "wide"


def test_a_table_that_is_too_wide_for_a_terminal_takes_several_lines_for_each_row(wide):
    words = ["report", "best", str(wide), "--include-unranked"]
    lines = run_on_terminal(60, *words)
    assert max(map(len, lines)) <= 60, lines
    text = " ".join(" ".join(lines).split())
    assert "a_definition_with_a_long_name" in text
    assert "a_solution_with_a_long_name" in text
    assert "latency: 1.23 us" in text
    assert any(line.startswith("definition ") for line in run_on_terminal(200, *words))
    done = subprocess.run(
        [sys.executable, "-m", "fib_bench.cli.main", *words], capture_output=True, text=True, check=True
    )
    assert any(line.startswith("definition ") for line in done.stdout.splitlines())  # a pipe has no width
