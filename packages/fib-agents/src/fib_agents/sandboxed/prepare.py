"""Build of a compiled solution before a profiler or sanitizer looks into its call, which would slow the compiler down.

Started with the path of a job, and the command that takes the place of this process. Nothing is built if the cache of
the solution has a library.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from .call import Job, compile_solution


def main() -> None:
    """Build if need be, then execute the command."""
    path, command = Path(sys.argv[1]), sys.argv[2:]
    if not any(Path(os.environ["FIB_CACHE_PATH"]).rglob("*.so")):
        compile_solution(Job(**json.loads(path.read_bytes())))
    sys.stdout.flush()
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
