"""Stamps: what an environment was made from, so that a warm start only compares."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workshop.checkout import Checkout
from workshop.machine import Host, read_json

# The tables of a manifest that say what gets installed; a change to the linter's settings re-installs nothing.
INSTALLING_TABLES = ("build-system", "project", "dependency-groups")


def fingerprint(facts: Any) -> str:
    """A hash of any JSON value; the encoding keeps different values apart."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def installing_part(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a manifest that decides what an environment holds."""
    part = {table: manifest.get(table) for table in INSTALLING_TABLES}
    return part | {"hatch": manifest.get("tool", {}).get("hatch")}


def environment_stamp(checkout: Checkout, host: Host, python_version: str, hatch: str) -> dict[str, str]:
    """The two hashes of the development environment.

    Returns:
        `base`: where it differs the environment is made anew (another Python, place, torch or pin);
        `manifests`: where only this differs the environment is brought up to date.
    """
    pins = checkout.constraints.read_text()
    base = [str(checkout.root), host.python, host.kind, host.torch, host.site, python_version, hatch, pins]
    manifests = {package.name: installing_part(package.manifest) for package in checkout.packages}
    return {"base": fingerprint(base), "manifests": fingerprint([installing_part(checkout.manifest), manifests])}


def read_stamp(path: Path) -> dict[str, str]:
    """The stamp written last, or an empty one."""
    return read_json(path)


def write_stamp(path: Path, stamp: Mapping[str, str]) -> None:
    """Write a stamp, after the work it stands for is done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(stamp))
