"""Call folders that FlashInfer dumps (``FLASHINFER_LOGLEVEL=10``): their order, and reading one.

A dump contains functions and arguments, a data set definitions and inputs. A `CallReader` maps one to the other.
Packages offer readers as entry points of the group ``fib_tracer.call_readers``, each a function without parameters that
returns one.

Source: what FlashInfer 0.6.4 and 0.7.2 write below ``FLASHINFER_DUMP_DIR``: a folder for each call, named
``<time>_pid<n>_<function>_call<k>``, with ``metadata.jsonl`` (the last line counts) and ``inputs.pt`` or
``inputs.safetensors``; beside the folders ``session.jsonl``, in the order of calls. For a call captured in a CUDA graph
(0.7) there is a folder each time its tensors were written, below ``graph_flushes``. Positional arguments are ``arg_0``
and so on, keywords ``kwarg_name``. 0.7.2 records the items of a list one by one, tensors by their
``tensor_key``; in 0.6.4 a list is text, which is not read.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Protocol

import attrs
import torch
from fib_schema import FibError, Problem
from fib_schema.blobs import load_tensors
from fib_schema.files import read_regular

GROUP = "fib_tracer.call_readers"
METADATA = "metadata.jsonl"
SESSION = "session.jsonl"
FLUSHES = "graph_flushes"
PENDING = "graph_capture_pending_flush"
_NEVER_WRITTEN = "captured in a CUDA graph, and its values were never written (flush_graph_dumps)"
_MAX_METADATA_BYTES = 64 << 20
_MAX_HEADER_BYTES = 16 << 20
"""Bytes that a file may have beside those of its tensors."""
_MAX_TEXT = 1000
"""Characters of the text of an unrecorded value that are kept."""
_NAME = re.compile(r"(\d{8}_\d{6}_\d{3})_pid\d+_.+_call(\d+)")
_ADDRESS = re.compile(r" object at (0x[0-9a-f]+)>$")
_POSITIONAL = re.compile(r"arg_(\d{1,4})")
_KEYWORD = "kwarg_"
_CONTAINERS: Mapping[str, type] = MappingProxyType({"list": list, "tuple": tuple, "dict": dict})
_STRING = re.compile(r"""'(\\.|[^'\\])*'|"(\\.|[^"\\])*\"""")
_BRACKETS = re.compile(r"\([^()\[\]{}]*\)|\[[^()\[\]{}]*\]|\{[^()\[\]{}]*\}")
"""A pair of brackets without others inside."""


@attrs.frozen
class RecordedCall:
    """One call of a dump."""

    module: str
    """The module that defines the function: ``flashinfer.norm``."""
    function: str
    """Its name; of a method, with the class: ``rmsnorm``, ``BatchDecodeWithPagedKVCacheWrapper.run``."""
    arguments: Mapping[str, Any]
    """Arguments by parameter, without ``self``; tensors are on the CPU. Those with default values may be missing."""
    instance: str | None = None
    """Identifies the object that a method was called on."""


@attrs.frozen
class ReadCall:
    """Computation of a recorded call."""

    definition: str
    inputs: Mapping[str, Any]
    """Inputs by the definition's names; None for an optional input that was not given."""


@attrs.frozen
class NotCovered(FibError):
    """A call of a known function that no definition describes."""

    function: str
    reason: str

    def __str__(self) -> str:
        return f"{self.function}: {self.reason}"


class CallReader(Protocol):
    """Maps recorded calls to definitions. A reader may have state: a wrapper's ``plan`` comes before its ``run``."""

    def knows(self, module: str, function: str) -> bool:
        """Whether this reader handles calls of a function."""
        ...

    def read(self, call: RecordedCall) -> ReadCall | None:
        """Computation of a call of a known function; None if it computes nothing itself, as ``plan`` does.

        Raises:
            NotCovered: No definition describes this call.
        """
        ...


@attrs.frozen
class DamagedCall(FibError, ValueError):
    """A folder without a complete call."""

    folder: str
    problem: str

    def __str__(self) -> str:
        return f"{self.folder}: {self.problem}"


# -- the order of folders ----------------------------------------------------------------------------


def is_call_folder(folder: Path) -> bool:
    """Whether a folder is that of a call, complete or not."""
    return _NAME.fullmatch(folder.name) is not None or (folder / METADATA).exists()


def in_call_order(session: Path, folders: Iterable[Path], problems: list[Problem]) -> list[Path]:
    """The folders of calls in the order of their session; those that it does not list come last, by their time."""
    known = {key: path for folder in folders for key, path in _snapshots(folder)}
    listed = {key: place for place, key in enumerate(dict.fromkeys(_listed(session / SESSION, problems)))}
    for key in listed.keys() - known.keys():
        if not os.path.lexists(session / key):
            message = f"lists {key!r}, which does not exist"
            problems.append(Problem(str(session / SESSION), "$", message, code="missing-call"))
    return [known[key] for key in sorted(known, key=lambda key: (listed.get(key, len(listed)), _time(known[key])))]


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
    if not session.exists():
        return
    try:
        lines = _read(session).decode("utf-8", "replace").splitlines()
    except DamagedCall as error:
        problems.append(Problem(str(session), "$", error.problem, code="bad-session"))
        return
    for number, line in enumerate(lines, start=1):
        try:
            folder = PurePosixPath(json.loads(line)["dump_dir"])
        except (ValueError, KeyError, TypeError, RecursionError):
            if line.strip():
                message = "is not a record of a call; calls that it does not list come last"
                problems.append(Problem(f"{session}:{number}", "$", message, code="bad-session"))
            continue
        yield "/".join(folder.parts[-3:]) if folder.parent.name == FLUSHES else folder.name


def _time(folder: Path) -> tuple[str, int, str]:
    for name in (folder.name, folder.parent.parent.name):
        if match := _NAME.fullmatch(name):
            return match[1], int(match[2]), folder.name
    return "", 0, folder.name


# -- reading a call ----------------------------------------------------------------------------------


class CallFolders:
    """Reads the call folders of one session."""

    def __init__(self, session: str, max_bytes: int) -> None:
        self._session = session
        self._max_bytes = max_bytes
        self._constructed: Counter[tuple[Any, Any]] = Counter()
        """Number of objects that were constructed at an address of a process."""

    def read(self, folder: Path) -> RecordedCall:
        """The call of a folder.

        Raises:
            DamagedCall: It has no complete call.
            NotCovered: The call was captured in a CUDA graph, and its tensors are missing.
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
                raise NotCovered(function, _NEVER_WRITTEN)
            if keys:
                raise DamagedCall(folder.name, "the file of its tensors is missing")
            return {}
        tensors = load_dumped_tensors(file, self._max_bytes)
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
    for line in reversed(_read(folder / METADATA).splitlines()):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            return record
    raise DamagedCall(folder.name, f"{METADATA} has no complete record: its writer was stopped")


def _read(file: Path) -> bytes:
    try:
        return read_regular(file, _MAX_METADATA_BYTES)
    except OSError as error:
        raise DamagedCall(file.parent.name, f"{file.name} cannot be read: {error.strerror or error}") from error


def _text_field(folder: Path, metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key)
    if not isinstance(value, str) or not value:
        raise DamagedCall(folder.name, f"its metadata has no {key!r}")
    return value


# -- tensors -----------------------------------------------------------------------------------------


def load_dumped_tensors(file: Path, max_bytes: int) -> dict[str, torch.Tensor]:
    """The tensors of a ``.pt`` or ``.safetensors`` file by name, on the CPU; nothing in a file is executed.

    Raises:
        DamagedCall: It is not such a file, contains anything else, or has more bytes.
    """
    folder = file.parent.name
    if file.is_symlink() or not file.is_file():
        raise DamagedCall(folder, f"{file.name} is not a regular file; copy it instead of linking it")
    try:
        tensors = load_tensors(file.parent, file.name) if file.suffix == ".safetensors" else _unpickled(file, max_bytes)
        bad = next((name for name, tensor in tensors.items() if not _is_ordinary(tensor)), None)
    except DamagedCall:
        raise
    except Exception as error:
        text = (str(error).strip().splitlines() or [""])[0][:200]
        raise DamagedCall(folder, f"{file.name} cannot be read: {type(error).__name__}: {text}") from error
    if bad is not None:
        raise DamagedCall(folder, f"{file.name}: {bad!r} is not an ordinary tensor")
    if sum(tensor.nbytes for tensor in tensors.values()) > max_bytes:  # a stride of 0 makes large shapes of few bytes
        raise _too_large(file, max_bytes)
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _unpickled(file: Path, max_bytes: int) -> Mapping[str, Any]:
    """The content of a file of `torch.save`, which is a program for an unpickler; torch restricts what it may call."""
    if not zipfile.is_zipfile(file):
        raise DamagedCall(file.parent.name, f"{file.name} was cut off while it was written")
    with zipfile.ZipFile(file) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > max_bytes + _MAX_HEADER_BYTES:
            raise _too_large(file, max_bytes)
    loaded: Mapping[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return loaded


def _is_ordinary(tensor: Any) -> bool:
    is_dense = isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and tensor.device.type == "cpu"
    return is_dense and not tensor.is_quantized


def _too_large(file: Path, max_bytes: int) -> DamagedCall:
    return DamagedCall(file.parent.name, f"{file.name} takes more than {max_bytes >> 20} MiB; see --max-mib")


# -- arguments ---------------------------------------------------------------------------------------


@attrs.frozen
class Unrecorded:
    """The value of an argument that the dump does not contain."""

    kind: str
    """The name of its type."""
    text: str
    """Its text in the dump."""


def _arguments(folder: Path, metadata: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    recorded = metadata.get("input_metadata", {})
    try:
        return arguments_of(str(metadata.get("function_signature")), recorded, tensors)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedCall(folder.name, f"its arguments cannot be read: {error}") from error


def arguments_of(signature: str, recorded: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """A call's arguments by parameter.

    Args:
        signature: The text of the function's signature.
        recorded: Arguments that are not tensors, by key.
        tensors: By key; tensors inside a list or mapping have longer keys.

    Raises:
        ValueError: An argument has no parameter, or a positional argument is missing before another.
    """
    positional: dict[int, Any] = {}
    named: dict[str, Any] = {}
    nested = set(_tensor_keys(recorded))
    whole = {key: tensor for key, tensor in tensors.items() if key not in nested}
    for key, value in {**whole, **{key: value_of(plain, tensors) for key, plain in recorded.items()}}.items():
        if match := _POSITIONAL.fullmatch(key):
            positional[int(match[1])] = value
        elif key.startswith(_KEYWORD):
            named[key.removeprefix(_KEYWORD)] = value
        else:
            raise ValueError(f"{key!r} is not an argument")
    if sorted(positional) != list(range(len(positional))):
        raise ValueError(f"positional arguments {sorted(positional)} have gaps")
    values = [positional[position] for position in range(len(positional))]
    names, variadic = parse_parameters(signature) if values else ((), None)
    if len(values) > len(names):
        if variadic is None:
            raise ValueError(f"{len(values)} positional arguments for {len(names)} parameters")
        named = {variadic: tuple(values[len(names) :]), **named}
    return {**dict(zip(names, values, strict=False)), **named}


def parse_parameters(signature: str) -> tuple[tuple[str, ...], str | None]:
    """The positional parameters of a signature's text, and the one that takes further positional arguments.

    Annotations and defaults, which need not be Python, are ignored.

    Raises:
        ValueError: It is not a signature.
    """
    text = _STRING.sub("", signature.strip())
    begin, text = text[:1], text[1:]
    while (shorter := _BRACKETS.sub("", text)) != text:
        text = shorter
    inside, end, _ = text.partition(")")
    if (begin, end) != ("(", ")"):
        raise ValueError(f"{signature[:60]!r} is not a signature")
    names: list[str] = []
    for part in inside.split(","):
        name = re.split(r"[:=]", part, maxsplit=1)[0].strip()
        if name.startswith("*"):
            return tuple(names), None if name == "*" or name.startswith("**") else name[1:].strip()
        if name.isidentifier():
            names.append(name)
        elif name not in ("/", ""):
            raise ValueError(f"{name[:60]!r} is not a parameter")
    return tuple(names), None


def value_of(recorded: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The value of a JSON value of the dump; `Unrecorded` if the dump does not contain it."""
    if not isinstance(recorded, dict):
        return recorded
    if isinstance(key := recorded.get("tensor_key"), str):
        return tensors[key] if key in tensors else _unrecorded(recorded)
    kind = str(recorded.get("type"))
    if isinstance(items := recorded.get("items"), list) and kind in _CONTAINERS and not recorded.get("truncated"):
        if kind == "dict":
            return {value_of(item["key"], tensors): value_of(item["value"], tensors) for item in items}
        return _CONTAINERS[kind](value_of(item, tensors) for item in items)
    if kind == "torch.dtype":
        dtype = getattr(torch, str(recorded.get("value")).removeprefix("torch."), None)
        return dtype if isinstance(dtype, torch.dtype) else _unrecorded(recorded)
    if kind == "enum" and "value" in recorded:
        return recorded["value"]
    return _unrecorded(recorded)


def _unrecorded(recorded: Mapping[str, Any]) -> Unrecorded:
    return Unrecorded(str(recorded.get("type")), str(recorded.get("repr", recorded.get("value", "")))[:_MAX_TEXT])


def _tensor_keys(recorded: Any) -> Iterator[str]:
    """The keys of tensors inside lists and mappings."""
    if isinstance(recorded, dict):
        if isinstance(key := recorded.get("tensor_key"), str):
            yield key
        for item in recorded.values():
            yield from _tensor_keys(item)
    elif isinstance(recorded, list):
        for item in recorded:
            yield from _tensor_keys(item)
