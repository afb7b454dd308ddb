#!/usr/bin/env python3
"""Develop FIB: `python tools/dev.py VERB`, with nothing installed but Python.

`python tools/dev.py help` lists the verbs. This file stays readable for old Pythons, so that it can say what is
missing; everything else lives in `workshop/` beside it.
"""

import sys
from pathlib import Path
from typing import Optional, Sequence

OLDEST_PYTHON = (3, 11)


def explain_old_python(version: Sequence[object]) -> Optional[str]:
    """The message for a Python that is too old, or None where it is new enough."""
    if tuple(version[:2]) >= OLDEST_PYTHON:
        return None
    found = ".".join(str(part) for part in version[:3])
    wanted = ".".join(str(part) for part in OLDEST_PYTHON)
    return (
        "Python " + wanted + " or newer is missing: this is Python " + found + " (" + sys.executable + ").\n"
        "  why: the packages use the syntax and the standard library of " + wanted + ".\n"
        "  do:  run this script with a newer one, for example `python" + wanted + " tools/dev.py help`."
    )


def explain_lonely_script(folder: Path) -> Optional[str]:
    """The message for a script without the modules beside it, or None where they are there."""
    if (folder / "workshop").is_dir():
        return None
    return (
        "the rest of the repository is missing: no workshop/ in " + str(folder) + ".\n"
        "  why: this script sets up and tests the packages that lie beside it.\n"
        "  do:  clone the repository and run tools/dev.py from there; do not copy the script out of it."
    )


def main() -> int:
    """Run one verb and return the exit code."""
    folder = Path(__file__).resolve().parent
    message = explain_old_python(sys.version_info) or explain_lonely_script(folder)
    if message is not None:
        sys.stderr.write(message + "\n")
        return 2
    from workshop.verbs import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
