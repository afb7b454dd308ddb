"""From the bytes of a data set to plain objects, saying all that is wrong with the text itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from ._report import Findings
from ._scan import Found
from .codec import decode
from .errors import InvalidRecord

MAX_RECORD_BYTES = 64 << 20
"""The largest record that is read; the largest of the public ones is below 1 MB."""
MAX_DEPTH = 100
BOM = b"\xef\xbb\xbf"
LFS_POINTER = b"version https://git-lfs"

_LFS_MESSAGE = "is a Git LFS pointer and not the file itself; run 'git lfs pull' in the data set"
_BOM_MESSAGE = "starts with a byte order mark, which JSON does not allow; save the file as UTF-8 without it"
_TORN_MESSAGE = (
    "the last line is torn (incomplete, no newline), for its writer was stopped; readers skip it: remove the line"
)


def read_json(file: Found, kind: str, findings: Findings) -> Any:
    """The plain objects of a JSON file; None if there are none, which is reported then."""
    if file.size_bytes > MAX_RECORD_BYTES:
        findings.error(file.name, _too_large("file", file.size_bytes), "size")
        return None
    try:
        with open(file.path, "rb") as handle:
            data = handle.read(MAX_RECORD_BYTES + 1)
    except OSError as error:
        findings.error(file.name, f"cannot be read: {error.strerror or error}", "unreadable")
        return None
    if not data.strip():
        findings.error(file.name, f"is empty; write a {kind} or remove the file", "empty")
        return None
    if data.startswith(LFS_POINTER):
        findings.error(file.name, _LFS_MESSAGE, "git-lfs")
        return None
    if data.startswith(BOM):
        findings.error(file.name, _BOM_MESSAGE, "bom")
    return parse(data.removeprefix(BOM), kind, file.name, findings)


def parse(text: bytes, kind: str, place: str, findings: Findings) -> Any:
    """The plain objects of one JSON text; None if it is no JSON or nests absurdly, which is reported then."""
    try:
        plain = decode(text, kind, source=place)
    except InvalidRecord as error:
        for problem in error.problems:
            findings.error(place, problem.message, "json")
        return None
    if (depth := nesting(plain, text)) > MAX_DEPTH:
        message = f"nests more than {MAX_DEPTH} levels deep ({depth}); flatten it"
        findings.error(place, message, "nesting")
        return None
    report_repeated_keys(text, place, findings)
    if plain is None:
        findings.error(place, f"is null; write a {kind} or remove it", "json")
    return plain


def lines(file: Found, findings: Findings) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a JSON Lines file that hold something, with their numbers, one at a time.

    What makes a whole file or line unreadable is reported and left out; the callers report what
    the other lines hold.
    """
    is_empty = True
    try:
        with open(file.path, "rb") as handle:
            number = 0
            while line := handle.readline(MAX_RECORD_BYTES + 1):
                number += 1
                if number == 1 and line.startswith(LFS_POINTER):
                    findings.error(file.name, _LFS_MESSAGE, "git-lfs")
                    return
                if number == 1 and line.startswith(BOM):
                    findings.error(f"{file.name}:1", _BOM_MESSAGE, "bom")
                    line = line.removeprefix(BOM)
                if len(line) > MAX_RECORD_BYTES:
                    size = len(line) + (0 if line.endswith(b"\n") else _skip_line(handle.readline))
                    findings.error(f"{file.name}:{number}", _too_large("line", size), "size")
                    is_empty = False
                elif not line.isspace():
                    is_empty = False
                    yield number, line
    except OSError as error:
        findings.error(file.name, f"cannot be read: {error.strerror or error}", "unreadable")
        return
    if is_empty:
        findings.notice(file.name, "holds no record; remove the file", "empty")


def parse_line(line: bytes, kind: str, place: str, findings: Findings) -> Any:
    """The plain objects of one line; None if there are none, which is reported then."""
    if not line.endswith(b"\n") and not _is_json(line):
        findings.error(place, _TORN_MESSAGE, "torn-line")
        return None
    return parse(line, kind, place, findings)


def nesting(plain: Any, text: bytes) -> int:
    """How many levels deep objects and lists nest; 0 where the text shows that it is within bounds."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return 0
    depth, level = 0, [plain] if isinstance(plain, dict | list) else []
    while level:
        depth += 1
        inner = [i for item in level for i in (item.values() if isinstance(item, dict) else item)]
        level = [item for item in inner if isinstance(item, dict | list)]
    return depth


class _Repeated(Exception):
    """An object has a key twice."""


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise _Repeated


_spot_repeats = json.JSONDecoder(object_pairs_hook=_refuse_repeats).decode


def report_repeated_keys(text: bytes, place: str, findings: Findings) -> None:
    """Report keys that an object has more than once, of which decoding keeps the last; the text must be JSON."""
    try:
        _spot_repeats(text.decode())
    except _Repeated:
        for path in _repeated(json.loads(text, object_pairs_hook=_Pairs), "$"):
            message = "occurs more than once in its object, and readers take the last; remove the others"
            findings.error(place, message, "duplicate-key", path)


class _Pairs(list[tuple[str, Any]]):
    """An object as it was written."""


def _repeated(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, _Pairs):
        seen: dict[str, int] = {}
        for key, item in value:
            here = child_path(path, key)
            seen[key] = seen.get(key, 0) + 1
            if seen[key] == 2:
                yield here
            yield from _repeated(item, here)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _repeated(item, f"{path}[{index}]")


def child_path(path: str, key: str) -> str:
    """The JSON path of a key."""
    return f"{path}.{key}" if key.isidentifier() else f"{path}[{key!r}]"


def _is_json(line: bytes) -> bool:
    try:
        decode(line, "record", source="")
    except InvalidRecord:
        return False
    return True


def _skip_line(readline: Callable[[int], bytes]) -> int:
    """Read to the end of a line without keeping it; returns how many bytes that were."""
    size = 0
    while part := readline(1 << 20):
        size += len(part)
        if part.endswith(b"\n"):
            break
    return size


def _too_large(what: str, size_bytes: int) -> str:
    limit = MAX_RECORD_BYTES >> 20
    return f"the {what} has {size_bytes >> 20} MiB, and a record at most {limit} MiB; store tensors as blobs"
