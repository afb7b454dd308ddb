"""Tensors of a recorded call, read from files that nobody vouches for.

A ``.pt`` file is a program for an unpickler: it is loaded with ``weights_only``, and before that everything that it
would call is looked at, for even what is allowed there can be asked for any amount of memory. No more bytes are made
of a file than the caller allows.
"""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import attrs
import torch
from fib_schema import FibError
from fib_schema.blobs import load_tensors

_MOST_PICKLE_BYTES = 16 << 20
_MOST_HEADER_BYTES = 1 << 20
_ARCHIVE = b"PK\x03\x04"
"""How an archive begins; whatever begins otherwise torch takes for a bare pickle."""
_MAKERS = frozenset({
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3",
    "torch._utils _rebuild_parameter",
    "torch.nn.parameter Parameter",
    "torch.storage UntypedStorage",
    "collections OrderedDict",
})  # fmt: skip
"""What the files of `torch.save` call for a mapping of ordinary tensors, beside dtypes and storages of torch."""
_OTHER_CALLS = frozenset({"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"})
"""Other ways to name what is to be called; `torch.save` has no use for them."""


@attrs.frozen
class UnreadableTensors(FibError, ValueError):
    """A file that holds no tensors, too many bytes, or something else beside them."""

    file: str
    problem: str

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


def load_dumped_tensors(file: Path, most_bytes: int) -> dict[str, torch.Tensor]:
    """The tensors of a ``.pt`` or ``.safetensors`` file by name, on the CPU.

    Args:
        file: The file.
        most_bytes: How much may be made of it.

    Raises:
        UnreadableTensors: It is no such file, holds anything else, or would take more bytes.
    """
    load = _load_safetensors if file.suffix == ".safetensors" else _load_pickled
    try:
        return _checked(load(file, most_bytes), most_bytes)
    except _Refused as error:
        raise UnreadableTensors(file.name, str(error)) from error
    except Exception as error:
        raise UnreadableTensors(file.name, f"cannot be read: {type(error).__name__}: {_short(error)}") from error


class _Refused(Exception):
    """Why a file is not loaded."""


def _load_safetensors(file: Path, most_bytes: int) -> Any:
    if file.stat().st_size > most_bytes + _MOST_HEADER_BYTES:
        raise _too_large(most_bytes)
    return load_tensors(file.parent, file.name)


def _load_pickled(file: Path, most_bytes: int) -> Any:
    with file.open("rb") as content:
        _check_archive(content, most_bytes)
        content.seek(0)
        return torch.load(content, map_location="cpu", weights_only=True)


def _check_archive(content: IO[bytes], most_bytes: int) -> None:
    """Refuse what `torch.save` does not write, before torch's own reader sees it."""
    if content.read(len(_ARCHIVE)) != _ARCHIVE or not zipfile.is_zipfile(content):  # torch goes by how a file begins
        raise _Refused("is no archive of torch.save, or was cut off while it was written")
    with zipfile.ZipFile(content) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise _Refused("is compressed, which torch.save never does")
        if sum(entry.file_size for entry in entries) > most_bytes + _MOST_PICKLE_BYTES:
            raise _too_large(most_bytes)
        if any(entry.filename != entry.orig_filename for entry in entries):
            raise _Refused("has a file with two names")
        for entry in entries:
            if entry.filename.lower().endswith(".pkl"):  # torch's reader finds it in capitals, too
                if entry.file_size > _MOST_PICKLE_BYTES:
                    raise _Refused("holds more than tensors: its pickle is too large")
                _check_calls(archive.read(entry))


def _check_calls(pickle: bytes) -> None:
    for named in _named_in(pickle):
        if named not in _MAKERS and not _is_of_torch(named):
            raise _Refused(f"would call {named!r}, which no file of tensors needs; it is not loaded")


def _named_in(pickle: bytes) -> Iterator[str]:
    """What a pickle would have called, found without running it."""
    for opcode, argument, _ in pickletools.genops(pickle):
        if opcode.name in _OTHER_CALLS:
            yield opcode.name
        elif opcode.name == "GLOBAL":
            yield str(argument)


def _is_of_torch(named: str) -> bool:
    """Whether it is a dtype or a kind of storage, which only stand for a tensor's type."""
    module, _, name = named.partition(" ")
    return module == "torch" and (name.endswith("Storage") or isinstance(getattr(torch, name, None), torch.dtype))


def _checked(loaded: Any, most_bytes: int) -> dict[str, torch.Tensor]:
    if not isinstance(loaded, Mapping):
        raise _Refused(f"holds no mapping of tensors, but {type(loaded).__name__}")
    for name, tensor in loaded.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor) or not _is_ordinary(tensor):
            raise _Refused(f"{name!r} is no ordinary tensor: {type(tensor).__name__}")
    if sum(tensor.nbytes for tensor in loaded.values()) > most_bytes:  # a stride of 0 makes any shape of few bytes
        raise _too_large(most_bytes)
    return {name: tensor.detach() for name, tensor in loaded.items()}


def _is_ordinary(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized


def _too_large(most_bytes: int) -> _Refused:
    return _Refused(f"takes more than {most_bytes >> 20} MiB; raise the limit if it is to be trusted")


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return lines[0][:200]
