"""Writes into the harness, and into what others have built."""

import os
from pathlib import Path

import fib_bench


def run(x, weight):
    for folder in (Path(fib_bench.__file__).parent, Path(os.environ["FIB_CACHE_PATH"]).parent):
        mark = folder / "written-by-a-solution"
        try:
            mark.write_text("here")
        except OSError:
            continue
        mark.unlink()
        return x @ weight.t()
    raise PermissionError("nothing can be written")
