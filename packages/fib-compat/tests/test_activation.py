"""``fib-compat enable`` and ``disable``: a file in an environment, in effect only with FIB_COMPAT=1."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import time
import venv
from importlib.metadata import version
from pathlib import Path

import pytest
from fib_compat.activation import FILE_NAME, LINE

pytestmark = pytest.mark.slow

USE = "import flashinfer_bench; print(flashinfer_bench.__version__)"
STATE = "import sys; print(sorted(sys.modules), len(sys.meta_path))"


class Environment:
    """A virtual environment that sees the packages of the running one."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        (self.site,) = (folder / "lib").glob("python3*/site-packages")
        self.file = self.site / FILE_NAME
        self.packages = self.site / "packages.pth"  # sorts behind FILE_NAME, as an editable installation may
        self.packages.write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {k: v for k, v in os.environ.items() if k not in ("FIB_COMPAT", "PYTHONPATH")}
        command = [str(self.python), *words]
        return subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=False)

    def cli(self, *words: str) -> str:
        done = self.run("-m", "fib_compat", "cli", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "environment")


def test_only_the_file_and_the_variable_together_make_the_names_available(environment: Environment) -> None:
    assert environment.run("-c", USE, FIB_COMPAT="1").returncode == 1
    assert str(environment.file) in environment.cli("enable")
    for variables in ({}, {"FIB_COMPAT": "0"}, {"FIB_COMPAT": ""}):
        done = environment.run("-c", USE, **variables)
        assert "No module named 'flashinfer_bench'" in done.stderr
        assert environment.run("-m", "flashinfer_bench", "--help", **variables).returncode == 1
    done = environment.run("-W", "error", "-c", USE, FIB_COMPAT="1")
    assert (done.stdout, done.stderr) == (f"{version('fib-compat')}\n", "")
    done = environment.run("-m", "flashinfer_bench", "--version", FIB_COMPAT="1")
    assert (done.stdout, done.stderr) == (f"fib-compat {version('fib-compat')}\n", "")
    assert environment.cli("disable") == f"removed {environment.file}\n"
    assert not environment.file.exists()
    assert environment.run("-c", USE, FIB_COMPAT="1").returncode == 1
    assert "nothing to remove" in environment.cli("disable")


def test_processes_of_a_process_have_the_names(environment: Environment) -> None:
    environment.cli("enable")
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {USE!r}], check=True)"
    assert environment.run("-c", code, FIB_COMPAT="1").stdout == f"{version('fib-compat')}\n"


def test_without_the_variable_a_start_does_nothing_more(environment: Environment) -> None:
    before = environment.run("-c", STATE).stdout
    environment.cli("enable")
    assert environment.run("-c", STATE).stdout == before
    started = time.perf_counter()
    for _ in range(1000):
        exec(LINE, {})
    assert (time.perf_counter() - started) / 1000 < 1e-3, "seconds for a start; 85 us were measured on a busy machine"


def test_with_the_variable_a_start_imports_nothing(environment: Environment) -> None:
    modules, finders = environment.run("-c", STATE).stdout.rsplit(" ", 1)
    environment.cli("enable")
    assert environment.run("-c", STATE, FIB_COMPAT="1").stdout == f"{modules} {int(finders) + 1}\n"


def test_the_real_package_takes_precedence_with_a_warning(environment: Environment, tmp_path: Path) -> None:
    environment.cli("enable")
    (environment.site / "flashinfer_bench").mkdir()
    (environment.site / "flashinfer_bench" / "__init__.py").write_text("__version__ = 'real'\n")
    done = environment.run("-c", USE, FIB_COMPAT="1")
    assert done.stdout == "real\n"
    assert done.stderr.count("so FIB_COMPAT=1 has no effect") == 1
    folder = environment.site / "flashinfer_bench-0.1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: flashinfer-bench\nVersion: 0.1.2\n")
    assert "warning: flashinfer-bench 0.1.2 is installed too and takes precedence" in environment.cli("enable")


def test_a_folder_of_that_name_is_not_the_real_package(environment: Environment, tmp_path: Path) -> None:
    environment.cli("enable")
    (tmp_path / "flashinfer_bench").mkdir()
    done = environment.run("-W", "error", "-c", USE, FIB_COMPAT="1", PYTHONPATH=str(tmp_path))
    assert done.stdout == f"{version('fib-compat')}\n", done.stderr


@pytest.mark.parametrize("flags", [(), ("-I",), ("-E",), ("-s",), ("-S",), ("-O",)])
def test_a_start_succeeds_with_every_flag(flags: tuple[str, ...], environment: Environment) -> None:
    environment.cli("enable")
    for variables in ({}, {"FIB_COMPAT": "1"}):
        done = environment.run(*flags, "-c", "print('started')", **variables)
        assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")
    is_active = not {"-I", "-E", "-S"} & set(flags)
    assert (environment.run(*flags, "-c", USE, FIB_COMPAT="1").returncode == 0) == is_active


def test_a_start_succeeds_without_fib_compat(environment: Environment) -> None:
    """As after ``pip uninstall fib-compat``, which does not remove a file that it did not install."""
    environment.cli("enable")
    environment.packages.unlink()
    done = environment.run("-c", "print('started')")
    assert (done.stdout, done.stderr) == ("started\n", "")
    done = environment.run("-c", "print('started')", FIB_COMPAT="1")
    assert (done.stdout, done.stderr) == ("started\n", "")
    done = environment.run("-c", USE, FIB_COMPAT="1")
    assert done.stderr.startswith("fib-compat: FIB_COMPAT=1 has no effect: No module named 'fib_compat'\n")
    assert done.stderr.endswith("No module named 'flashinfer_bench'\n")
    (environment.site / "flashinfer_bench.py").write_text("__version__ = 'real'\n")
    assert environment.run("-c", USE, FIB_COMPAT="1").stdout == "real\n"


@pytest.mark.parametrize("broken", ["def (", "1 / 0", "import nothing_of_this_name"])
def test_a_start_succeeds_with_a_broken_installation(broken: str, environment: Environment) -> None:
    environment.cli("enable")
    copied = environment.site / "fib_compat"
    copied.mkdir()
    (copied / "__init__.py").write_text("")
    (copied / "activation.py").write_text(broken)
    done = environment.run("-c", "print('started')", FIB_COMPAT="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")


@pytest.mark.parametrize("content", [LINE[:60], LINE[: len(LINE) // 2], "\0", ""])
def test_a_start_succeeds_with_a_broken_file(content: str, environment: Environment) -> None:
    environment.file.write_text(content)
    for variables in ({}, {"FIB_COMPAT": "1"}):
        done = environment.run("-c", "print('started')", **variables)
        assert (done.returncode, done.stdout) == (0, "started\n")


def test_a_folder_that_cannot_be_written_is_a_message(environment: Environment) -> None:
    if os.geteuid() == 0:
        shutil.rmtree(environment.file, ignore_errors=True)
        environment.file.mkdir()  # root writes anywhere, but cannot replace a folder by a file
    else:
        environment.site.chmod(0o555)
    done = environment.run("-m", "fib_compat", "cli", "enable")
    assert done.returncode == 2
    assert done.stderr.startswith("fib-compat: ")
    assert "Traceback" not in done.stderr
