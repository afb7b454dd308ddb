import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "triton", "tilelang", "helion", "cuda.tile", "cutlass", "tvm_ffi", "ninja", "msgspec")


@pytest.mark.parametrize(
    "use",
    ["from fib_compile.device import env_snapshot; env_snapshot('cpu')", "fib_compile.BuilderRegistry.get_instance()"],
    ids=["import", "finding builders"],
)
def test_importing_the_package_and_finding_builders_imports_nothing_heavy(use):
    code = f"import sys, fib_compile; {use}; print([n for n in {HEAVY} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
