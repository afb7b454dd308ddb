"""``python -m fib_compat``: programs and modules."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parent / "programs"
PROGRAM = """
import sys
import helper, flashinfer_bench

def twice(n):
    return 2 * helper.VALUE * n

if __name__ == "__main__":
    import pickle
    print(sys.argv[1:], sys.argv[0] == __file__, pickle.loads(pickle.dumps(twice))(2))
    print(sys.path[0], flashinfer_bench.Definition.__name__)
"""


def python(*words, cwd, code=0, **environment):
    """Run Python; return stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *map(str, words)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def program(tmp_path):
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "helper.py").write_text("VALUE = 21\n")
    (folder / "prog.py").write_text(PROGRAM)
    return folder / "prog.py"


def test_a_program_runs_as_python_runs_it(program, tmp_path):
    out, _ = python("-m", "fib_compat", "run", "programs/prog.py", "a", "--b", cwd=tmp_path)
    assert out == f"['a', '--b'] True 84\n{program.parent} Definition\n"


def test_the_exit_code_of_a_program_is_kept(tmp_path):
    (tmp_path / "fails.py").write_text("raise SystemExit(7)\n")
    python("-m", "fib_compat", "run", "fails.py", cwd=tmp_path, code=7)


def test_a_module_runs_with_its_arguments(program):
    out, _ = python("-m", "fib_compat", "-m", "prog", "--b", cwd=program.parent)
    assert out.startswith("['--b'] True 84\n")


@pytest.mark.parametrize("words", [(), ("run",), ("-m",), ("prog.py",)])
def test_wrong_arguments_show_the_usage(words, tmp_path):
    assert python("-m", "fib_compat", *words, cwd=tmp_path, code=2)[1].startswith("usage: python -m fib_compat run")


def test_help_and_a_missing_program(tmp_path):
    assert python("-m", "fib_compat", "--help", cwd=tmp_path)[0].startswith("usage:")
    _, err = python("-m", "fib_compat", "run", "absent.py", cwd=tmp_path, code=2)
    assert err == "fib_compat run: no such file: absent.py\n"
