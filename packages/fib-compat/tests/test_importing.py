"""Imports: nothing without `install`, no torch, `apply` as function and module, the real package."""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version

import pytest

INSTALL = "import fib_compat; fib_compat.install()\n"
Run = Callable[..., str]

TORCH_FREE = [
    "data",
    "compile",
    "compile.builders",
    "bench",
    "apply",
    "apply.key",
    "apply.table",
    "env",
    "utils",
    "cli",
]
ORDERS = [
    "import flashinfer_bench.apply",
    "from flashinfer_bench.apply.key import ApplyKey",
    "from flashinfer_bench.apply import ApplyConfig",
    "import flashinfer_bench.tracing, flashinfer_bench.bench.config",
]


def test_importing_the_package_imports_no_torch(run):
    heavy = ("torch", "numpy", "triton", "flashinfer")
    code = f"import sys, flashinfer_bench; print([name for name in {heavy} if name in sys.modules])"
    assert run(code) == "[]"


def test_modules_without_tensors_import_no_torch(run):
    names = ", ".join(f"flashinfer_bench.{name}" for name in TORCH_FREE)
    assert run(f"import sys, {names}; print('torch' in sys.modules)") == "False"


def test_help_imports_no_torch(run):
    code = "import sys; from fib_compat.cli import cli\ntry: cli(['run', '--help'])\nexcept SystemExit: pass\n"
    assert run(f"{code}print('torch' in sys.modules)").endswith("False")


@pytest.mark.slow
@pytest.mark.parametrize("first", ORDERS)
def test_apply_is_the_function_in_every_order_of_imports(first, run):
    """There is a submodule of that name too, and importing a submodule binds its name in the package."""
    code = f"{first}\nfrom flashinfer_bench import apply\nimport flashinfer_bench, fib_apply\n"
    assert run(f"{code}print(apply is fib_apply.apply is flashinfer_bench.apply)") == "True"


def test_other_packages_get_the_model_methods_only_from_fib_compat(run):
    shown = "print(hasattr(Definition, 'model_dump'))\n"
    code = f"from fib_schema import Definition\n{shown}from flashinfer_bench import Trace\n{shown}"
    assert run(code).split() == ["False", "True"]


IMPORT_ONLY = """
import atexit, logging, os, signal, sys, threading, warnings

def state():
    root = logging.getLogger()
    return (
        dict(os.environ), os.getcwd(), list(sys.path), list(sys.path_hooks), list(warnings.filters),
        atexit._ncallbacks(), list(root.handlers), root.level, sorted(root.manager.loggerDict),
        threading.active_count(), sys.excepthook, [signal.getsignal(number) for number in signal.valid_signals()],
    )

before, finders, process = set(sys.modules), list(sys.meta_path), state()
import fib_compat
assert state() == process
new = {name for name in set(sys.modules) - before if name.partition(".")[0] not in sys.stdlib_module_names}
print(sorted(new), finders == sys.meta_path, fib_compat.__all__)
try:
    import flashinfer_bench
except ImportError as error:
    print(error)
"""
REAL_FIRST = """
import sys
sys.path.insert(0, FOLDER)
import flashinfer_bench, fib_compat
try:
    fib_compat.install()
except RuntimeError as error:
    print(error, len(sys.meta_path))
"""


def python(code):
    """Run code in a process of its own, where `install` is not called."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_without_install_importing_changes_nothing():
    lines = python(IMPORT_ONLY).splitlines()
    assert lines == ["['fib_compat'] True ['__version__', 'install']", "No module named 'flashinfer_bench'"]


def test_install_refuses_to_replace_an_imported_package(tmp_path):
    (tmp_path / "flashinfer_bench.py").write_text("")
    output = python(REAL_FIRST.replace("FOLDER", repr(str(tmp_path))))
    assert output.startswith(f"flashinfer_bench is already imported from {tmp_path}/flashinfer_bench.py")
    assert "call fib_compat.install() before the first import" in output


def test_install_precedes_a_package_that_is_not_imported_yet(tmp_path):
    (tmp_path / "flashinfer_bench.py").write_text("raise SystemExit('the real one')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{INSTALL}import flashinfer_bench\n"
    assert python(f"{code}print(flashinfer_bench.__version__)") == f"{version('fib-compat')}\n"
