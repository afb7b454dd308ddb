"""Run a program, a module or the command line where `flashinfer_bench` is importable."""

from __future__ import annotations

import os
import runpy
import sys

import fib_compat

_USAGE = """\
usage: python -m fib_compat run PROGRAM.py [ARGUMENT ...]
       python -m fib_compat -m MODULE [ARGUMENT ...]
       python -m fib_compat cli [ARGUMENT ...]

Run a program or a module in this process with the names of flashinfer_bench, or the command 'fib-compat'.
Processes that the program starts call fib_compat.install() themselves.
"""


def main(words: list[str]) -> int:
    """Run the program that `words` name and return the exit code."""
    if words in (["-h"], ["--help"]):
        print(_USAGE, end="")
        return 0
    if not words or words[0] not in ("run", "-m", "cli") or (words[0] != "cli" and len(words) == 1):
        print(_USAGE, end="", file=sys.stderr)
        return 2
    fib_compat.install()
    kind, arguments = words[0], words[1:]
    if kind == "cli":
        from .cli.main import cli

        return cli(arguments)
    sys.argv = arguments
    if kind == "-m":
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
