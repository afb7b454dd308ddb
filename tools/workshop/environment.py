"""The development environment: hatch in a venv of its own, and the environment that hatch fills."""

import fcntl
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from workshop.checkout import Checkout
from workshop.machine import ENVIRONMENT_FOLDERS, Host, find_host, note_host, require_venv
from workshop.process import Console, run_logged
from workshop.stamps import environment_stamp, fingerprint, read_stamp, write_stamp

HATCH = "hatch==1.18.2"  # pinned: workspace members are young, and their options still move


@dataclass(frozen=True)
class Environment:
    """A virtual environment that is ready to use."""

    folder: Path

    @property
    def python(self) -> str:
        """Its interpreter."""
        return self.program("python")

    def program(self, name: str) -> str:
        """The path of a command that is installed in it."""
        return str(self.folder / "bin" / name)

    def variables(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with this environment activated: programs such as ninja are looked up on the path."""
        kept = {name: value for name, value in base.items() if name != "PYTHONHOME"}
        path = os.pathsep.join([str(self.folder / "bin"), base.get("PATH", os.defpath)])
        return kept | {"VIRTUAL_ENV": str(self.folder), "PATH": path}


def prepare(checkout: Checkout, console: Console) -> Environment:
    """The development environment, made or brought up to date where its stamp says that it has to be."""
    host = find_host(checkout)
    environment = Environment(checkout.root / ENVIRONMENT_FOLDERS[host.kind])
    stamp = environment_stamp(checkout, host, sys.version, HATCH)
    if not is_current(checkout, environment, stamp):
        with locked(checkout, console):
            if not is_current(checkout, environment, stamp):
                _bring_up_to_date(checkout, console, host, environment, stamp)
    return environment


def is_current(checkout: Checkout, environment: Environment, stamp: Mapping[str, str]) -> bool:
    """Whether the environment is there and was made from what is there now."""
    return Path(environment.python).exists() and read_stamp(_stamp_path(checkout, environment)) == stamp


def _stamp_path(checkout: Checkout, environment: Environment) -> Path:
    return checkout.work / f"{environment.folder.name.lstrip('.')}.json"


def _bring_up_to_date(
    checkout: Checkout, console: Console, host: Host, environment: Environment, stamp: Mapping[str, str]
) -> None:
    console.say(f"setting up {environment.folder.name} with Python {platform.python_version()}" + _torch_note(host))
    hatch = prepare_hatch(checkout, console, host)
    path = _stamp_path(checkout, environment)
    made = Path(environment.python).exists() and read_stamp(path).get("base") == stamp["base"]
    if not made:
        path.unlink(missing_ok=True)
        _create(checkout, console, host, hatch, environment)
    else:
        _update(checkout, console, host, hatch, environment)
    write_stamp(path, stamp)


def _torch_note(host: Host) -> str:
    return f" and this machine's torch {host.torch}" if host.torch else ""


def prepare_hatch(checkout: Checkout, console: Console, host: Host) -> Environment:
    """Hatch in a venv of its own: what it needs never meets what the packages need."""
    tool = Environment(checkout.work / "hatch")
    path = checkout.work / "hatch.json"
    stamp = {"base": fingerprint([HATCH, host.python, sys.version, str(checkout.root)])}
    if Path(tool.python).exists() and read_stamp(path) == stamp:
        return tool
    path.unlink(missing_ok=True)
    require_venv()
    with console.step(f"installing {HATCH}"):
        make_venv(checkout, tool.folder, Host(host.python))
        pip_install(checkout, tool, ["--upgrade", HATCH], log="hatch.log")
    write_stamp(path, stamp)
    return tool


def make_venv(checkout: Checkout, folder: Path, host: Host) -> None:
    """A fresh virtual environment, which sees the machine's packages where those hold the torch to use."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    options = ["--system-site-packages"] if host.torch else []
    command = [host.python, "-m", "venv", *options, str(folder)]
    run_logged("venv", command, log=checkout.logs / "venv.log", cwd=checkout.root, env=os.environ)
    note_host(folder, host)
    if host.site:
        for site in folder.glob("lib/python*/site-packages"):
            (site / "outer.pth").write_text(f"{host.site}\n")


def pip_install(
    checkout: Checkout, environment: Environment, arguments: list[str], *, log: str, constraint: str | None = None
) -> None:
    """Install with the environment's own pip, under the machine's pip configuration and one constraint more."""
    variables = environment.variables(os.environ)
    if constraint is not None:
        variables["PIP_CONSTRAINT"] = f"{variables.get('PIP_CONSTRAINT', '')} {constraint}".strip()
    command = [environment.python, "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    run_logged("pip install", command, log=checkout.logs / log, cwd=checkout.root, env=variables)


def pins(checkout: Checkout, host: Host) -> list[str]:
    """The pins as a URI, because pip splits its variables at spaces; none beside a machine's own torch."""
    return [] if host.torch else [checkout.constraints.as_uri()]


def _create(checkout: Checkout, console: Console, host: Host, hatch: Environment, environment: Environment) -> None:
    names = ", ".join(package.name for package in checkout.packages)
    with console.step(f"installing tools, {names} and what they need"):
        # Made here and not by hatch: hatch cannot see the packages of a virtual environment that it is run from.
        make_venv(checkout, environment.folder, host)
        shutil.rmtree(checkout.work / "hatch-data", ignore_errors=True)  # it remembers what was installed before
        _hatch_sync(checkout, host, hatch)


def _update(checkout: Checkout, console: Console, host: Host, hatch: Environment, environment: Environment) -> None:
    with console.step("a manifest has changed: installing what is new"):
        _hatch_sync(checkout, host, hatch)
        # Hatch installs what is missing, but does not see that an installed package changed its commands or version.
        folders = [part for package in checkout.packages for part in ("--editable", str(package.folder))]
        constraint = " ".join(pins(checkout, host)) or None
        pip_install(checkout, environment, ["--no-deps", *folders], log="editable.log", constraint=constraint)


def _hatch_sync(checkout: Checkout, host: Host, hatch: Environment) -> None:
    (checkout.work / "hatch-config.toml").touch()  # hatch refuses a named file that is not there
    command = [hatch.python, "-m", "hatch", "run", f"{host.kind}:python", "--version"]
    variables = hatch.variables(hatch_variables(checkout, host, os.environ))
    run_logged("hatch", command, log=checkout.logs / "environment.log", cwd=checkout.root, env=variables)


def hatch_variables(checkout: Checkout, host: Host, base: Mapping[str, str]) -> dict[str, str]:
    """`base` for hatch: its own files stay in the checkout, and the reader's hatch settings do not reach it."""
    kept = {name: value for name, value in base.items() if not name.startswith("HATCH_")}
    own = {
        "HATCH_PYTHON": host.python,
        "HATCH_CONFIG": str(checkout.work / "hatch-config.toml"),
        "HATCH_DATA_DIR": str(checkout.work / "hatch-data"),
        "HATCH_CACHE_DIR": str(checkout.work / "hatch-cache"),
        "VIRTUALENV_OVERRIDE_APP_DATA": str(checkout.work / "virtualenv"),
        "NO_COLOR": "1",
    }
    return kept | own


@contextmanager
def locked(checkout: Checkout, console: Console) -> Iterator[None]:
    """Keep two runs in one checkout from setting it up at the same time."""
    checkout.work.mkdir(parents=True, exist_ok=True)
    with (checkout.work / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.say("waiting for another run that is setting up this checkout")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
