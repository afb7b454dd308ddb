"""Build a source distribution and a wheel, and look into both, against the manifest and what git tracks."""

import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Collection, Iterable
from email.message import Message
from email.parser import Parser
from pathlib import Path

from workshop.checkout import Checkout, Package
from workshop.history import tracked_files
from workshop.process import Console
from workshop.requirements import parse_requirement
from workshop.wheels import build

_IN_EVERY_SDIST = ("PKG-INFO", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")


def build_release(checkout: Checkout, console: Console, package: Package) -> list[str]:
    """Build into `dist/TAG/`, emptied first, and look into what came out.

    The wheel is built from the source distribution: if a file is missing from that, it shows here.

    Returns:
        What is wrong with the two files.
    """
    folder = checkout.dist / package.tag
    shutil.rmtree(folder, ignore_errors=True)
    with console.step(f"building {package.sdist_name}"):
        build(checkout, console, package.folder, "sdist", folder, log=f"sdist-{package.name}.log")
    with console.step(f"building {package.wheel_name} from it"), tempfile.TemporaryDirectory() as name:
        with tarfile.open(folder / package.sdist_name) as archive:
            archive.extractall(name, filter="data")
        source = Path(name) / package.sdist_name.removesuffix(".tar.gz")
        build(checkout, console, source, "wheel", folder, log=f"build-{package.name}.log")
    for path in sorted(folder.iterdir()):
        console.say(f"  {path.stat().st_size / 2**10:8.1f} KiB  {path.relative_to(checkout.root)}")
    tracked = tracked_files(package.folder)
    return [
        *sdist_objections(package, folder / package.sdist_name, tracked),
        *wheel_objections(package, folder / package.wheel_name, tracked),
    ]


def wheel_objections(package: Package, wheel: Path, tracked: Collection[str]) -> list[str]:
    """What is wrong with a wheel.

    Args:
        package: What it was built from.
        wheel: The file.
        tracked: The files of the package that git tracks, relative to its folder.
    """
    stem = package.wheel_name.removesuffix("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        about = f"{stem}.dist-info"
        missing = [f"{about}/{name}" for name in ("METADATA", "licenses/LICENSE") if f"{about}/{name}" not in names]
        if missing:
            return [f"{wheel.name} lacks {name}" for name in missing]
        metadata = Parser().parsestr(archive.read(f"{about}/METADATA").decode())
    contents = {name for name in names if not name.startswith(f"{about}/")}
    sources = {name.removeprefix("src/") for name in tracked if name.startswith("src/")}
    return [*_differences(wheel.name, contents, sources), *_metadata_objections(package, metadata, wheel.name)]


def sdist_objections(package: Package, sdist: Path, tracked: Collection[str]) -> list[str]:
    """What is wrong with a source distribution; the arguments are those of `wheel_objections`."""
    stem = package.sdist_name.removesuffix(".tar.gz")
    with tarfile.open(sdist) as archive:
        names = [member.name for member in archive.getmembers() if member.isfile()]
        lacking = [f"lacks {stem}/PKG-INFO"] if f"{stem}/PKG-INFO" not in names else []
        strays = [name for name in names if not name.startswith(f"{stem}/")]
        if lacking or strays:
            beside = [f"has {name}, which is beside the folder {stem}" for name in strays]
            return [f"{sdist.name} {objection}" for objection in (*lacking, *beside)]
        file = archive.extractfile(f"{stem}/PKG-INFO")
        metadata = Parser().parsestr(file.read().decode()) if file else Message()
    contents = {name.removeprefix(f"{stem}/") for name in names} - {"PKG-INFO", ".gitignore"}
    return [
        *_differences(sdist.name, contents, _in_sdist(tracked)),
        *_metadata_objections(package, metadata, sdist.name),
    ]


def _in_sdist(tracked: Iterable[str]) -> set[str]:
    return {name for name in tracked if name in _IN_EVERY_SDIST or name.startswith(("src/", "tests/"))}


def _differences(where: str, found: Collection[str], wanted: Collection[str]) -> list[str]:
    lacking = [f"{where} lacks {name}, which git tracks" for name in sorted(set(wanted) - set(found))]
    return lacking + [f"{where} has {name}, which git does not track" for name in sorted(set(found) - set(wanted))]


def _metadata_objections(package: Package, metadata: Message, where: str) -> list[str]:
    project = package.manifest["project"]
    wanted = {
        "Name": package.name,
        "Version": package.version,
        "Requires-Python": project.get("requires-python"),
        "License-Expression": project.get("license"),
        "Summary": project.get("description"),
    }
    objections = [
        f"{where} says {key}: {metadata[key]}, and the manifest {value}"
        for key, value in wanted.items()
        if metadata[key] != value
    ]
    if not str(metadata.get_payload()).strip():
        objections.append(f"{where} has no description: the README is missing from it")
    return objections + _requirement_objections(package, metadata, where)


def _requirement_objections(package: Package, metadata: Message, where: str) -> list[str]:
    lines = metadata.get_all("Requires-Dist", [])
    found = {parse_requirement(line) for line in lines if "extra ==" not in line}
    wanted = {parse_requirement(text) for text in package.requirements}
    extras = set(metadata.get_all("Provides-Extra", []))
    objections = [] if found == wanted else [f"{where} requires {_listed(found)}, and the manifest {_listed(wanted)}"]
    if extras != set(package.extras):
        objections.append(f"{where} offers the extras {_listed(extras)}, and the manifest {_listed(package.extras)}")
    return objections


def _listed(things: Iterable[object]) -> str:
    return ", ".join(sorted(str(thing) for thing in things)) or "nothing"
