"""Importing fib_compile is cheap."""

from __future__ import annotations

import subprocess
import sys

import fib_compile
import pytest

HEAVY = ("torch", "numpy", "triton", "tilelang", "helion", "cuda.tile", "cutlass", "tvm_ffi", "ninja", "msgspec")


def test_importing_the_package_imports_nothing_heavy() -> None:
    imports = "import sys, fib_compile; from fib_compile.device import env_snapshot; env_snapshot('cpu')"
    code = f"{imports}; print([n for n in {HEAVY} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_finding_available_builders_imports_nothing_heavy() -> None:
    code = (
        "import sys, fib_compile; fib_compile.BuilderRegistry.get_instance(); "
        f"print([n for n in {HEAVY} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_exported_name_exists() -> None:
    for name in fib_compile.__all__:
        assert getattr(fib_compile, name) is not None
        assert name in dir(fib_compile)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = fib_compile.nothing
