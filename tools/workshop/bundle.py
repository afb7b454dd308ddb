"""Carry the packages to a GPU machine without a network: our wheels, and what such a machine lacks."""

import os
import shutil
from pathlib import Path

from workshop.checkout import Checkout, requirement_name
from workshop.environment import prepare_hatch
from workshop.machine import find_host
from workshop.process import Console, run_logged
from workshop.wheels import build_wheels

LIST = "tools/bundle.txt"
DEFAULT_PYTHON = "3.12"

# A wheel says the oldest glibc it runs with; pip does not derive the older tags for a foreign machine.
PLATFORMS = tuple(
    f"{tag}_x86_64"
    for tag in ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014", "manylinux1")
)
_PRESENT = "# present:"


def parse_list(text: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """The requirements to carry, and the names that the machine has."""
    present: list[str] = []
    wanted: list[str] = []
    for line in text.splitlines():
        if line.startswith(_PRESENT):
            present += line.removeprefix(_PRESENT).split()
        requirement = line.partition("#")[0].strip()
        if requirement:
            wanted.append(requirement)
    return tuple(wanted), frozenset(requirement_name(name) for name in present)


def download_command(python: str, version: str, wanted: tuple[str, ...], folder: Path) -> list[str]:
    """Download exactly these, as wheels for another Python; `--no-deps`, for the machine has the rest."""
    platforms = [part for platform in PLATFORMS for part in ("--platform", platform)]
    options = ["--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", version]
    return [python, "-m", "pip", "download", *options, *platforms, "--dest", str(folder), *wanted]


def bundle(checkout: Checkout, console: Console, folder: Path, version: str) -> None:
    """Fill `folder`, made if absent, and say how to install from it."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in checkout.packages:
        for old in folder.glob(f"{package.name.replace('-', '_')}-*.whl"):
            old.unlink()
    build_wheels(checkout, console, checkout.packages)
    for package in checkout.packages:
        shutil.copy2(checkout.dist / package.wheel_name, folder)
    wanted, _ = parse_list((checkout.root / LIST).read_text())
    hatch = prepare_hatch(checkout, console, find_host(checkout))
    command = download_command(hatch.python, version, wanted, folder)
    with console.step(f"downloading {len(wanted)} wheels for Python {version}"):
        log = checkout.logs / "bundle.log"
        run_logged("pip download", command, log=log, cwd=checkout.root, env=hatch.variables(os.environ))
    wheels = sorted(folder.glob("*.whl"))
    size_mib = sum(wheel.stat().st_size for wheel in wheels) / 2**20
    console.say(f"{len(wheels)} wheels, {size_mib:.1f} MiB, in {folder}")
    console.say(f"install there: python{version} -m pip install --no-index --no-deps {folder.name}/*.whl")
