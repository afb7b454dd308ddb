"""Virtual environments: the development environment, and isolated test environments."""

import fcntl
import hashlib
import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import nox
from nox.command import CommandFailed

from .repository import ROOT, find_packages

WORK = ROOT / ".dev"
CONSTRAINTS = ROOT / "tools" / "constraints.txt"
MACHINE_TORCH = os.environ.get("FIB_MACHINE_TORCH", "")  # site-packages of a torch with CUDA, found by tools/dev.py
UV_PIP = (sys.executable, "-m", "uv", "pip", "install", "--quiet")
_PIP_ONLY = WORK / "nox" / "pip-only"  # exists after uv failed or installed another torch than pip would


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and how to install into it."""

    folder: Path

    def run(self, session: nox.Session, *command: str, env: dict[str, str] | None = None, **options: Any) -> Any:
        """Run a command with this environment activated."""
        path = os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])
        variables = {"VIRTUAL_ENV": str(self.folder), "PATH": path, **(env or {})}
        program = shutil.which(command[0], path=path) or command[0]
        return session.run(program, *command[1:], env=variables, external=True, **options)

    def create(self, session: nox.Session) -> None:
        """Create it empty. It sees the machine's packages if they include a torch with CUDA."""
        shutil.rmtree(self.folder, ignore_errors=True)
        options = ["--system-site-packages"] if MACHINE_TORCH else []
        session.run(sys.executable, "-m", "venv", "--without-pip", *options, str(self.folder), external=True, log=False)
        if MACHINE_TORCH:  # may lie in a virtual environment, which a nested one does not see
            (site,) = self.folder.glob("lib/python*/site-packages")
            (site / "machine-torch.pth").write_text(f"{MACHINE_TORCH}\n")

    def install(self, session: nox.Session, *arguments: str) -> None:
        """Install with uv or pip. Torch keeps the version of `tools/constraints.txt`, or is the machine's own."""
        python = str(self.folder / "bin" / "python")
        session.log(f"installing into {self.folder} with {'uv' if uses_uv() else 'pip'}")
        arguments = arguments if MACHINE_TORCH else ("--constraint", str(CONSTRAINTS), *arguments)
        if uses_uv():
            try:
                session.run(*UV_PIP, "--python", python, *arguments, env=uv_variables(), external=True, log=False)
            except CommandFailed:
                session.warn("uv failed; pip is used from now on")
            else:
                if not expects_cpu_torch() or self.torch_version.endswith(("+cpu", "absent")):
                    return
                session.warn(f"uv installed torch {self.torch_version}, not the CPU build; pip is used from now on")
                self.create(session)
            _PIP_ONLY.touch()
        options = ["--python", python, "install", "-qq", "--no-compile"]
        session.run(sys.executable, "-m", "pip", *options, *arguments, external=True, log=False)

    @property
    def torch_version(self) -> str:
        """`torch.__version__` as installed here, read without importing torch; "absent" without it."""
        files = list(self.folder.glob("lib/python*/site-packages/torch/version.py"))
        return str(runpy.run_path(str(files[0]))["__version__"]) if files else "absent"


def uses_uv() -> bool:
    """Whether uv installs. It ignores the machine's packages, so a machine's own torch needs pip."""
    return not MACHINE_TORCH and not _PIP_ONLY.exists() and importlib.util.find_spec("uv") is not None


@cache
def pip_settings() -> dict[str, str]:
    """Pip's own settings, from its files and variables; variables take precedence."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: list[tuple[str, str, str]] = re.findall(r"^(\S+)\.([a-z-]+)='(.*)'$", output, re.MULTILINE)
    return {key: value for _, key, value in sorted(found, key=lambda setting: setting[0] == ":env:")}


def uv_variables() -> dict[str, str]:
    """Pip's settings as variables of uv, which reads none of them."""
    names = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "cert": "SSL_CERT_FILE"}
    found = {names[key]: value for key, value in pip_settings().items() if key in names}
    links = ",".join(pip_settings().get("find-links", "").split())
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_FIND_LINKS": links, **found}  # pip prefers no index


def expects_cpu_torch() -> bool:
    """Whether torch has to be a CPU build: pip finds one in a folder of its `find-links`, or uv is asked for it."""
    if os.environ.get("UV_TORCH_BACKEND") == "cpu":
        return True
    return any(list(Path(link).glob("torch-*+cpu-*.whl")) for link in pip_settings().get("find-links", "").split())


def development(session: nox.Session) -> Environment:
    """The development environment, created anew if a manifest, a pin or the Python has changed."""
    environment = Environment(ROOT / (".venv-machine-torch" if MACHINE_TORCH else ".venv"))
    packages = find_packages(ROOT)
    manifests = [ROOT / "pyproject.toml", CONSTRAINTS, *(package.folder / "pyproject.toml" for package in packages)]
    facts = [sys.version, str(ROOT), MACHINE_TORCH, *(path.read_text() for path in manifests)]
    wanted = hashlib.sha256("\0".join(facts).encode()).hexdigest()
    stamp = environment.folder / "stamp"
    WORK.mkdir(exist_ok=True)
    with (WORK / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two commands at a time
        if not stamp.exists() or stamp.read_text() != wanted:
            environment.create(session)
            groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
            editables = [f"--editable={ROOT}/packages/{name_with_extras}" for name_with_extras in groups["packages"]]
            environment.install(session, *groups["dev"], *groups["docs"], *editables)
            stamp.write_text(wanted)
    return environment
