"""Fork server for Python programs. It imports torch once; each program runs in a fork, as ``python FILE`` would.

A request is a line of JSON on stdin: the words of the command, its folder, environment and time limit, and the files
for stdout and stderr. The reply is a line with the exit code.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import sys
import threading
import traceback
from importlib.metadata import entry_points
from pathlib import Path

import numpy
import torch


def serve():
    """Answer requests until stdin ends; in a fork, return the request that the fork is for."""
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            return json.loads(line)
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def run(words, folder, environment, seconds, stdout, stderr):
    """Run ``python FILE ...`` or the command of an installed package in this process, which ends after `seconds`."""
    signal.alarm(seconds)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(stdout, os.O_WRONLY), 1)
    os.dup2(os.open(stderr, os.O_WRONLY), 2)
    if words[0] == "python":
        sys.argv = words[1:]
        sys.path[0] = folder
        runpy.run_path(str(Path(folder, words[1])), run_name="__main__")
    else:
        sys.argv = words
        (command,) = entry_points(group="console_scripts", name=words[0])
        sys.exit(command.load()())


def exit_code_of(request):
    """Run a program and return its exit code; an error is printed as Python prints it."""
    try:
        run(**request)
    except SystemExit as error:
        if not isinstance(error.code, str):
            return int(error.code or 0)
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001 - the border of a process
        traceback.print_exc()
        return 1
    return 0


def end(code):
    """End as the interpreter does, but without freeing all modules, which takes most of a second with torch."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    assert numpy
    assert torch
    gc.freeze()  # a collection in a fork would copy the pages of all modules
    if (mine := serve()) is not None:
        end(exit_code_of(mine))
