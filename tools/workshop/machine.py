"""What the machine offers: an interpreter, its torch, a C++ compiler."""

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from workshop.checkout import Checkout
from workshop.errors import Missing

PINNED, MACHINE = "default", "machine-torch"
ENVIRONMENT_FOLDERS = {PINNED: ".venv", MACHINE: ".venv-machine-torch"}

HOST_NOTE = "made-from.json"


@dataclass(frozen=True)
class Host:
    """The interpreter that environments are made from.

    Args:
        python: Its path.
        kind: The hatch environment that suits it: `default` installs the pinned torch, `machine-torch` uses the CUDA
            torch that already imports.
        torch: What that torch calls its version; empty for `default`.
        site: A site-packages folder to look into as well: that of the virtual environment that holds the CUDA torch.
    """

    python: str
    kind: str = PINNED
    torch: str = ""
    site: str = ""


def find_host(checkout: Checkout) -> Host:
    """Look at the running interpreter. One of our own environments stands for the host it was made from."""
    noted = read_json(Path(sys.prefix) / HOST_NOTE)
    if noted:
        return Host(**noted)
    # Resolved, because `python` and `python3` are one interpreter: an environment made by one serves the other.
    base = str(Path(getattr(sys, "_base_executable", None) or sys.executable).resolve())
    torch = find_cuda_torch(checkout.work / "torch.json")
    site = sysconfig.get_path("purelib") if torch and sys.prefix != sys.base_prefix else ""
    return Host(base, MACHINE if torch else PINNED, torch, site)


def note_host(folder: Path, host: Host) -> None:
    """Leave a note in an environment about the host that it was made from."""
    (folder / HOST_NOTE).write_text(json.dumps(asdict(host)))


def find_cuda_torch(cache: Path) -> str:
    """The version of a torch with CUDA that imports in this interpreter, or the empty string.

    Importing torch takes seconds, so the answer is kept in `cache` for as long as the same torch is there.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    key = f"{sys.executable} {spec.origin} {Path(spec.origin).stat().st_mtime_ns}"
    known = read_json(cache)
    if known.get("key") != key:
        known = {"key": key, "version": _ask_torch()}
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text(json.dumps(known))
    return known["version"]


def _ask_torch() -> str:
    """Import torch in a process of its own: a broken one must not take this script down."""
    probe = "import torch; print(torch.__version__ if torch.version.cuda else '')"
    answer = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    lines = answer.stdout.split()
    return lines[-1] if answer.returncode == 0 and lines else ""


def read_json(path: Path) -> dict[str, str]:
    """A small file of ours; one that is absent or damaged counts as empty, for it can be made again."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def require_venv() -> None:
    """Check that this Python can make virtual environments.

    Raises:
        Missing: It cannot; Debian ships that part apart.
    """
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise Missing(
            f"the venv module is missing from {sys.executable}.",
            "everything is installed into virtual environments inside the checkout, never into the system.",
            f"on Debian and Ubuntu: `apt install python{version}-venv`; elsewhere use a Python that has `ensurepip`.",
        )


def find_compiler(variables: Mapping[str, str]) -> str:
    """The C++ compiler: what `CXX` names, else `c++`, `g++` or `clang++`.

    Raises:
        Missing: None is on the path.
    """
    wanted = variables.get("CXX", "")
    program = shlex.split(wanted)[0] if wanted.strip() else ""
    candidates = (program,) if program else ("c++", "g++", "clang++")
    for candidate in candidates:
        if shutil.which(candidate, path=variables.get("PATH", os.defpath)):
            return wanted or candidate
    places = f"CXX names {program!r}, which is not" if program else "none of c++, g++, clang++ is"
    raise Missing(
        f"a C++ compiler is missing: {places} on the path.",
        "C++ solutions are compiled when they are built, in the demo and in the tests.",
        "on Debian and Ubuntu: `apt install g++`; or set CXX to your compiler.",
    )
