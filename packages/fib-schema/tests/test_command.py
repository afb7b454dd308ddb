"""The runner of commands: escaped output, messages with a remedy, exit codes, closed and full streams."""

import argparse
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fib_schema.command import FAILED, INTERRUPTED, add_data_set, data_set_of, run_command, unescaped
from fib_schema.errors import DataSetNotFound, InvalidField

PROGRAM = """
import errno, os, sys
from fib_schema.command import run_command

def run():
    {body}
    return 0

sys.exit(run_command("program", run))
"""


def run_program(body, redirection="", **environment):
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-c", PROGRAM.format(body=body)]
    environ = os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)


def test_output_and_messages_are_escaped():
    done = run_program(
        r"""print("\u202e\x1b[2J"); print("\x9b", file=sys.stderr); raise OSError(0, "odd", "\x1b[1m")"""
    )
    assert done.stdout == "\\u202e\\x1b[2J\n"
    assert done.stderr == "\\x9b\nprogram: \\x1b[1m: odd\n"
    assert done.returncode == FAILED


def test_text_that_the_encoding_cannot_express_is_escaped():
    done = run_program(r"""print("gr\u00f6\u00dfer \udcff")""", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "gr\\xf6\\xdfer \\udcff\n")


def test_control_sequences_of_the_program_itself_pass(capsys):
    def run():
        print("\x1b[K", end="", file=unescaped(sys.stderr))
        return 0

    assert run_command("program", run) == 0
    assert capsys.readouterr().err == "\x1b[K"


def test_the_reader_of_stdout_may_end():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", PROGRAM.format(body="print('x' * 100)")]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_stdout_is_named():
    done = run_program("print('x')", "> /dev/full")
    assert done.returncode == FAILED
    assert done.stderr.startswith(
        "program: the standard output: the disk is full (No space left on device); free space"
    )


def test_a_stderr_that_refuses_text_is_no_error():
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
def test_errors_become_a_message_and_an_exit_code(capsys, error, message, code):
    def run():
        raise error

    assert run_command("program", run, interrupted="stopped") == code
    assert message in capsys.readouterr().err


class TestDataSetOfACommand:
    """A path by position or by option, else the current folder, else the variable."""

    @pytest.fixture
    def named(self, tmp_path, monkeypatch):
        """The data set that a command line names, run in a folder that is none."""
        (tmp_path / "set" / "definitions").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path / "missing"))
        parser = argparse.ArgumentParser()
        add_data_set(parser, is_first=True)
        return lambda *words: data_set_of(parser.parse_args(words))

    def test_a_path_is_taken_and_two_are_refused(self, named):
        assert named("set") == named("--dataset", "set") == Path("set")
        with pytest.raises(InvalidField, match="named twice, set and other"):
            named("set", "--dataset", "other")

    def test_a_path_without_a_data_set_is_an_error(self, named):
        with pytest.raises(DataSetNotFound, match="nowhere"):
            named("nowhere")

    def test_without_a_path_it_is_the_current_folder_or_the_variable(self, named, monkeypatch, tmp_path):
        with pytest.raises(DataSetNotFound, match="--dataset DIR"):
            named()
        monkeypatch.setenv("FIB_DATASET_PATH", str(tmp_path))
        assert named() == tmp_path
        monkeypatch.chdir("set")
        assert named() == Path()
