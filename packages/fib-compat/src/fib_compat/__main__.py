"""Run a program or a module where `flashinfer_bench` is importable."""

from __future__ import annotations

import os
import runpy
import sys

import fib_compat

_USAGE = """\
usage: python -m fib_compat run PROGRAM.py [ARGUMENT ...]
       python -m fib_compat -m MODULE [ARGUMENT ...]

Run a program or a module in this process with the names of flashinfer_bench. The command line is 'fib-compat'.
Processes that the program starts call fib_compat.install() themselves.
"""


def main(words: list[str]) -> int:
    """Run the program that `words` name and return the exit code."""
    if words in (["-h"], ["--help"]):
        print(_USAGE, end="")
        return 0
    if len(words) < 2 or words[0] not in ("run", "-m"):
        print(_USAGE, end="", file=sys.stderr)
        return 2
    fib_compat.install()
    arguments = words[1:]
    sys.argv = arguments
    if words[0] == "-m":
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return 0
    if not os.path.exists(arguments[0]):  # noqa: PTH110 pathlib is not imported before the program needs it
        print(f"fib_compat run: no such file: {arguments[0]}", file=sys.stderr)
        return 2
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))  # noqa: PTH100, PTH120 likewise
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
