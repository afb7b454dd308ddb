"""Call folders that FlashInfer dumps (``FLASHINFER_LOGLEVEL=10``): their order, and reading one.

Source: what FlashInfer 0.6.4 and 0.7.2 write below ``FLASHINFER_DUMP_DIR``: a folder for each call, named
``<time>_pid<n>_<function>_call<k>``, with ``metadata.jsonl`` (the last line counts) and ``inputs.pt`` or
``inputs.safetensors``; beside the folders ``session.jsonl``, in the order of calls. For a call captured in a CUDA graph
(0.7) there is a folder each time its tensors were written, below ``graph_flushes``.
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
_MAX_TEXT_BYTES = 64 << 20
_NAME = re.compile(r"(\d{8}_\d{6}_\d{3})_pid\d+_.+_call(\d+)")
_ADDRESS = re.compile(r" object at (0x[0-9a-f]+)>$")


@attrs.frozen
class DamagedCall(FibError, ValueError):
    """A folder without a complete call."""

    folder: str
    problem: str

    def __str__(self) -> str:
        return f"{self.folder}: {self.problem}"


@attrs.frozen
class NeverWritten(FibError):
    """A call captured in a CUDA graph whose tensors were never written."""

    function: str

    def __str__(self) -> str:
        return f"{self.function}: captured in a CUDA graph, and its values were never written (flush_graph_dumps)"


# -- the order of folders ----------------------------------------------------------------------------


def is_call_folder(folder: Path) -> bool:
    """Whether a folder is that of a call, complete or not."""
    return _NAME.fullmatch(folder.name) is not None or (folder / METADATA).exists()


def in_call_order(session: Path, folders: Iterable[Path], problems: list[Problem]) -> list[Path]:
    """The folders of calls in the order of their session; folders that it does not list are placed by their time.

    Args:
        session: The folder that contains them.
        folders: Of calls.
        problems: Where missing folders and an unreadable list are reported.
    """
    known = {key: path for folder in folders for key, path in _snapshots(folder)}
    listed = list(dict.fromkeys(_listed(session / SESSION, problems)))
    for key in listed:
        if not os.path.lexists(session / key):
            message = f"lists {key!r}, which does not exist"
            problems.append(Problem(str(session / SESSION), "$", message, code="missing-call"))
    ordered = [known[key] for key in listed if key in known]
    rest = sorted((path for path in known.values() if path not in set(ordered)), key=_time)
    return list(_merged(ordered, rest))


def _snapshots(folder: Path) -> Iterator[tuple[str, Path]]:
    """A folder and its key; for a captured call, one for each time its tensors were written."""
    flushes = folder / FLUSHES
    inner = sorted(flushes.iterdir()) if flushes.is_dir() and not flushes.is_symlink() else []
    for flush in inner:
        yield f"{folder.name}/{FLUSHES}/{flush.name}", flush
    if not inner:
        yield folder.name, folder


def _listed(session: Path, problems: list[Problem]) -> Iterator[str]:
    """The keys of folders that a session lists."""
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
                message = "is not a record of a call; calls that it does not list are ordered by time"
                problems.append(Problem(f"{session}:{number}", "$", message, code="bad-session"))
            continue
        yield "/".join(folder.parts[-3:]) if folder.parent.name == FLUSHES else folder.name


def _time(folder: Path) -> tuple[str, int, str]:
    for name in (folder.name, folder.parent.parent.name):
        if match := _NAME.fullmatch(name):
            return match[1], int(match[2]), folder.name
    return "", 0, folder.name


def _merged(ordered: list[Path], rest: list[Path]) -> Iterator[Path]:
    """All folders: one of the rest comes before the first ordered one that is later."""
    for folder in ordered:
        while rest and _time(rest[0])[0] < _time(folder)[0]:
            yield rest.pop(0)
        yield folder
    yield from rest


# -- reading a call ----------------------------------------------------------------------------------


class CallFolders:
    """Reads the call folders of one session.

    Args:
        session: Distinguishes it from others: objects of two sessions may have the same address.
        max_bytes: The most bytes of tensors that a call may have.
    """

    def __init__(self, session: str, max_bytes: int) -> None:
        self._session = session
        self._max_bytes = max_bytes
        self._constructed: Counter[tuple[Any, Any]] = Counter()
        """Number of objects that were constructed at an address of a process."""

    def read(self, folder: Path) -> RecordedCall:
        """The call of a folder.

        Raises:
            DamagedCall: It has no complete call.
            NeverWritten: The call was captured, and its tensors are missing.
        """
        if folder.is_symlink():
            raise DamagedCall(folder.name, "is a link; copy the folder instead")
        metadata = _metadata(folder)
        function, module = (_text_field(folder, metadata, key) for key in ("function_name", "module"))
        info = metadata.get("tensor_info")
        keys = info.get("input_tensor_keys") if isinstance(info, dict) else None
        if not isinstance(keys, list):
            raise DamagedCall(folder.name, "its metadata does not list its tensors")
        tensors = self._tensors(folder, keys, metadata, f"{module}.{function}")
        arguments = _arguments(folder, metadata, tensors)
        receiver = arguments.pop("self", None)
        instance = self._instance(metadata, function, receiver)
        if "." not in function and isinstance(receiver, Unrecorded):  # FlashInfer leaves the class out for some
            function = f"{receiver.kind}.{function}"
        return RecordedCall(module, function, arguments, instance)

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
            tensors: dict[str, torch.Tensor] = load_dumped_tensors(file, self._max_bytes)
        except UnreadableTensors as error:
            raise DamagedCall(folder.name, str(error)) from error
        if set(tensors) != set(keys):
            raise DamagedCall(folder.name, f"{file.name} has other tensors than its metadata lists")
        return tensors

    def _instance(self, metadata: Mapping[str, Any], function: str, receiver: Any) -> str | None:
        """Identifies the receiver by its address, and by a count because addresses are reused."""
        address = metadata.get("self_id")
        if address is None and isinstance(receiver, Unrecorded) and (match := _ADDRESS.search(receiver.text)):
            address = int(match[1], 16)
        if not isinstance(address, int):
            return None
        process = metadata.get("process_id")
        key = process if isinstance(process, int) else None, address
        self._constructed[key] += function.endswith("__init__")
        return f"{self._session}:{key[0]}:{address:#x}:{self._constructed[key]}"


def _metadata(folder: Path) -> dict[str, Any]:
    """The last complete record: later ones say more about the same call, and a torn one is incomplete."""
    for line in reversed(_text(folder / METADATA).splitlines()):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            return record
    raise DamagedCall(folder.name, f"{METADATA} has no complete record: its writer was stopped")


def _text(file: Path) -> str:
    _check_file(file)
    try:
        with file.open("rb") as content:
            data = content.read(_MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise DamagedCall(file.parent.name, f"{file.name} cannot be read: {error.strerror}") from error
    if len(data) > _MAX_TEXT_BYTES:
        raise DamagedCall(file.parent.name, f"{file.name} has more than {_MAX_TEXT_BYTES >> 20} MiB")
    return data.decode("utf-8", "replace")


def _check_file(file: Path) -> None:
    """Refuse links, which may lead anywhere, and pipes and devices, whose reader would wait forever."""
    try:
        mode = file.lstat().st_mode
    except OSError as error:
        raise DamagedCall(file.parent.name, f"{file.name} is missing: FlashInfer could not write the call") from error
    if not stat.S_ISREG(mode):
        kind = "a link; copy the file instead" if stat.S_ISLNK(mode) else "not a regular file"
        raise DamagedCall(file.parent.name, f"{file.name} is {kind}")


def _text_field(folder: Path, metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key)
    if not isinstance(value, str) or not value:
        raise DamagedCall(folder.name, f"its metadata has no {key!r}")
    return value


def _arguments(folder: Path, metadata: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    recorded = metadata.get("input_metadata", {})
    try:
        has_positional = any(key.startswith("arg_") for key in (*recorded, *tensors))
        signature = str(metadata.get("function_signature"))
        return arguments_of(parse_parameters(signature) if has_positional else Parameters(()), recorded, tensors)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedCall(folder.name, f"its arguments cannot be read: {error}") from error
