"""Signing by the owner of a data set."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import msgspec

from .._checks import component_problem
from .._layout import TRACES, is_below
from .._reader import LFS_POINTER
from ..display import escape_line
from .envelope import read_envelope, write_envelope
from .errors import CannotSign
from .keys import PrivateKey
from .manifest import Manifest, SignedFile, collisions, path_problem
from .reading import NotRegular, hash_start, open_regular
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
    for entry in list_tree(root):
        if problem := entry.problem:
            problems.append(f"{escape_line(entry.path)}: {problem}")
        elif problem := path_problem(entry.path):
            problems.append(problem)
        else:
            try:
                files.append(_hash_file(root, entry.path))
            except (OSError, NotRegular, _GitPointer) as error:
                problems.append(f"{entry.path}: {error}")
    problems += collisions(file.path for file in files)
    if not files and not problems:
        problems.append("it has no files; is it a data set?")
    if problems:
        omitted = [f"and {len(problems) - _MAX_PROBLEMS} more"] if len(problems) > _MAX_PROBLEMS else []
        raise CannotSign(root, (*problems[:_MAX_PROBLEMS], *omitted))
    return files


class _GitPointer(Exception):
    def __str__(self) -> str:
        return "is a Git LFS pointer and not the file itself; run 'git lfs pull' in the data set"


def _hash_file(root: str, path: str) -> SignedFile:
    """Hash a file up to the size that it has when it is opened; lines that are appended meanwhile are not signed."""
    with open_regular(Path(root, path)) as (file, size):
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            raise _GitPointer
        file.seek(0)
        if not path.startswith(TRACES + "/"):
            done, digest = hash_start(file, size)
            return SignedFile(path, done, digest)
        data = file.read(size) or b""
        while len(data) < size and (more := file.read(size - len(data))):
            data += more
    return SignedFile(path, len(data), hashlib.sha256(data).hexdigest(), _definitions_in(data))


class _Line(msgspec.Struct):
    definition: str


_decode_line = msgspec.json.Decoder(_Line).decode


def _definitions_in(data: bytes) -> tuple[str, ...]:
    """The definitions that the lines of a file of traces state; what is no trace states none."""
    found: set[str] = set()
    for line in data.split(b"\n"):
        try:
            found.add(_decode_line(line).definition)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            found |= _leniently(line)
    return tuple(sorted(found))


def _leniently(line: bytes) -> set[str]:
    """The definition of a line with bare NaN, which readers take."""
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError):
        return set()
    name = plain.get("definition") if isinstance(plain, dict) else None
    return {name} if isinstance(name, str) and component_problem(name) is None else set()
