"""Runs a program with the adapters in it and in every Python that it starts.

usage: FIB_ENABLE_APPLY=1 python -m fib_integrations.run SCRIPT|-m MODULE [arguments]

For engines without plugins: a folder with a ``sitecustomize`` module goes first on PYTHONPATH, which child
processes inherit. One that was there before runs as well.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

HOOKS = Path(__file__).with_name("hooks")


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """An environment in which every Python installs the adapters that it is asked for."""
    paths = [str(HOOKS), *(path for path in inherited.get("PYTHONPATH", "").split(os.pathsep) if path)]
    return {**inherited, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def main(arguments: Sequence[str]) -> None:
    """Become the program."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__, file=sys.stderr if not arguments else sys.stdout)
        raise SystemExit(2 if not arguments else 0)
    os.execve(sys.executable, [sys.executable, *arguments], environment(os.environ))


if __name__ == "__main__":
    main(sys.argv[1:])
