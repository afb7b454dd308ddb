"""The runner of commands: escaped output, messages with a remedy, exit codes, closed and full streams."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest
from fib_schema.command import FAILED, INTERRUPTED, run_command, unescaped
from fib_schema.errors import DataSetNotFound

PROGRAM = """
import errno, os, sys
from fib_schema.command import run_command

def run():
    {body}
    return 0

sys.exit(run_command("program", run))
"""


def run_program(body: str, redirection: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-c", PROGRAM.format(body=body)]
    environ = os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)


def test_output_and_messages_are_escaped() -> None:
    done = run_program(
        r"""print("\u202e\x1b[2J"); print("\x9b", file=sys.stderr); raise OSError(0, "odd", "\x1b[1m")"""
    )
    assert done.stdout == "\\u202e\\x1b[2J\n"
    assert done.stderr == "\\x9b\nprogram: \\x1b[1m: odd\n"
    assert done.returncode == FAILED


def test_text_that_the_encoding_cannot_express_is_escaped() -> None:
    done = run_program(r"""print("gr\u00f6\u00dfer \udcff")""", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "gr\\xf6\\xdfer \\udcff\n")


def test_control_sequences_of_the_program_itself_pass(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> int:
        print("\x1b[K", end="", file=unescaped(sys.stderr))
        return 0

    assert run_command("program", run) == 0
    assert capsys.readouterr().err == "\x1b[K"


def test_the_reader_of_stdout_may_end() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", PROGRAM.format(body="print('x' * 100)")]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_stdout_is_named() -> None:
    done = run_program("print('x')", "> /dev/full")
    assert done.returncode == FAILED
    assert done.stderr.startswith(
        "program: the standard output: the disk is full (No space left on device); free space"
    )


def test_a_stderr_that_refuses_text_is_no_error() -> None:
    done = run_program("print('note', file=sys.stderr); print('x')", "2>/dev/full")
    assert (done.returncode, done.stdout) == (0, "x\n")


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), "/x/y: the disk is full", FAILED),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "/x"), "/x: the quota of the disk is used up", FAILED),
        (OSError(errno.EFBIG, "File too large", "/x"), "raise the limit (ulimit -f)", FAILED),
        (OSError(errno.EROFS, "Read-only file system", "/x"), "/x: the file system is read-only", FAILED),
        (OSError(errno.ENOSPC, "No space left on device", "/from", None, "/to"), "/to: the disk is full", FAILED),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "/x: access is denied", FAILED),
        (OSError("without a number"), "program: without a number", FAILED),
        (DataSetNotFound("/x"), str(DataSetNotFound("/x")), FAILED),
        (KeyboardInterrupt(), "program: stopped", INTERRUPTED),
    ],
)
def test_errors_become_a_message_and_an_exit_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, message: str, code: int
) -> None:
    def run() -> int:
        raise error

    assert run_command("program", run, interrupted="stopped") == code
    assert message in capsys.readouterr().err
