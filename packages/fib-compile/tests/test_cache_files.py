"""Trials against the files of the cache: nothing that somebody else put there is executed."""

import inspect
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from compile_samples import ADD_ONE, fast_cpp, make_solution
from fib_compile import BuildError, PythonBuilder, TVMFFIBuilder
from fib_compile.cache import CACHE_FOLDER

X = torch.zeros(2, 4)
ONE = {"kernel.py": "from .helper import N\n\n\ndef run(x):\n    return x + N\n", "helper.py": "N = 1\n"}


def folder_of(solution):
    """The folder of a solution that was built once."""
    runnable = PythonBuilder().build(ADD_ONE, solution)
    runnable.cleanup()
    return Path(runnable.metadata.misc["folder"])


def result(solution):
    runnable = PythonBuilder().build(ADD_ONE, solution)
    value = float(runnable(X)[0, 0])
    runnable.cleanup()
    return value


@pytest.mark.parametrize("name", ["__init__.py", "helper/__init__.py"])
def test_a_file_with_priority_over_the_sources_is_not_executed(name):
    solution = make_solution(ONE)
    folder = folder_of(solution)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("N = 100\nimport os\nos.environ['PLANTED'] = '1'\n")
    assert result(solution) == 1
    assert os.environ.pop("PLANTED", None) is None


def test_a_kernel_is_read_from_the_solution_and_not_from_the_disk():
    """Triton compiles the text that `inspect.getsource` finds."""
    runnable = PythonBuilder().build(ADD_ONE, make_solution("def run(x):\n    return x + 1\n"))
    Path(runnable.metadata.misc["folder"], "kernel.py").write_text("def run(x):\n    return x + 100\n")
    assert inspect.getsource(runnable.function) == "def run(x):\n    return x + 1\n"


OTHER = 12_345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
CHILD = """
import fcntl, os, sys
os.umask(int(sys.argv[2], 8))
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
exec(sys.stdin.read())
"""


def as_user(code, *, uid=OTHER, umask=0o022, expected=0):
    """Run Python code as another user; returns what it prints."""
    command = [sys.executable, "-S", "-c", CHILD, str(uid), oct(umask)[2:]]
    done = subprocess.run(command, input=code, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == expected, done.stderr
    return done.stdout.strip()


@pytest.fixture
def shared(monkeypatch):
    """A folder such as /tmp, with FIB_CACHE_PATH in it; other users cannot enter `tmp_path`."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o1777)
        monkeypatch.setenv("FIB_CACHE_PATH", f"{name}/cache")
        yield Path(name)


def failure(solution):
    builder = PythonBuilder() if solution.spec.language == "python" else TVMFFIBuilder()
    with pytest.raises(BuildError) as caught:
        builder.build(ADD_ONE, solution)
    return str(caught.value)


@needs_root
@pytest.mark.parametrize("language", ["python", "cpp"])
def test_another_user_can_neither_read_nor_write_the_cache(shared, language):
    before = os.umask(0)
    try:
        if language == "python":
            result(make_solution(ONE))
        else:
            TVMFFIBuilder().build(ADD_ONE, fast_cpp())
            failure(make_solution("error\n", language="cpp"))
    finally:
        os.umask(before)
    paths = [str(path) for path in (shared / "cache" / CACHE_FOLDER).rglob("*")]
    assert len(paths) > 3
    code = f"""
def is_possible(action):
    try:
        action()
    except PermissionError:
        return False
    return True
print(any(is_possible(action) for path in {paths} for action in (
    lambda: os.stat(path), lambda: os.open(path, os.O_RDONLY), lambda: os.open(path, os.O_WRONLY),
    lambda: os.unlink(path), lambda: os.rename(path, path + "x"))))
print(is_possible(lambda: os.rename({str(shared / "cache")!r}, {str(shared / "gone")!r})))
print(is_possible(lambda: os.mkdir({str(shared / "cache" / "x")!r})))
"""
    assert as_user(code).split() == ["False", "False", "False"]


@needs_root
def test_a_library_that_another_user_published_is_refused(shared):
    TVMFFIBuilder().build(ADD_ONE, fast_cpp())
    folder = shared / "cache" / CACHE_FOLDER
    for path in (folder, *folder.rglob("*")):
        os.chown(path, OTHER, OTHER)
    assert f"belongs to user {OTHER}" in failure(fast_cpp())


def test_a_cache_that_its_owner_published_for_reading_is_used(cache_path):
    result(make_solution(ONE))
    for path in (cache_path, *cache_path.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert result(make_solution(ONE)) == 1
