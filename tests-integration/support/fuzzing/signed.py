"""Fuzzing of signed sets: whatever is changed after signing, only what was signed is used, and `verify` sees it.

The healthy set is signed once. Each case mutates a copy, its signature too, and compares what fib-apply selects with
the selection from the healthy set.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

from bad_sets.healthy import HARDWARE, write_healthy

from . import mutations
from .targets import Finding

_PARTS = ("definitions", "solutions", "workloads", "traces", "blob")


def prepare(folder: Path) -> None:
    """Write a key, the healthy set with its signature, and what fib-apply selects from it."""
    write_healthy(folder / "set")
    os.environ["FIB_CACHE_PATH"] = str(folder / "cache")
    for words in (("keygen", str(folder / "owner")), ("sign", str(folder / "set"), "--key", str(folder / "owner"))):
        code, output = _call("fib-schema", *words)
        if code != 0:
            raise RuntimeError(output)
    code, output = _call_table(folder / "set", folder / "owner.pub")
    if code != 0:
        raise RuntimeError(output)
    (folder / "table.json").write_text(output)
    shutil.rmtree(folder / "cache")


def draw(rng: random.Random) -> dict[str, Any]:
    """A mutation of the set, or of its signature."""
    if rng.random() < 0.6:
        return mutations.draw(rng)
    names = mutations.object_names()
    return {"do": "signature", "pick": rng.random(), "object": rng.choice((None, None, None, *names))} | (
        mutations.draw_bytes_change(rng)
    )


def run(prepared: Path, folder: Path, case: list[dict[str, Any]]) -> None:
    """Run one case below an empty folder.

    Raises:
        Finding: Something is used that was not signed, or `verify` overlooks a change.
    """
    root = folder / "set"
    shutil.copytree(prepared / "set", root)
    for mutation in case:
        if mutation["do"] == "signature":
            _change_signature(root, mutation)
        else:
            mutations.apply(root, mutation)
    signed = _candidates((prepared / "table.json").read_text())
    code, output = _call_table(root, prepared / "owner.pub")
    if code not in (0, 2):
        raise Finding(f"exit code {code} of fib-apply table")
    if code == 0 and not _candidates(output) <= signed:
        raise Finding("fib-apply selects something that was not signed")
    code, _ = _call("fib-schema", "verify", str(root), "--signer", str(prepared / "owner.pub"))
    if code not in (0, 1, 2):
        raise Finding(f"exit code {code} of fib-schema verify")
    if code == 0 and _contents(root) != _contents(prepared / "set"):
        raise Finding("fib-schema verify overlooks a change")


def _change_signature(root: Path, mutation: dict[str, Any]) -> None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        places = sorted((root / "signatures").rglob("*"))
        path = places[int(mutation["pick"] * len(places))]
        if mutation["object"] is None:
            mutations.change_bytes(path, mutation)
        else:
            mutations.apply_object(path, mutation["object"])


def _contents(root: Path) -> dict[str, bytes | None]:
    """The regular files of the parts that a signature covers; None for other objects; hidden ones are not covered."""
    found: dict[str, bytes | None] = {}
    folders = [root / part for part in _PARTS]
    while folders:
        with contextlib.suppress(OSError):
            for path in folders.pop().iterdir():
                if path.name.startswith("."):
                    continue
                mode = path.lstat().st_mode
                if stat.S_ISDIR(mode) and len(path.parts) < 100:
                    folders.append(path)
                else:
                    found[str(path.relative_to(root))] = mutations.read(path) if stat.S_ISREG(mode) else None
    return found


def _candidates(output: str) -> set[str]:
    """The candidates of all keys of a table as JSON, with their latencies."""
    return {
        json.dumps([key["definition"], key["axes"], candidate["solution"], candidate["latency_ms"]])
        for key in json.loads(output)["keys"]
        for candidate in key["candidates"]
    }


def _call_table(root: Path, key: Path) -> tuple[int, str]:
    return _call("fib-apply", "table", str(root), "--hardware", HARDWARE, "--json", "--require-signed-by", str(key))


def _call(*words: str) -> tuple[int, str]:
    """The exit code and the standard output of a command."""
    from fib_apply.cli import main as apply_main
    from fib_schema.cli import main as schema_main

    sys.argv = list(words)
    stdout = io.StringIO()
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(io.StringIO()):
            code = (schema_main if words[0] == "fib-schema" else apply_main)() or 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    return code, stdout.getvalue()
