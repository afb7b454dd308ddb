#!/usr/bin/env python3
"""Developer commands of FIB: `python tools/dev.py COMMAND [ARGUMENTS]`, with only Python and a C++ compiler installed.

The commands are the nox sessions of `noxfile.py`; `help` lists them. This script installs nox and uv below `.dev/` and
runs them. It also parses under old Pythons, to name the version that is needed.
"""

import fcntl
import importlib.util
import os
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".dev"
OLDEST_PYTHON = (3, 11)
NOX, UV = "nox==2026.10.20", "uv==0.13.9"  # pinned: parallel sessions of nox are new
COMPILING_COMMANDS = ("demo", "test", "slow", "check", "lowest", "bench")  # commands that build C++ solutions
REPORTED_COMMANDS = {"test": ["--session", "test"], "check": ["--tags", "check", "--parallel", "2"]}


def explain_old_python(version: Sequence[object]) -> Optional[str]:
    """The message for a Python that is too old, or None."""
    if tuple(version[:2]) >= OLDEST_PYTHON:
        return None
    found, wanted = (".".join(str(number) for number in numbers) for numbers in (version[:3], OLDEST_PYTHON))
    text = "Python {0} or newer is needed, this is Python {1} ({2}); run for example `python{0} tools/dev.py help`"
    return text.format(wanted, found, sys.executable)


def find_compiler() -> str:
    """The C++ compiler that CXX names, else the first one on the path; exits without one."""
    wanted = os.environ.get("CXX", "").strip()
    for name in [wanted] if wanted else ["c++", "g++", "clang++"]:
        if shutil.which(shlex.split(name)[0]):
            return name
    sys.exit("no C++ compiler: {} not on the path; install g++ or set CXX".format(wanted or "c++, g++ and clang++"))


def find_machine_torch() -> str:
    """The site-packages folder of a torch with CUDA that this Python imports, or an empty string."""
    spec = importlib.util.find_spec("torch")
    version = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    if version is None or not version.exists() or not runpy.run_path(str(version)).get("cuda"):
        return ""
    return str(version.parent.parent)


def install_nox() -> str:
    """Install nox, and uv if the package index has it, into `.dev/nox`; returns the Python there."""
    folder, stamp = WORK / "nox", WORK / "nox" / "installed"
    python = str(folder / "bin" / "python")
    wanted = " ".join([str(folder), sys.version, NOX, UV])
    WORK.mkdir(exist_ok=True)
    with (WORK / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two commands at a time
        if stamp.exists() and stamp.read_text() == wanted:
            return python
        print("installing nox and uv into", folder, flush=True)
        shutil.rmtree(str(folder), ignore_errors=True)
        pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        if subprocess.call([sys.executable, "-m", "venv", str(folder)]):
            sys.exit("creating a virtual environment failed; on Debian and Ubuntu: apt install python3-venv")
        if subprocess.call([*pip, NOX, UV]) and subprocess.call([*pip, NOX]):
            sys.exit("installing nox failed; the first run needs a package index: see `pip config list`")
        stamp.write_text(wanted)
    return python


def run_recorded(command: List[str], variables: Dict[str, str], output: Path) -> int:
    """Run a command and copy what it prints to a file."""
    process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with process, output.open("wb") as file:
        for line in process.stdout or ():
            file.write(line)
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    return process.returncode


def main(arguments: List[str]) -> None:
    """Run one command, in place of this process where its output is not recorded."""
    message = explain_old_python(sys.version_info)
    if message:
        sys.exit(message)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs, but tests interrupt commands
    command, rest = (arguments[0], arguments[1:]) if arguments else ("help", [])
    if command == "report":
        from devtools.report import report

        sys.exit(report(WORK / "reports", *rest))
    reports = WORK / "reports" / command
    if command in REPORTED_COMMANDS:
        shutil.rmtree(str(reports), ignore_errors=True)
        reports.mkdir(parents=True)
    variables = dict(os.environ, FIB_MACHINE_TORCH=find_machine_torch(), FIB_REPORTS=str(reports))
    if command in COMPILING_COMMANDS:
        variables["CXX"] = find_compiler()
    nox = [install_nox(), "-m", "nox", "--noxfile", str(ROOT / "noxfile.py")]
    if command in ("help", "-h", "--help"):
        print("`check` runs the sessions marked [check]; `report` summarizes `test` and `check`.\n", flush=True)
        nox += ["--list"]
    elif command in REPORTED_COMMANDS:
        nox += ["--report", str(reports / "nox.json"), *REPORTED_COMMANDS[command], "--", *rest]
        if not sys.stdout.isatty():
            sys.exit(run_recorded(nox, variables, reports / "output.txt"))
    else:
        nox += ["--session", command, "--", *rest]
    os.execve(nox[0], nox, variables)


if __name__ == "__main__":
    main(sys.argv[1:])
