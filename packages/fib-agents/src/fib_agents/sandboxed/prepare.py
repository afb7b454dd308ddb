"""Build of a compiled solution before a profiler or sanitizer looks into its call, which would slow the compiler down.

Started with the path of a job, and the command that takes the place of this process. Nothing is built if the cache of
the solution has a library.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path

from .call import TOOL_BEGAN, Job, compile_solution
from .deferred import confine_own_files


def main() -> None:
    """Build if need be, in a process of its own, then execute the command."""
    path, command = Path(sys.argv[1]), sys.argv[2:]
    if not any(Path(os.environ["FIB_CACHE_PATH"]).rglob("*.so")):
        pid = os.fork()
        if pid == 0:
            _compile(Job(**json.loads(path.read_bytes())))
        if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            sys.exit(code if code > 0 else 128 - code)
    sys.stdout.flush()
    os.environ[TOOL_BEGAN] = str(time.monotonic())
    os.execv(command[0], command)


def _compile(job: Job) -> None:
    """Build the solution of a job, which loads it; never returns."""
    code = 1
    try:
        if job.confines_files:
            confine_own_files()
        compile_solution(job)
        code = 0
    except BaseException:  # noqa: BLE001 - the border of the process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
