"""Signing by the owner of a data set."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

import attrs
import msgspec

from .._record import component_problem
from ..data_files import DEFINITIONS, SOLUTIONS, TRACES, is_below
from ..display import escape_line
from ..reader import LFS_POINTER
from .envelope import read_envelope, write_envelope
from .errors import CannotSign
from .keys import PrivateKey
from .manifest import Manifest, SignedFile, collisions, path_problem
from .reading import NotRegular, hash_start, open_regular, read_start
from .tree import list_tree
from .verification import FileReport, Verification, compare

_MAX_PROBLEMS = 100


def sign(
    root: str | os.PathLike[str], key: PrivateKey, *, serial: int | None = None, writes: bool = True
) -> Verification:
    """Sign all files of a data set.

    Args:
        root: The folder of the set.
        key: The key of its owner.
        serial: The number of this state; by default, one more than that of the last state that the key signed.
        writes: Whether the signature is stored; without it, only the differences are found.

    Returns:
        The new manifest, and how the files compare with the last one that the key signed. Read it: it is what the
        signature vouches for in addition.

    Raises:
        CannotSign: The set has no files, or some that cannot be signed; all are named.
        NotSigned: The key's last signature is not valid: remove its file, or restore it.
    """
    previous = read_envelope(root, key.public)
    files = _hash_files(os.fspath(root))
    last = previous[0] if previous else None
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    manifest = Manifest(serial or (last.serial + 1 if last else 1), created, files)
    if last is not None and manifest.serial <= last.serial:
        raise CannotSign(os.fspath(root), (f"serial {manifest.serial} does not follow {last.serial}, the last one",))
    reports: list[FileReport] = compare(root, last or Manifest(1, created, ()))
    if writes:
        write_envelope(root, manifest, key)
    return Verification(key.public, manifest, tuple(reports))


def check_key_place(root: str | os.PathLike[str], key_path: str | os.PathLike[str]) -> None:
    """Refuse a private key that would be published with the data set.

    Raises:
        CannotSign: The key lies below the root.
    """
    if is_below(os.path.realpath(key_path), os.path.realpath(root)):
        problem = f"the private key {os.fspath(key_path)} lies in the data set, which others can read; move it"
        raise CannotSign(os.fspath(root), (problem,))


def _hash_files(root: str) -> list[SignedFile]:
    files: list[SignedFile] = []
    problems: list[str] = []
    names = _Names()
    for entry in list_tree(root):
        if problem := entry.problem:
            problems.append(f"{escape_line(entry.path)}: {problem}")
        elif problem := path_problem(entry.path):
            problems.append(problem)
        else:
            try:
                files.append(_hash_file(root, entry.path, names))
            except (OSError, NotRegular, _GitPointer) as error:
                problems.append(f"{entry.path}: {error}")
    problems += collisions(file.path for file in files)
    problems += names.problems
    if not files and not problems:
        problems.append("it has no files; is it a data set?")
    if problems:
        omitted = [f"and {len(problems) - _MAX_PROBLEMS} more"] if len(problems) > _MAX_PROBLEMS else []
        raise CannotSign(root, (*problems[:_MAX_PROBLEMS], *omitted))
    return files


class _GitPointer(Exception):
    def __str__(self) -> str:
        return "is a Git LFS pointer and not the file itself; run 'git lfs pull' in the data set"


@attrs.define
class _Names:
    """Names of definitions and solutions. One that two files state is ambiguous, which removing a file would hide."""

    problems: list[str] = attrs.field(factory=list)
    _files: dict[tuple[str, str], str] = attrs.field(factory=dict)

    def add(self, path: str, data: bytes) -> None:
        """Add the name that a file states, if it states one."""
        folder = path.partition("/")[0]
        for name in _name_of(data):
            first = self._files.setdefault((folder, name), path)
            if first != path:
                self.problems.append(f"{path}: {first} has the name {name!r} too; rename or remove one")


def _hash_file(root: str, path: str, names: _Names) -> SignedFile:
    """Hash a file up to the size that it has when it is opened; lines that are appended meanwhile are not signed."""
    with open_regular(Path(root, path)) as (file, size):
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            raise _GitPointer
        file.seek(0)
        if not path.startswith((TRACES + "/", DEFINITIONS + "/", SOLUTIONS + "/")):
            done, digest = hash_start(file, size)
            return SignedFile(path, done, digest)
        data = read_start(file, size)
    definitions: tuple[str, ...] = ()
    if path.startswith(TRACES + "/"):
        definitions = tuple(sorted({name for line in data.split(b"\n") for name in _definition_of(line)}))
    elif path.endswith(".json"):
        names.add(path, data)
    return SignedFile(path, len(data), hashlib.sha256(data).hexdigest(), definitions)


class _Named(msgspec.Struct):
    name: str


class _Line(msgspec.Struct):
    definition: str


_decode_name = msgspec.json.Decoder(_Named).decode
_decode_line = msgspec.json.Decoder(_Line).decode


def _definition_of(line: bytes) -> Iterable[str]:
    """The definition that a line states; none if it is not a trace."""
    try:
        return (_decode_line(line).definition,)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _leniently(line, "definition")


def _name_of(text: bytes) -> Iterable[str]:
    """The name that a file states; none if it is not a record."""
    try:
        return (_decode_name(text).name,)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _leniently(text, "name")


def _leniently(text: bytes, field: str) -> Iterable[str]:
    """A field of JSON with bare NaN, which readers take."""
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    value = plain.get(field) if isinstance(plain, dict) else None
    return (value,) if isinstance(value, str) and component_problem(value) is None else ()
