"""Calls that FlashInfer has dumped (``FLASHINFER_LOGLEVEL=10``), in the order in which they were made.

Source: the folders that FlashInfer 0.6.4 and 0.7.2 write below ``FLASHINFER_DUMP_DIR``: one for each call, named
``<time>_pid<n>_<function>_call<k>``, with ``metadata.jsonl`` (the last line counts) and ``inputs.pt`` or
``inputs.safetensors``; beside them ``session.jsonl``, in the order of calls. A call that was captured in a CUDA graph
(0.7) has a folder of its own for each time that its tensors were written, below ``graph_flushes``.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
import torch
from fib_schema import FibError, Problem

from ..recorded_calls import RecordedCall
from .arguments import Parameters, Unrecorded, arguments_of, parse_parameters
from .tensors import UnreadableTensors, load_dumped_tensors

METADATA = "metadata.jsonl"
SESSION = "session.jsonl"
FLUSHES = "graph_flushes"
PENDING = "graph_capture_pending_flush"
_MOST_TEXT_BYTES = 64 << 20
_NAME = re.compile(r"(\d{8}_\d{6}_\d{3})_pid\d+_.+_call(\d+)")
_ADDRESS = re.compile(r" object at (0x[0-9a-f]+)>$")


@attrs.frozen
class DamagedCall(FibError, ValueError):
    """A folder that holds no whole call."""

    folder: str
    problem: str

    def __str__(self) -> str:
        return f"{self.folder}: {self.problem}"


@attrs.frozen
class NeverWritten(FibError):
    """A call whose tensors were never written, for it was captured in a CUDA graph."""

    function: str

    def __str__(self) -> str:
        return f"{self.function}: captured in a CUDA graph, and its values were never written (flush_graph_dumps)"


# -- finding folders ---------------------------------------------------------------------------------


def is_call_folder(folder: Path) -> bool:
    """Whether a folder is meant to hold a call, whole or not."""
    return _NAME.fullmatch(folder.name) is not None or (folder / METADATA).exists()


def in_order(session: Path, folders: Iterable[Path], problems: list[Problem]) -> list[Path]:
    """The folders of calls in the order of their session; what it does not list comes in by the time in its name.

    Args:
        session: The folder that they lie in.
        folders: Of calls.
        problems: Where it is reported that a listed folder is gone, or that the list cannot be read.
    """
    known = {key: path for folder in folders for key, path in _snapshots(folder)}
    listed = list(dict.fromkeys(_listed(session / SESSION, problems)))
    for key in listed:
        if not os.path.lexists(session / key):
            message = f"lists {key!r}, which is not there"
            problems.append(Problem(str(session / SESSION), "$", message, code="missing-call"))
    first = [known[key] for key in listed if key in known]
    rest = sorted((path for path in known.values() if path not in set(first)), key=_time)
    return list(_merged(first, rest))


def _snapshots(folder: Path) -> Iterator[tuple[str, Path]]:
    """A folder, or those within it that hold what a captured call saw each time; each with its key."""
    flushes = folder / FLUSHES
    inner = sorted(flushes.iterdir()) if flushes.is_dir() and not flushes.is_symlink() else []
    for flush in inner:
        yield f"{folder.name}/{FLUSHES}/{flush.name}", flush
    if not inner:
        yield folder.name, folder


def _listed(session: Path, problems: list[Problem]) -> Iterator[str]:
    """The keys of folders, in the order of a session."""
    try:
        lines = _text(session).splitlines()
    except DamagedCall as error:
        if session.exists():
            problems.append(Problem(str(session), "$", error.problem, code="bad-session"))
        return
    for number, line in enumerate(lines, start=1):
        try:
            folder = PurePosixPath(json.loads(line)["dump_dir"])
        except (ValueError, KeyError, TypeError, RecursionError):
            if line.strip():
                message = "is no record of a call; calls that it would have placed go by their time"
                problems.append(Problem(f"{session}:{number}", "$", message, code="bad-session"))
            continue
        yield "/".join(folder.parts[-3:]) if folder.parent.name == FLUSHES else folder.name


def _time(folder: Path) -> tuple[str, int, str]:
    for name in (folder.name, folder.parent.parent.name):
        if match := _NAME.fullmatch(name):
            return match[1], int(match[2]), folder.name
    return "", 0, folder.name


def _merged(first: list[Path], rest: list[Path]) -> Iterator[Path]:
    """Both in their order: one of the second comes before the first one that is later."""
    for folder in first:
        while rest and _time(rest[0])[0] < _time(folder)[0]:
            yield rest.pop(0)
        yield folder
    yield from rest


# -- reading one -------------------------------------------------------------------------------------


class CallFolders:
    """Reads the calls of one session.

    Args:
        session: What tells it from others: objects of two sessions may have the same address.
        most_bytes: How many bytes of tensors a call may have.
    """

    def __init__(self, session: str, most_bytes: int) -> None:
        self._session = session
        self._most_bytes = most_bytes
        self._made: Counter[tuple[Any, Any]] = Counter()

    def read(self, folder: Path) -> RecordedCall:
        """The call of a folder.

        Raises:
            DamagedCall: It is none, or not a whole one.
            NeverWritten: It was captured, and its tensors are not there.
        """
        if folder.is_symlink():
            raise DamagedCall(folder.name, "is a link; copy the folder instead")
        metadata = _metadata(folder)
        function, module = (_wanted(folder, metadata, key) for key in ("function_name", "module"))
        info = metadata.get("tensor_info")
        keys = info.get("input_tensor_keys") if isinstance(info, dict) else None
        if not isinstance(keys, list):
            raise DamagedCall(folder.name, "its metadata does not say which tensors it has")
        tensors = self._tensors(folder, keys, metadata, f"{module}.{function}")
        arguments = _arguments(folder, metadata, tensors)
        receiver = arguments.pop("self", None)
        return RecordedCall(
            module, _qualified(function, receiver), arguments, self._instance(metadata, function, receiver)
        )

    def _tensors(self, folder: Path, keys: list[Any], metadata: Mapping[str, Any], function: str) -> dict[str, Any]:
        file = next((f for f in (folder / "inputs.pt", folder / "inputs.safetensors") if os.path.lexists(f)), None)
        if file is None:
            if metadata.get("execution_status") == PENDING:
                raise NeverWritten(function)
            if keys:
                raise DamagedCall(folder.name, "the file of its tensors is missing")
            return {}
        _check_file(file)
        try:
            tensors: dict[str, torch.Tensor] = load_dumped_tensors(file, self._most_bytes)
        except UnreadableTensors as error:
            raise DamagedCall(folder.name, str(error)) from error
        if set(tensors) != set(keys):
            raise DamagedCall(folder.name, f"{file.name} has other tensors than its metadata says")
        return tensors

    def _instance(self, metadata: Mapping[str, Any], function: str, receiver: Any) -> str | None:
        """What the receiver is known by: its address, which another object may get when it is gone."""
        address = metadata.get("self_id")
        if address is None and isinstance(receiver, Unrecorded) and (match := _ADDRESS.search(receiver.text)):
            address = int(match[1], 16)
        if not isinstance(address, int):
            return None
        process = metadata.get("process_id")
        place = process if isinstance(process, int) else None, address
        self._made[place] += function.endswith("__init__")
        return f"{self._session}:{place[0]}:{address:#x}:{self._made[place]}"


def _metadata(folder: Path) -> dict[str, Any]:
    """The last whole record: a later one says more of the same call, and a torn one was never finished."""
    for line in reversed(_text(folder / METADATA).splitlines()):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            return record
    raise DamagedCall(folder.name, f"{METADATA} has no whole record: its writer was stopped")


def _text(file: Path) -> str:
    _check_file(file)
    try:
        with file.open("rb") as content:
            data = content.read(_MOST_TEXT_BYTES + 1)
    except OSError as error:
        raise DamagedCall(file.parent.name, f"{file.name} cannot be read: {error.strerror}") from error
    if len(data) > _MOST_TEXT_BYTES:
        raise DamagedCall(file.parent.name, f"{file.name} has more than {_MOST_TEXT_BYTES >> 20} MiB")
    return data.decode("utf-8", "replace")


def _check_file(file: Path) -> None:
    """Refuse a link, which may lead anywhere, and what would have a reader wait for ever."""
    try:
        mode = file.lstat().st_mode
    except OSError as error:
        raise DamagedCall(file.parent.name, f"{file.name} is missing: FlashInfer could not write the call") from error
    if not stat.S_ISREG(mode):
        kind = "a link; copy the file instead" if stat.S_ISLNK(mode) else "no ordinary file"
        raise DamagedCall(file.parent.name, f"{file.name} is {kind}")


def _wanted(folder: Path, metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key)
    if not isinstance(value, str) or not value:
        raise DamagedCall(folder.name, f"its metadata has no {key!r}")
    return value


def _arguments(folder: Path, metadata: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    recorded = metadata.get("input_metadata", {})
    try:
        signature = metadata.get("function_signature")
        is_named = not any(key.startswith("arg_") for key in (*recorded, *tensors))
        parameters = Parameters(()) if is_named else parse_parameters(str(signature))
        return arguments_of(parameters, recorded, tensors)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedCall(folder.name, f"its arguments cannot be read: {error}") from error


def _qualified(function: str, receiver: Any) -> str:
    """A method's name with its class, which FlashInfer leaves out for some."""
    return f"{receiver.kind}.{function}" if "." not in function and isinstance(receiver, Unrecorded) else function
