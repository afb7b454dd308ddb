"""Redirection of a process's output to a file, as documented: ``redirect_stdio_to_file(log_path)``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Run = Callable[..., str]
REDIRECT = "from flashinfer_bench.utils import redirect_stdio_to_file\nimport os, subprocess, sys\n"


def test_python_c_and_children_write_to_the_file_in_order(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    code = (
        f"print('shown')\nredirect_stdio_to_file({str(log)!r})\n"
        "print('\\u00fc \\udcff')\nprint('error', file=sys.stderr)\n"
        "os.write(1, b'descriptor\\n')\nsubprocess.run(['echo', 'child'], check=True)\nprint('end')\n"
    )
    assert run(REDIRECT + code) == "shown"
    assert log.read_text("utf-8").splitlines() == ["before", "\u00fc \\udcff", "error", "descriptor", "child", "end"]


def test_a_file_that_cannot_be_opened_changes_nothing(run: Run, tmp_path: Path) -> None:
    code = (
        f"try:\n    redirect_stdio_to_file({str(tmp_path / 'no' / 'log')!r})\n"
        "except FileNotFoundError:\n    print('still shown')\n"
    )
    assert run(REDIRECT + code) == "still shown"


def test_closed_streams_are_redirected_too(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    code = (
        f"os.close(1)\nos.close(2)\nsys.stdout = sys.stderr = None\nredirect_stdio_to_file({str(log)!r})\n"
        "print('out')\nsubprocess.run('echo child; echo problem >&2', shell=True, check=True)\n"
    )
    run(REDIRECT + code)
    assert log.read_text() == "out\nchild\nproblem\n"
