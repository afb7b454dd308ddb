"""The API process imports only what it needs."""

from __future__ import annotations

import subprocess
import sys


def test_the_process_of_the_api_imports_neither_torch_nor_what_runs_solutions() -> None:
    code = (
        "import sys, fib_serve.web.process, fib_serve.operation.supervisor\n"
        "print(sorted({'torch', 'triton', 'fib_bench.api', 'fib_compile.builders'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
