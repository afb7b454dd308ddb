"""Mutations: small changes of a data set on disk. Each is a mapping of JSON values, so that a corpus can hold it.

`draw` makes a random one; `apply` does it. A mutation that does not fit the set any more (its file has gone, its
path of keys does not exist) does nothing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bad_sets.healthy import ALL_PARTS, BLOB

from .values import BYTES, KEYS, NAMES, draw_json

Mutation = dict[str, Any]
FILES = (*ALL_PARTS, BLOB)
FOLDERS = ("definitions/activation", "solutions/me/activation/victim", "blob/workloads/activation/victim", "traces/me")
_MARK = "\ue000value\ue000"
_UNFIT = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    struct.error,
    OverflowError,
    ZeroDivisionError,
)
"""Exceptions of a mutation that does not fit the file any more."""


def draw(rng: random.Random) -> Mutation:
    """A random mutation of the victim's files; the keeper's are never touched."""
    make = rng.choices(_DRAW, weights=_WEIGHTS)[0]
    return make(rng)


def apply(root: Path, mutation: Mutation) -> None:
    """Do a mutation to the set below `root`, or nothing if it does not fit."""
    with contextlib.suppress(*_UNFIT):
        _APPLY[mutation["do"]](root / mutation["file"], mutation)


def read(path: Path) -> bytes:
    """The content of a regular file: others may block, or never end.

    Raises:
        OSError: It is none, or larger than 64 MB.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > 64_000_000:
        raise OSError(errno.EINVAL, "no small regular file", str(path))
    return path.read_bytes()


def touches_all(mutation: Mutation) -> bool:
    """Whether it may hide the keeper: it changes a folder above the keeper's files, or names the keeper."""
    is_above = mutation["do"] in ("replace", "chmod", "rename") and mutation["file"] in FOLDERS
    return is_above or "keeper" in json.dumps(mutation)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += _places(item, (*path, key))
    return found


def _draw_value(rng: random.Random) -> Mutation:
    file = rng.choice(ALL_PARTS)
    return {"do": "value", "file": file, "line": rng.randrange(3), "at": rng.random(), "json": draw_json(rng)}


def _value(path: Path, mutation: Mutation) -> None:
    """Replace a value of a record, at a share of all its places, by JSON text."""
    _edit(path, mutation, lambda parent, key: parent.__setitem__(key, _MARK))


def _draw_key(rng: random.Random) -> Mutation:
    how = rng.choice(("remove", "rename", "add", "repeat"))
    file = rng.choice(ALL_PARTS)
    key = rng.choice(KEYS)
    return {"do": "key", "file": file, "line": 0, "at": rng.random(), "how": how, "key": key, "json": draw_json(rng)}


def _key(path: Path, mutation: Mutation) -> None:
    """Remove, rename, add or repeat a key of a record."""

    def change(parent: Any, key: Any) -> None:
        how = mutation["how"]
        if how == "remove":
            del parent[key]
        elif how == "rename":
            parent[mutation["key"]] = parent.pop(key)
        elif how == "add":
            target = parent[key] if isinstance(parent[key], dict) else parent
            target[mutation["key"]] = _MARK
        else:
            parent[f"{_MARK}{key}"] = parent[key]

    _edit(path, mutation, change)


def _edit(path: Path, mutation: Mutation, change: Callable[[Any, Any], None]) -> None:
    is_lines = path.suffix == ".jsonl"
    text = read(path).decode()
    lines = text.splitlines() if is_lines else [text]
    number = mutation["line"] % len(lines) if is_lines else 0
    record = json.loads(lines[number])
    places = _places(record)
    *parents, key = places[int(mutation["at"] * len(places))]
    parent = record
    for step in parents:
        parent = parent[step]
    change(parent, key)
    text = json.dumps(record).replace(json.dumps(_MARK), mutation["json"]).replace(json.dumps(_MARK)[1:-1], "")
    lines[number] = text
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")


def draw_bytes_change(rng: random.Random) -> Mutation:
    """Change of the bytes of a file."""
    how = rng.choice(("truncate", "insert", "overwrite", "delete", "repeat", "whole"))
    return {"how": how, "at": rng.random(), "data": rng.choice(BYTES).hex(), "times": rng.choice((1, 1, 3, 300))}


def _draw_bytes(rng: random.Random) -> Mutation:
    return {"do": "bytes", "file": rng.choice(FILES)} | draw_bytes_change(rng)


def change_bytes(path: Path, mutation: Mutation) -> None:
    """Change the bytes of a file at a share of its length."""
    old, data = read(path), bytes.fromhex(mutation["data"]) * mutation["times"]
    at = int(mutation["at"] * len(old))
    path.write_bytes(
        {
            "truncate": old[:at],
            "insert": old[:at] + data + old[at:],
            "overwrite": old[:at] + data + old[at + len(data) :],
            "delete": old[:at] + old[at + len(data) :],
            "repeat": old[:at] + old[at // 2 : at] * mutation["times"] + old[at:],
            "whole": data,
        }[mutation["how"]]
    )


def _draw_replace(rng: random.Random) -> Mutation:
    object_ = rng.choice(object_names())
    return {"do": "replace", "file": rng.choice((*FILES, *FILES, *FOLDERS)), "object": object_}


def _replace(path: Path, mutation: Mutation) -> None:
    apply_object(path, mutation["object"])


def object_names() -> tuple[str, ...]:
    """The objects that `apply_object` can put in place of a file."""
    return tuple(_OBJECTS)


def apply_object(path: Path, name: str) -> None:
    """Replace a file or folder by another object of the file system."""
    kept = path.with_name(path.name + ".kept")
    path.rename(kept)
    _OBJECTS[name](path, kept)
    if name == "link to its own content":
        return
    if kept.is_dir():
        shutil.rmtree(kept)
    elif kept.exists():
        kept.unlink()


def _out_of_set(path: Path, kept: Path) -> None:
    outside = next(parent for parent in path.parents if parent.name in ("set", "cache")).parent / f"outside-{path.name}"
    shutil.move(kept, outside)
    path.symlink_to(outside)


def _bind(path: Path) -> None:
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    os.fchdir(here)
    os.close(here)


_OBJECTS: dict[str, Callable[[Path, Path], None]] = {
    "fifo": lambda path, _: os.mkfifo(path),
    "socket": lambda path, _: _bind(path),
    "folder": lambda path, _: path.mkdir(),
    "empty file": lambda path, _: path.touch(),
    "dangling link": lambda path, _: path.symlink_to("nowhere"),
    "link loop": lambda path, _: path.symlink_to(path.name),
    "link out of the set": _out_of_set,
    "link to a folder": lambda path, _: path.symlink_to(".."),
    "link to a device": lambda path, _: path.symlink_to("/dev/zero"),
    "link to a process": lambda path, _: path.symlink_to("/proc/self/mem"),
    "link to its own content": lambda path, kept: path.symlink_to(kept.name),
    "hard link": lambda path, kept: os.link(kept, path),
    "sparse file": lambda path, _: void((path.touch(), os.truncate(path, 3 << 30))),
    "nothing": lambda _path, _kept: None,
}


def void(_: object) -> None:
    """Drop a result."""


def _draw_rename(rng: random.Random) -> Mutation:
    return {
        "do": "rename",
        "file": rng.choice((*FILES, *FOLDERS)),
        "name": rng.choice(NAMES).hex(),
        "copy": rng.random() < 0.5,
    }


def _rename(path: Path, mutation: Mutation) -> None:
    """Rename or copy a file to a name of any bytes."""
    target = os.path.join(os.fsencode(path.parent), bytes.fromhex(mutation["name"]) + os.fsencode(path.suffix))
    if mutation["copy"]:
        read(path)
        shutil.copy(os.fsencode(path), target)
    else:
        os.rename(path, target)


def _draw_swap(rng: random.Random) -> Mutation:
    return {
        "do": "swap",
        "file": rng.choice(FILES),
        "other": rng.choice(FILES),
        "how": rng.choice(("over", "append", "splice")),
    }


def _swap(path: Path, mutation: Mutation) -> None:
    """Write another file's content over a file, behind it, or over its second half."""
    other = next(parent for parent in path.parents if parent.name == "set") / mutation["other"]
    data, old = read(other), read(path)
    how = mutation["how"]
    path.write_bytes(data if how == "over" else old + data if how == "append" else old[: len(old) // 2] + data)


def _draw_header(rng: random.Random) -> Mutation:
    length = rng.choice((None, None, 0, 1, 7, 2**31, 2**32, 2**63, 2**64 - 1))
    return {"do": "header", "file": BLOB, "at": rng.random(), "json": draw_json(rng), "length": length}


def _header(path: Path, mutation: Mutation) -> None:
    """Change a value in the header of a blob, or its length field."""
    data = read(path)
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    places = _places(header)
    *parents, key = places[int(mutation["at"] * len(places))]
    parent = header
    for step in parents:
        parent = parent[step]
    parent[key] = _MARK
    text = json.dumps(header).replace(json.dumps(_MARK), mutation["json"]).encode("utf-8", "surrogatepass")
    said = len(text) if mutation["length"] is None else mutation["length"]
    path.write_bytes(struct.pack("<Q", said) + text + data[8 + length :])


def _draw_deep(rng: random.Random) -> Mutation:
    return {
        "do": "deep",
        "file": rng.choice(FOLDERS),
        "levels": rng.choice((3, 60, 1200)),
        "name": rng.choice(NAMES).hex(),
    }


def _deep(path: Path, mutation: Mutation) -> None:
    """Nested folders with a file of rubbish in the innermost one."""
    here = os.open(path, os.O_RDONLY)
    for _ in range(mutation["levels"]):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    name = bytes.fromhex(mutation["name"]) + b".json"
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def _draw_chmod(rng: random.Random) -> Mutation:
    return {"do": "chmod", "file": rng.choice((*FILES, *FOLDERS)), "mode": rng.choice((0, 0o200, 0o400, 0o100))}


def _chmod(path: Path, mutation: Mutation) -> None:
    """Change permissions; not those of a link's target, which may be a folder above the keeper."""
    if not path.is_symlink():
        path.chmod(mutation["mode"])


_DRAW = (
    _draw_value,
    _draw_key,
    _draw_bytes,
    _draw_replace,
    _draw_rename,
    _draw_swap,
    _draw_header,
    _draw_deep,
    _draw_chmod,
)
_WEIGHTS = (40, 12, 12, 9, 6, 5, 8, 2, 2)
_APPLY: dict[str, Callable[[Path, Mutation], None]] = {
    "value": _value,
    "key": _key,
    "bytes": change_bytes,
    "replace": _replace,
    "rename": _rename,
    "swap": _swap,
    "header": _header,
    "deep": _deep,
    "chmod": _chmod,
}
