"""fib-compat and the real flashinfer-bench in one environment: neither changes a file of the other.

The tests read only file lists and hashes of the real distribution.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import subprocess
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
SOURCES = Path(__file__).resolve().parents[1]
OURS, REAL = "fib_compat", "flashinfer_bench"
IMPORT = """
import importlib.util, sys
print(importlib.util.find_spec("flashinfer_bench").origin)
try:
    import flashinfer_bench
except ImportError as error:
    print(error.name)
print([name for name in sys.modules if name.startswith("fib_")])
"""
IMPORT_OURS = "import fib_compat; fib_compat.install(); import flashinfer_bench; print(flashinfer_bench.__version__)"


def pip(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Our wheel, built from the sources, and the real one, from the package index."""
    for tool in ("pip", "hatchling"):  # not imported: with pip, setuptools stops to replace distutils in this process
        try:
            metadata.distribution(tool)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{tool} is not installed")
    if not (SOURCES / "pyproject.toml").exists():
        pytest.skip("the sources of fib-compat are part of the checkout only")
    folder = tmp_path_factory.mktemp("wheels")
    built = pip("wheel", "--no-deps", "--no-build-isolation", "-w", folder, SOURCES)
    assert built.returncode == 0, built.stderr
    done = pip("download", "--no-deps", "--only-binary", ":all:", "--retries", 1, "-d", folder, "flashinfer-bench")
    if done.returncode != 0:
        pytest.skip(f"no package index has flashinfer-bench: {done.stderr.strip().splitlines()[-1]}")
    return {name: next(folder.glob(f"{name}-*.whl")) for name in (OURS, REAL)}


class Environment:
    """A virtual environment with what was installed into it."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.folder = folder
        (self.site,) = (folder / "lib").glob("python3*/site-packages")

    def pip(self, *words: object) -> None:
        done = pip("--python", self.folder / "bin" / "python", *words)
        assert done.returncode == 0, done.stderr

    def run(self, *words: str) -> str:
        """Run a command; the packages of the running environment come after those of this one."""
        others = self.site / "others.pth"  # only for this command: pip would see these packages too
        others.write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        environment = {k: v for k, v in os.environ.items() if k not in ("FIB_COMPAT", "PYTHONPATH")}
        command = [str(self.folder / "bin" / words[0]), *words[1:]]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        others.unlink()
        assert done.returncode == 0, done.stderr
        return done.stdout

    def damaged(self, name: str) -> list[str]:
        """The files of a distribution that are missing or differ from its RECORD; bytecode has no hash."""
        (record,) = self.site.glob(f"{name}-*.dist-info/RECORD")
        rows = list(csv.reader(record.read_text("utf-8").splitlines()))
        assert len(rows) > 10
        return [path for path, digest, _ in rows if digest and digest != self._hash(path)]

    def _hash(self, path: str) -> str:
        file = self.site / path
        content = file.read_bytes() if file.exists() else b""
        return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")

    def files(self, name: str) -> list[Path]:
        """Files that a distribution has left in the environment."""
        return [*self.site.glob(f"{name}*"), *(self.folder / "bin").glob(name.replace("_", "-"))]


@pytest.fixture(params=[(OURS, REAL), (REAL, OURS)], ids=["ours-first", "ours-last"])
def environment(request: pytest.FixtureRequest, wheels: dict[str, Path], tmp_path: Path) -> Environment:
    made = Environment(tmp_path / "environment")
    for name in request.param:
        made.pip("install", "--no-deps", "--no-index", wheels[name])
    return made


def check_real(environment: Environment) -> None:
    assert environment.damaged(REAL) == []
    assert (environment.folder / "bin" / "flashinfer-bench").exists()
    origin, *error, modules = environment.run("python", "-c", IMPORT).splitlines()
    assert Path(origin).parent == environment.site / "flashinfer_bench"
    assert error == [] or not error[0].startswith(("fib_", "flashinfer_bench"))
    assert modules == "[]"


def check_ours(environment: Environment) -> None:
    assert environment.damaged(OURS) == []
    assert environment.run("fib-compat", "--version").startswith("fib-compat ")
    assert environment.run("python", "-c", "import fib_compat; print(fib_compat.__path__[0])").strip() == str(
        environment.site / "fib_compat"
    )
    assert environment.run("python", "-c", IMPORT_OURS).strip() == environment.run("fib-compat", "--version").split()[1]


def test_both_work(environment: Environment) -> None:
    check_real(environment)
    check_ours(environment)


def test_removing_the_real_one_leaves_ours(environment: Environment) -> None:
    environment.pip("uninstall", "-y", "flashinfer-bench")
    assert environment.files(REAL) == []
    check_ours(environment)


def test_removing_ours_leaves_the_real_one(environment: Environment) -> None:
    environment.pip("uninstall", "-y", "fib-compat")
    assert environment.files(OURS) == []
    check_real(environment)


def test_our_wheel_has_no_file_of_another_package(wheels: dict[str, Path], tmp_path: Path) -> None:
    environment = Environment(tmp_path / "environment")
    before = set(environment.site.iterdir()) | set((environment.folder / "bin").iterdir())
    environment.pip("install", "--no-deps", "--no-index", wheels[OURS])
    new = set(environment.site.iterdir()) | set((environment.folder / "bin").iterdir())
    names = {path.name.partition("-0")[0].partition("-1")[0] for path in new - before}
    assert names == {"fib_compat", "fib-compat"}
