"""Imports: no torch, `apply` as function and module, a warning about a conflicting distribution."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

Run = Callable[..., str]

TORCH_FREE = [
    "data",
    "compile",
    "compile.builders",
    "bench",
    "bench.timing",
    "apply",
    "apply.key",
    "apply.table",
    "env",
    "utils",
    "cli",
    "replaced",
]
ORDERS = [
    "import flashinfer_bench.apply",
    "from flashinfer_bench.apply.key import ApplyKey",
    "from flashinfer_bench.apply import ApplyConfig",
    "import flashinfer_bench.tracing, flashinfer_bench.bench.config",
]


def test_importing_the_package_imports_no_torch(run: Run) -> None:
    heavy = ("torch", "numpy", "triton", "flashinfer")
    code = f"import sys, flashinfer_bench; print([name for name in {heavy} if name in sys.modules])"
    assert run("-c", code) == "[]"


def test_modules_without_tensors_import_no_torch(run: Run) -> None:
    names = ", ".join(f"flashinfer_bench.{name}" for name in TORCH_FREE)
    assert run("-c", f"import sys, {names}; print('torch' in sys.modules)") == "False"


def test_help_imports_no_torch(run: Run) -> None:
    code = (
        "import sys; from flashinfer_bench.cli.main import cli\ntry: cli(['run', '--help'])\nexcept SystemExit: pass\n"
    )
    assert run("-c", f"{code}print('torch' in sys.modules)").endswith("False")


@pytest.mark.parametrize("first", ORDERS)
def test_apply_is_the_function_in_every_order_of_imports(first: str, run: Run) -> None:
    """There is a submodule of that name too, and importing a submodule binds its name in the package."""
    code = f"{first}\nfrom flashinfer_bench import apply\nimport flashinfer_bench, fib_apply\n"
    assert run("-c", f"{code}print(apply is fib_apply.apply is flashinfer_bench.apply)") == "True"


def test_modules_are_attributes_of_the_package(run: Run) -> None:
    code = (
        "import flashinfer_bench as fib\nprint(fib.compile.BuilderRegistry.__module__, fib.env.get_fib_enable_apply())"
    )
    assert run("-c", code, FIB_ENABLE_APPLY="1") == "fib_compile.registry True"


def test_other_packages_get_the_model_methods_only_from_fib_compat(run: Run) -> None:
    code = "from fib_schema import Definition\nprint(hasattr(Definition, 'model_dump'))\nimport flashinfer_bench\n"
    assert run("-c", f"{code}print(hasattr(Definition, 'model_dump'))").split() == ["False", "True"]


@pytest.mark.parametrize("use", ["import flashinfer_bench", "from flashinfer_bench.cli import cli"])
def test_a_conflicting_distribution_is_reported(use: str, run: Run, tmp_path: Path) -> None:
    """A folder of metadata represents it, because its files or ours would be overwritten."""
    folder = tmp_path / "flashinfer_bench-0.1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: flashinfer-bench\nVersion: 0.1.2\n")
    code = f"import sys, warnings\nsys.path.append({str(tmp_path)!r})\nwarnings.simplefilter('always')\n"
    code += f"with warnings.catch_warnings(record=True) as found:\n    {use}\nprint(len(found), found[0].message)"
    output = run("-c", code)
    assert output.startswith("1 flashinfer-bench 0.1.2 and fib-compat are both installed")
    assert "pip uninstall -y flashinfer-bench fib-compat && pip install fib-compat" in output


def test_without_a_conflict_nothing_is_reported(run: Run) -> None:
    """`run` turns a warning into an error."""
    assert run("-c", "import flashinfer_bench; print(flashinfer_bench.__version__)") == version("fib-compat")
