"""Launcher that installs the adapters in a program and in every Python process that it starts.

usage: FIB_ENABLE_APPLY=1 python -m fib_integrations.run SCRIPT|-m MODULE [arguments]

For engines without plugins: puts a folder with a ``sitecustomize`` module first on PYTHONPATH, which child
processes inherit. An existing ``sitecustomize`` still runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from fib_schema.command import FAILED

from .startup import with_startup_hook


def main(arguments: Sequence[str]) -> None:
    """Replace this process by the program."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__, file=sys.stdout if arguments else sys.stderr)
        raise SystemExit(0 if arguments else FAILED)
    os.execve(sys.executable, [sys.executable, *arguments], with_startup_hook(os.environ))


if __name__ == "__main__":
    main(sys.argv[1:])
